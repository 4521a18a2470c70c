"""Process: hears how this process ends, for all the runs that are watched in it, and changes nothing about it.

SIGTERM ends a process that has no handler for it, and so it does here, TRACKER_DIAG_EXIT_TIMEOUT later at most:
meanwhile a thread of ours has each run written down, and then sends the signal on. The main thread is neither asked nor
stopped for that: it may wait in a library that never comes back, or hold what would be needed. A handler of the user's
stays alone in charge; that its signal came is noted. So is an exception that ends a thread. One that ends the program
needs no hook: Python keeps it until its end.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol

from tracker_diag.hooks import replace
from tracker_diag.runs.postmortem.folder import Ending
from tracker_diag.trackers.delivery.patience import exit_timeout

NO_SIGNAL = 0
"""A byte in the pipe that stands for none."""
SETTLES = 1.0
"""Seconds that are waited for the thread that hears signals, which may be behind on a busy machine."""
AT_ONCE = 0.6
"""Share of the time after which what is known is written down without asking the diagnostics: they are at work."""


class Watched(Protocol):
    """A run that is underway in this process."""

    def noted(self, ending: Ending) -> None:
        """Something came that may end the run, and somebody else decides."""
        ...

    def ended(self, ending: Ending) -> None:
        """The process is about to end: write down what is known. It may take long, and is then not waited for."""
        ...

    def gave_up(self) -> None:
        """`ended` takes too long: write down what is known without asking the diagnostics, unless it is written."""
        ...


class StandsForDefault:
    """A handler that equals SIG_DFL, as in the end it does the same; whoever looks for one of the user's finds none."""

    def __init__(self, came: Callable[[], None]) -> None:
        self._came = came

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, signal.Handlers) and other == signal.SIG_DFL)

    def __hash__(self) -> int:
        return hash(signal.SIG_DFL)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        handler: object = signal.getsignal(number)
        if handler is self:  # else one of the user's, set since, hands on to what it found
            self._came()


