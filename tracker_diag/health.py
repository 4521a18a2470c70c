"""Health: failures of the diagnostics are counted, warned of once, and kept; none of them reaches training."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TextIO
from weakref import WeakSet

from tracker_diag.errors import BatchError, DiagError, StepError, disabled, of_a_handler, signal_handlers
from tracker_diag.scrub import without_secrets

P = ParamSpec("P")

_log = logging.getLogger("tracker_diag")


def _starred(record: logging.LogRecord) -> bool:
    record.msg, record.args = without_secrets(record.getMessage()), ()
    return True


_log.addFilter(_starred)


FOLDER = "TRACKER_DIAG_DIR"
"""Environment variable that names the folder for what outlives the process; `.tracker_diag` in the working directory
by default."""


def bare_if_off(make: Callable[P, None]) -> Callable[P, None]:
    """`make`, which sets up a monitor; where the diagnostics are off, one without any of its arguments."""

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> None:
        called: Any = make
        if disabled():
            called(args[0], catalog=False)
        else:
            called(*args, **kwargs)

    return made


def folder() -> Path:
    """The folder for what outlives the process, for the user's eyes alone."""
    return Path(os.environ.get(FOLDER, ".tracker_diag"))


def own_folder(place: Path) -> None:
    """Make the folder `place`, and those above it that lack; nobody but their owner may look into them."""
    for lacking in reversed([above for above in (place, *place.parents) if not above.exists()]):
        lacking.mkdir(exist_ok=True, mode=0o700)


def opened(file: Path) -> TextIO:
    """`file`, emptied, to be written to; nobody but its owner may read it. What has no place in UTF-8 becomes ?."""
    written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    return os.fdopen(written, "w", encoding="utf-8", errors="replace")


def private(file: Path, text: str) -> None:
    """Write `text` to `file`, whole or not at all; nobody else may read it.

    Raises:
        OSError: the folder cannot be made, or the disk is full.
    """
    own_folder(file.parent)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    with opened(part) as written:
        written.write(text)
    part.replace(file)


_in_forks: "WeakSet[Any]" = WeakSet()


def open_in_forks(owner: Any) -> None:
    """Have `owner` make its locks anew in a fork, by `new_locks`: a thread that held one is not there to open it."""
    _in_forks.add(owner)


def _forked() -> None:
    for owner in _in_forks:
        owner.new_locks()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_forked)


class Health:
    """What has gone wrong so far, and the guard under which everything runs, one thread at a time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the name in `diag/health/<name>`."""
        self.failures: list[str] = []
        """The first message of each kind."""
        self.strict = True
        """Until one observation has gone well, each is looked at as a whole."""
        self.fresh = True
        """Before the first observation of a process that has not resumed: what is wrong with its tensors raises."""
        self._handlers: list[object] = []
        """Of signals, when the work of now began."""
        self._process, self._off = os.getpid(), disabled()
        self.new_locks()
        open_in_forks(self)

    def new_locks(self) -> None:
        """Make the locks anew, all of them open."""
        self._depth = 0
        self.turn = threading.RLock()
        """Held by the thread that works on the run."""

    def elsewhere(self) -> bool:
        """Whether this is a fork of the process that the diagnostics live in, or they are off; they are silent then."""
        return self._off or os.getpid() != self._process

    def over(self, *, ended: bool) -> bool:
        """Whether a call is left out: in a fork of the process, and once the run has `ended`, which is counted."""
        if ended and not self.elsewhere():
            self.record("after_close", DiagError("the run that was watched has ended; wrap the one that continues"))
        return ended or self.elsewhere()

    def record(self, kind: str, error: Exception) -> None:
        """Count `error` under `kind`; the first of a kind is logged, and kept."""
        with self.turn:
            self.counts[kind] += 1
            if self.counts[kind] == 1:
                message = without_secrets(f"{kind}: {type(error).__name__}: {error}")
                self.failures.append(message)
                _log.warning("%s (training continues; further ones are counted in diag/health/%s)", message, kind)

    def state_dict(self) -> dict[str, Any]:
        return {"strict": self.strict, "counts": dict(self.counts), "failures": list(self.failures)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue to count where `state` was taken; what holds the counts sees it."""
        self.fresh, self.strict, self.failures[:] = False, state["strict"], state["failures"]
        self.counts.clear()
        self.counts.update(state["counts"])

    def warn(self, texts: Iterable[str]) -> None:
        """Log what a person should know, and no counter counts."""
        for text in texts:
            _log.warning("%s", text)

    @contextmanager
    def guard(self, kind: str) -> Generator[None, None, None]:
        """Count what is raised inside, warn of the first of its kind, and continue.

        That the first batch's tensors do not fit goes through. So does what a signal handler of the user's raises,
        Ctrl-C among it: it may cost the step that it comes in, and is counted as `interrupted_steps`.
        """
        with self.turn:
            if self._depth == 0:
                self._handlers = signal_handlers()
            self._depth += 1
            observes = kind == "rejected_batches"
            try:
                yield
            except Exception as error:
                if observes and self.fresh and isinstance(error, BatchError) and not error.masked:
                    raise
                if of_a_handler(error, self._handlers):
                    self._interrupted()
                    raise
                if isinstance(error, StepError):
                    kind = "late_steps"
                elif kind in ("rejected_batches", "rejected_samples") and not isinstance(error, DiagError):
                    kind = "internal_errors"
                self.record(kind, error)
            except KeyboardInterrupt:
                self._interrupted()
                raise
            finally:
                self._depth -= 1
                self.fresh = self.fresh and not observes

    def _interrupted(self) -> None:
        """Count an interrupt once, in the outermost of the guards that it leaves."""
        self.counts["interrupted_steps"] += self._depth == 1
