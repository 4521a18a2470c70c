"""Health: failures of the diagnostics are counted, warned of once, and kept; none of them reaches training."""

import logging
import os
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from tracker_diag.errors import DiagError, StepError

_log = logging.getLogger("tracker_diag")


class Health:
    """What has gone wrong so far, and the guards under which everything runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the name in `diag/health/<name>`."""
        self.failures: list[str] = []
        """The first message of each kind."""
        self.strict = True
        """Until one observation has gone well, whatever is wrong with one raises."""
        self._told = 0
        """How many of `failures` were warned of."""
        self._turn = threading.RLock()
        self._counting = threading.Lock()
        self._process = os.getpid()

    def elsewhere(self) -> bool:
        """Whether this is a fork of the process that the diagnostics live in; they stay silent there."""
        return os.getpid() != self._process

    @contextmanager
    def guard(self, kind: str) -> Generator[None, None, None]:
        """`count`, one caller at a time, and the warnings: here, since a handler of them may log to the tracker."""
        with self._turn:
            with self.count(kind):
                yield
            while self._told < len(self.failures):
                message = self.failures[self._told]
                self._told += 1
                kind = message.partition(":")[0]
                _log.warning("%s (training goes on; further ones are counted in diag/health/%s)", message, kind)

    @contextmanager
    def count(self, kind: str) -> Generator[None, None, None]:
        """Count what is raised inside, keep its first message, and go on; a first batch's error goes through."""
        try:
            yield
        except Exception as error:
            if self.strict and kind == "rejected_batches":
                raise
            if isinstance(error, StepError):
                kind = "late_steps"
            elif kind == "rejected_batches" and not isinstance(error, DiagError):
                kind = "internal_errors"
            with self._counting:
                self.counts[kind] += 1
                if self.counts[kind] == 1:
                    self.failures.append(f"{kind}: {type(error).__name__}: {error}")

    def add(self, counted: Mapping[str, int]) -> None:
        """Count what was counted elsewhere."""
        with self._counting:
            self.counts.update(counted)

    def load(self, counts: Mapping[str, int], failures: Sequence[str]) -> None:
        """Go on where these were saved; their warnings were given then."""
        with self._counting:
            self.counts.clear()
            self.counts.update(counts)
            self.failures[:] = failures
            self._told = len(self.failures)