class Process:
    """The hooks, which are on while any run is watched."""

    def __init__(self) -> None:
        self._runs: list[Watched] = []
        self._handler = StandsForDefault(self._wake)
        self._pipe: tuple[int, int] | None = None
        self._off: list[Callable[[], None]] = []
        """Take the hook on exceptions of threads off again."""
        self._last: BaseException | None = None
        """The exception that Python kept when the first run began."""
        self._ending = False
        """Whether SIGTERM has come and is about to be sent on."""
        self._heard = threading.Event()
        """That a byte of `settle` has come through the pipe, and with it all signals before it."""

    def watch(self, run: Watched) -> bool:
        """Tell `run` of what ends this process; whether SIGTERM is heard, which only the main thread can have so."""
        if not self._runs:
            self._last = getattr(sys, "last_value", None)
            before = threading.excepthook
            self._off.append(replace(threading, "excepthook", before, partial(self._thread_ended, before)))
        self._runs.append(run)
        return self._listen()

    def leave(self, run: Watched) -> None:
        """Tell `run` of nothing any more; with the last one all is as it was."""
        if run in self._runs:
            self._runs.remove(run)
        if not self._runs:
            self._let_go()
        if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1"):
            # Python forgets that it ends by Ctrl-C as soon as anything is run from a string, as an import may do; its
            # exit code would be another one. This makes it remember.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102

    def exception(self) -> BaseException | None:
        """What ends the program, or the block that the run belongs to; None if nothing does."""
        error = sys.exc_info()[1]
        if error is None and not hasattr(sys, "ps1"):  # at a prompt a program goes on after each of them
            kept = getattr(sys, "last_value", None)
            error = None if kept is self._last else kept
        if isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit):
            return None
        return None if isinstance(error, SystemExit) and error.code in (None, 0) else error

    def settle(self) -> None:
        """Return once all signals that have come are noted."""
        if self._pipe is None or self._ending:
            return
        self._heard.clear()
        with suppress(OSError):  # it is full: nothing is read any more
            os.write(self._pipe[1], bytes([NO_SIGNAL]))
            self._heard.wait(SETTLES)

    def _let_go(self) -> None:
        while self._off:
            self._off.pop()()
        if signal.getsignal(signal.SIGTERM) is self._handler:
            _default(signal.SIGTERM)
        if self._pipe is not None and threading.current_thread() is threading.main_thread():
            before = signal.set_wakeup_fd(-1)
            if before != self._pipe[1]:  # somebody else's
                signal.set_wakeup_fd(before)

    def _listen(self) -> bool:
        """Have our handler on SIGTERM where there is none, and a thread that is told of it."""
        if threading.current_thread() is not threading.main_thread() or os.name == "nt":
            handler: object = signal.getsignal(signal.SIGTERM)
            return handler is self._handler
        if self._pipe is None:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[1], False)
            threading.Thread(target=self._hear, args=self._pipe[:1], name="tracker_diag-end", daemon=True).start()
            atexit.register(self._wait)
        # Bytes come here also while the main thread is where no handler is called; whoever uses it already keeps it.
        before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if before not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(before)
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handler)
        return True

    def _wait(self) -> None:
        """The program ends by itself while SIGTERM is about to end it: as without us, the signal wins."""
        if self._ending:
            time.sleep(2 * exit_timeout())

    def forked(self) -> None:
        """A fork ends as it would without us, and its runs are its own."""
        self._runs.clear()
        self._ending = False
        self._let_go()
        if self._pipe is not None:
            atexit.unregister(self._wait)
            for end in self._pipe:
                os.close(end)
            self._pipe = None

    def _wake(self) -> None:
        self._ending = True
        if self._pipe is not None:
            with suppress(OSError):  # it is full: the thread is awake
                os.write(self._pipe[1], bytes([signal.SIGTERM]))

    def _hear(self, end: int) -> None:
        while numbers := os.read(end, 256):
            if signal.SIGTERM in numbers and (self._runs or self._ending):
                ending = Ending("signal", "SIGTERM", time.time(), _stacks())
                handler: object = signal.getsignal(signal.SIGTERM)
                if self._ending or handler is self._handler:
                    self._end(ending)
                for run in tuple(self._runs):  # a handler of the user's has it
                    run.noted(ending)
            if NO_SIGNAL in numbers:
                self._heard.set()

    def _end(self, ending: Ending) -> None:
        self._ending = True
        runs, begun, seconds = tuple(self._runs), time.monotonic(), exit_timeout()
        try:  # each in a thread of its own: whatever one of them waits for, the end does not
            workers = [_begun(partial(run.ended, ending)) for run in runs]
            _wait_for(workers, begun + AT_ONCE * seconds)
            late = [run for run, worker in zip(runs, workers, strict=True) if worker.is_alive()]
            _wait_for([*workers, *(_begun(run.gave_up) for run in late)], begun + seconds)
        finally:
            _default(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    def _thread_ended(self, before: Callable[[threading.ExceptHookArgs], Any], given: threading.ExceptHookArgs) -> None:
        name = given.thread.name if given.thread else "a thread"
        if given.exc_type is not SystemExit:
            what = f"{_in_words(given.exc_type, given.exc_value)}, in {name}"
            trace = "".join(traceback.format_exception(given.exc_type, given.exc_value, given.exc_traceback))
            for run in tuple(self._runs):
                run.noted(Ending("thread", what, time.time(), trace))
        before(given)


def _begun(call: Callable[[], None]) -> threading.Thread:
    worker = threading.Thread(target=call, name="tracker_diag-last", daemon=True)
    with suppress(RuntimeError):  # the interpreter ends already, and each run with it
        worker.start()
    return worker


def _wait_for(workers: Sequence[threading.Thread], until: float) -> None:
    for worker in workers:
        if worker.ident is not None:
            worker.join(max(0.0, until - time.monotonic()))


def of_exception(error: BaseException) -> Ending:
    """The ending that `error` is."""
    trace = "".join(traceback.format_exception(error))
    return Ending("exception", _in_words(type(error), error), time.time(), trace)


def _in_words(kind: type[BaseException], error: BaseException | None) -> str:
    """The error's kind and its message, in one line."""
    return " ".join("".join(traceback.format_exception_only(kind, error)).split())[:500]


def _stacks() -> str:
    """Where each thread is that is none of ours, or why nobody knows; it never raises."""
    with suppress(Exception):
        return _stacks_now()
    try:  # once more: the threads go on meanwhile, and so does what is cached of their source
        return _stacks_now()
    except Exception as error:  # noqa: BLE001  # nothing may keep the process from ending
        return f"the stacks of the threads cannot be read: {error!r}"


def _stacks_now() -> str:
    """Where each thread is that is none of ours; the main thread last, as it is where the program is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    # It is documented, and there is no other way.
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        name = names.get(ident, str(ident))
        if not name.startswith("tracker_diag"):
            parts.append(f"Thread {name}:\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(sorted(parts, key=lambda part: part.startswith("Thread MainThread")))


def _default(number: int) -> None:
    """Have the signal `number` end the process again; Python's own call works in the main thread alone."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_DFL)
    else:
        ctypes.CDLL(None).signal(number, ctypes.c_void_p(0))


PROCESS = Process()

if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=PROCESS.forked)
