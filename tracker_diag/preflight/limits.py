"""A call of the user's own code, which may hang or raise: it gets some seconds."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from tracker_diag.report.console import cut

T = TypeVar("T")

BY_HAND = "make this very call by hand, and read the traceback"
WAITS = "look where it waits: a socket, a lock, a subprocess; put a time-out there, or raise seconds="


class Broken(Exception):
    """What is checked gives what it must not, raises or hangs, so that nothing after it can be checked."""

    def __init__(self, reason: str, do: str) -> None:
        self.reason, self.do = reason, do
        super().__init__(reason)


@dataclass(frozen=True)
class Ended(Generic[T]):
    """How a call ended."""

    value: T | None = None
    error: BaseException | None = None
    late: bool = False

    @property
    def wrong(self) -> str:
        """What went wrong, in a few words; empty if nothing did."""
        if self.late:
            return "did not return in time"
        return "" if self.error is None else described(self.error)


def described(error: BaseException) -> str:
    """An exception in one line."""
    return f"raised {type(error).__name__}: {cut(str(error), 120)}".removesuffix(": ")


def within(seconds: float, call: Callable[[], T]) -> Ended[T]:
    """`call` in a thread of its own, for `seconds` at most.

    A thread cannot be ended from outside. One that hangs stays behind as a daemon: it keeps no process from ending, but
    may use a core until then.
    """
    ended: list[Ended[T]] = []

    def work() -> None:
        try:
            ended.append(Ended(call()))
        except BaseException as error:  # noqa: BLE001  # a sys.exit of an environment is a failure of it as well
            ended.append(Ended(error=error))

    thread = threading.Thread(target=work, name="tracker_diag preflight", daemon=True)
    thread.start()
    thread.join(seconds)
    return ended[0] if ended else Ended(late=True)


def called(seconds: float, call: Callable[[], T], what: Callable[[], str], do: str = BY_HAND) -> T:
    """What `call` returns; Broken, with `what` was called and what to `do`, if it raises or hangs."""
    ended = within(seconds, call)
    if isinstance(ended.error, Broken):
        raise ended.error
    if ended.wrong:
        raise Broken(f"{what()} {ended.wrong}", WAITS if ended.late else do)
    return cast("T", ended.value)
