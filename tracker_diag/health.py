"""Health: failures of the diagnostics are counted, warned of once, and kept; none of them reaches training."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from tracker_diag.errors import DiagError, StepError

_log = logging.getLogger("tracker_diag")


class Health:
    """What has gone wrong so far, and the guard under which everything runs, one thread at a time."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the name in `diag/health/<name>`."""
        self.failures: list[str] = []
        """The first message of each kind."""
        self.strict = True
        """Until one observation has gone well, whatever is wrong with one raises."""
        self.turn = threading.RLock()
        """Held by the thread that works on the run."""
        self._process = os.getpid()

    def elsewhere(self) -> bool:
        """Whether this is a fork of the process that the diagnostics live in; they stay silent there."""
        return os.getpid() != self._process

    def record(self, kind: str, error: Exception) -> None:
        """Count `error` under `kind`; the first of a kind is told, and kept."""
        with self.turn:
            self.counts[kind] += 1
            if self.counts[kind] == 1:
                message = f"{kind}: {type(error).__name__}: {error}"
                self.failures.append(message)
                _log.warning("%s (training goes on; further ones are counted in diag/health/%s)", message, kind)

    def tell(self, texts: Iterable[str]) -> None:
        """Say what a person should know of, and no counter counts."""
        for text in texts:
            _log.warning("%s", text)

    @contextmanager
    def guard(self, kind: str) -> Generator[None, None, None]:
        """Count what is raised inside, warn of its first time, and go on; a first batch's error goes through."""
        with self.turn:
            try:
                yield
            except Exception as error:
                if self.strict and kind == "rejected_batches":
                    raise
                if isinstance(error, StepError):
                    kind = "late_steps"
                elif kind == "rejected_batches" and not isinstance(error, DiagError):
                    kind = "internal_errors"
                self.record(kind, error)
