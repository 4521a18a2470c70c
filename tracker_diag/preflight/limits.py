"""A call of the user's own code, which may hang or raise: it gets some seconds."""

import threading
from collections.abc import Callable
from typing import TypeVar

from tracker_diag.report.console import cut

T = TypeVar("T")

BY_HAND = "make this very call by hand, and read the traceback"
WAITS = "look where it waits: a socket, a lock, a subprocess; put a time-out there, or raise seconds="


class Broken(Exception):
    """The user's code raises, hangs or gives what it must not, so that nothing after it can be checked."""

    def __init__(self, reason: str, do: str, *, hangs: bool = False) -> None:
        self.reason, self.do, self.hangs = reason, do, hangs
        super().__init__(reason)


def described(error: BaseException) -> str:
    """An exception in one line."""
    return f"raised {type(error).__name__}: {cut(' '.join(str(error).split()), 200)}".removesuffix(": ")


def within(seconds: float, call: Callable[[], T], what: Callable[[], str], do: str = BY_HAND) -> T:
    """What `call` returns, from a thread of its own.

    A thread cannot be ended from outside. One that hangs stays behind as a daemon: it keeps no process from ending, but
    may use a core until then.

    Args:
        what: the call in a few words, taken when it has failed.
        do: what to do if it raises.
    """
    values: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            values.append(call())
        except BaseException as error:  # noqa: BLE001  # a sys.exit of an environment is a failure of it as well
            errors.append(error)

    thread = threading.Thread(target=work, name="tracker_diag preflight", daemon=True)
    thread.start()
    thread.join(seconds)
    if values:
        return values[0]
    if not errors:
        raise Broken(f"{what()} did not return in time", WAITS, hangs=True)
    if isinstance(errors[0], Broken):
        raise errors[0]
    raise Broken(f"{what()} {described(errors[0])}", do) from errors[0]
