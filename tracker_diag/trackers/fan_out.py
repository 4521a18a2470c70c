"""Fan-out: every step of the run to several trackers; the failure of one is no other's."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from tracker_diag.health import Health
from tracker_diag.records import Record, Table
from tracker_diag.report.picture import picture
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.log import LogTracker
from tracker_diag.trackers.tracker import Tracker, writing


class FanOut:
    """Hands on to the log and to `trackers`, to each one that is not local through an `Outbox` of its own.

    Args:
        log: whether the log is told of alerts at all; it is once there is a tracker, or from `tell_people` on.
    """

    def __init__(self, health: Health, *, log: bool) -> None:
        self.trackers: tuple[Tracker, ...] = ()
        self._beside: tuple[Tracker, ...] = ()
        self.tells = False
        """Whether the log is told."""
        self._log = LogTracker(lambda: self.trackers) if log else None
        self._health = health

    def add(self, tracker: Tracker) -> None:
        if tracker.beside:
            self._beside += (tracker,)
            return
        self.tell_people()
        tracker.begin()
        self.trackers += (tracker if tracker.local else Outbox(tracker),)

    def tell_people(self) -> None:
        """From now on, tell the log."""
        self.tells = self._log is not None

    @property
    def _all(self) -> tuple[Tracker, ...]:
        log = (self._log,) if self._log and self.tells else ()
        return (*log, *self._beside, *self.trackers)

    @contextmanager
    def _guard(self, kind: str) -> Generator[None, None, None]:
        with self._health.guard(kind), writing():
            yield

    def step(
        self,
        step: int,
        own: Mapping[str, float],
        records: Sequence[Record],
        changed: Sequence[Finding],
        notices: Sequence[Notice],
        *,
        so_far: Callable[[], Summary],
    ) -> None:
        """One step of the run: the trainer's own metrics, our records, and what the rules say of them.

        Where a person is told of something bad, the picture of the run `so_far` goes with it.
        """
        at = time.time()
        if self.trackers and any(notice.level != "info" for notice in notices):
            with self._guard("internal_errors"):
                shown = picture(so_far())
                records = [*records, shown.drawing()] if shown else records
        for tracker in self._all:
            with self._guard("tracker_errors"):
                tracker.metrics(step, own)
                tracker.log(step, records, at)
            self._tell(tracker, step, changed, notices)

    def events(self, step: int, events: Sequence[str], changed: Sequence[Finding], notices: Sequence[Notice]) -> None:
        """What was done on purpose at `step`, and the findings that ended by it."""
        for tracker in self._all:
            for event in events:
                with self._guard("tracker_errors"):
                    tracker.event(step, event)
            self._tell(tracker, step, changed, notices)

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        for tracker in (
            *self._beside,
            *self.trackers,
        ):  # all at once: one that is down is waited for, and the others with it
            with self._guard("tracker_errors"):
                tracker.end(summary, tables)
        for tracker in self._all:
            with self._guard("tracker_errors"):
                tracker.close(summary, tables)
            self._collect(tracker)

    def _tell(self, tracker: Tracker, step: int, changed: Sequence[Finding], notices: Sequence[Notice]) -> None:
        for finding in changed:
            with self._guard("tracker_errors"):
                tracker.finding(step, finding)
        for notice in notices:
            with self._guard("tracker_errors"):
                tracker.alert(step, notice)
        self._collect(tracker)

    def _collect(self, tracker: Tracker) -> None:
        self._health.counts.update(tracker.counts())
        for error in tracker.errors():
            self._health.record("tracker_errors", error)
