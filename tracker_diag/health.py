"""Health: failures of the diagnostics are counted, warned of once, and kept; none of them reaches training."""

import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from tracker_diag.errors import (
    RAISED_BY_A_HANDLER,
    SIGNALS,
    BatchError,
    DiagError,
    StepError,
    of_a_handler,
    without_secrets,
)

_log = logging.getLogger("tracker_diag")


Handler: TypeAlias = Callable[[int, FrameType | None], Any]


def _is_default(handler: object) -> bool:
    return handler == signal.SIG_DFL


@contextmanager
def whole() -> Generator[None, None, None]:
    """Do what is inside as a whole: signal handlers, and so Ctrl-C, come right after it. Nothing inside may wait."""
    if threading.current_thread() is not threading.main_thread():  # no handler runs there
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    over = False

    def later(number: int, frame: FrameType | None) -> None:
        if over:  # another one has come while handlers were put back
            handlers[number](number, frame)
        else:
            came.append((number, frame))

    found = {number: signal.getsignal(number) for number in SIGNALS}
    # One that equals SIG_DFL does nothing in this thread: see postmortem/process.py.
    handlers = {number: one for number, one in found.items() if callable(one) and not _is_default(one)}
    try:
        for number in handlers:
            signal.signal(number, later)
        yield
    finally:
        over = True
        for number, handler in handlers.items():
            if signal.getsignal(number) is later:
                signal.signal(number, handler)
        _call_all(handlers, came)


def _call_all(handlers: Mapping[int, Handler], came: Sequence[tuple[int, FrameType | None]]) -> None:
    """Call the handler of each signal that `came`; then raise what the first of them has raised."""
    raised: BaseException | None = None
    for number, frame in came:
        try:
            handlers[number](number, frame)
        except BaseException as error:  # noqa: BLE001, PERF203  # Ctrl-C is one; none keeps another from being heard
            raised = raised or error
    if raised is not None:
        setattr(raised, RAISED_BY_A_HANDLER, True)
        raise raised


def _masked(error: Exception) -> bool:
    return isinstance(error, BatchError) and error.masked


class HasLocks(Protocol):
    """What is locked by a thread while it works."""

    def new_locks(self) -> None:
        """Make the locks anew, all of them open."""
        ...


_in_forks: "WeakSet[HasLocks]" = WeakSet()


def open_in_forks(owner: HasLocks) -> None:
    """Have `owner` make its locks anew in a fork: a thread that held one is not there to open it."""
    _in_forks.add(owner)


def _forked() -> None:
    for owner in _in_forks:
        owner.new_locks()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_forked)


SOON = 2e-4
"""Seconds after which a thread gives up the interpreter to one that waits for it, while a step is taken in.

Python's own is 5e-3. Trackers are written to by other threads, and whenever ours comes back from numpy or from a file,
many times a step, it would wait so long for one of them that computes.
"""


class _Interpreter:
    """Python's switch interval, one for all threads of the process: short while any of them is in `soon`."""

    def __init__(self) -> None:
        self._inside: set[object] = set()
        self._usual = self._short = 0.0
        self.new_locks()
        open_in_forks(self)

    def new_locks(self) -> None:
        self._lock = threading.RLock()  # a signal handler that logs may come in the midst of what it is held for
        if self._inside:  # in a fork: whoever was inside is not there to end it
            self._inside.clear()
            self._put_back()

    @contextmanager
    def soon(self) -> Generator[None, None, None]:
        """Have other threads give way soon while what is inside is done."""
        me = object()
        try:
            with self._lock:
                first = not self._inside
                self._inside.add(me)
                if first:
                    self._shorten()
            yield
        finally:
            self._inside.discard(me)  # before anything in which a signal handler could raise
            with self._lock:  # if one does here, whoever is inside next puts it back
                if not self._inside:
                    self._put_back()

    def _shorten(self) -> None:
        if (now := sys.getswitchinterval()) != self._short:  # else another call is about to put it back
            self._usual = now + 5e-7  # what is set is cut to whole microseconds
        soon = min(SOON, self._usual)
        self._short = 1e-6 * int(1e6 * soon)  # as Python gives it back; known before it is set, if a handler raises
        sys.setswitchinterval(soon)

    def _put_back(self) -> None:
        if sys.getswitchinterval() == self._short:  # else somebody has set it meanwhile
            sys.setswitchinterval(self._usual)


_interpreter = _Interpreter()


class Health:
    """What has gone wrong so far, and the guard under which everything runs, one thread at a time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the name in `diag/health/<name>`."""
        self.failures: list[str] = []
        """The first message of each kind."""
        self.strict = True
        """Until one observation has gone well, whatever is wrong with one raises."""
        self._process = os.getpid()
        self.new_locks()
        open_in_forks(self)

    def new_locks(self) -> None:
        """Make the locks anew, all of them open."""
        self.turn = threading.RLock()
        """Held by the thread that works on the run."""

    def elsewhere(self) -> bool:
        """Whether this is a fork of the process that the diagnostics live in; they stay silent there."""
        return os.getpid() != self._process

    def over(self, *, ended: bool) -> bool:
        """Whether a call is left out: in a fork of the process, and once the run has `ended`, which is counted."""
        if ended and not self.elsewhere():
            self.record("after_close", DiagError("the run that was watched has ended; wrap the one that goes on"))
        return ended or self.elsewhere()

    def record(self, kind: str, error: Exception) -> None:
        """Count `error` under `kind`; the first of a kind is told, and kept."""
        with self.turn:
            self.counts[kind] += 1
            if self.counts[kind] == 1:
                message = without_secrets(f"{kind}: {type(error).__name__}: {error}")
                self.failures.append(message)
                _log.warning("%s (training goes on; further ones are counted in diag/health/%s)", message, kind)

    def state_dict(self) -> dict[str, Any]:
        return {"strict": self.strict, "counts": dict(self.counts), "failures": list(self.failures)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting where `state` was taken; whoever holds on to the counts sees it."""
        self.strict, self.failures[:] = state["strict"], state["failures"]
        self.counts.clear()
        self.counts.update(state["counts"])

    def tell(self, texts: Iterable[str]) -> None:
        """Say what a person should know of, and no counter counts."""
        for text in texts:
            _log.warning("%s", text)

    @contextmanager
    def guard(self, kind: str, *, strict: bool | None = None) -> Generator[None, None, None]:
        """Count what is raised inside, warn of its first time, and go on.

        What goes through is a first batch's error, and what a signal handler of the user's has raised.

        Args:
            strict: whether this is such a first batch; `Health.strict` where it is not said.
        """
        with self.turn, _interpreter.soon():
            try:
                yield
            except Exception as error:
                of_batch = kind in ("rejected_batches", "rejected_samples")
                first = of_batch and (self.strict if strict is None else strict) and not _masked(error)
                if first or of_a_handler(error):
                    raise
                if isinstance(error, StepError):
                    kind = "late_steps"
                elif of_batch and not isinstance(error, DiagError):
                    kind = "internal_errors"
                self.record(kind, error)
