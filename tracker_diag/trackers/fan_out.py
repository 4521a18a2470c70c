"""Fan-out: every step of the run to several trackers; the failure of one is no other's."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TypeAlias

from tracker_diag.errors import DiagError
from tracker_diag.health import Health
from tracker_diag.records import Drawing, Record, Scalar, Table
from tracker_diag.report.markdown import note_on
from tracker_diag.report.picture import picture
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import LIVE, Summary
from tracker_diag.scrub import without_secrets
from tracker_diag.trackers.delivery.journal import Unsynced
from tracker_diag.trackers.delivery.outbox import Outbox, Undelivered
from tracker_diag.trackers.log import LogTracker
from tracker_diag.trackers.tracker import (
    LINKS,
    PICTURE,
    Description,
    End,
    Entry,
    Event,
    File,
    Metrics,
    Standing,
    Tracker,
    give,
    writing,
)

BeforeSend: TypeAlias = Callable[[Entry], Entry | None]
"""Is given each entry before a tracker is; gives what is sent in its place, or None where nothing is to be."""


OWN_KINDS: dict[type[Exception], str] = {Unsynced: "sync_errors", Undelivered: "undelivered"}
"""Errors that are logged whatever failed before."""


class FanOut:
    """Writes to the log and to `trackers`, to each that is not local through an `Outbox` of its own.

    Args:
        log: whether alerts go to the log at all; they do once there is a tracker, or from `tell_people` on.
        before_send: of the user, for all that goes to trackers; where it raises nothing is sent, and that is counted.
    """

    def __init__(self, health: Health, *, log: bool, before_send: BeforeSend | None = None) -> None:
        self._before_send = before_send
        self.trackers: tuple[Tracker, ...] = ()
        self._outside: tuple[Tracker, ...] = ()
        self.tells = False
        """Whether alerts go to the log."""
        self._log = LogTracker(lambda: self.trackers) if log else None
        self._health = health

    def attach(self, tracker: Tracker) -> None:
        if tracker.outside:
            self._outside += (tracker,)
            return
        self.tell_people()
        with self._guard():
            tracker.listen(None)
        self.trackers += (tracker if tracker.local or isinstance(tracker, Outbox) else Outbox(tracker),)

    def tell_people(self) -> None:
        """From now on, write alerts to the log."""
        self.tells = self._log is not None

    @property
    def _all(self) -> tuple[Tracker, ...]:
        log = (self._log,) if self._log and self.tells else ()
        return (*log, *self._outside, *self.trackers)

    def step(
        self,
        step: int,
        own: Mapping[str, float],
        records: Sequence[Record],
        news: Sequence[Finding | Standing],
        notices: Sequence[Notice],
        *,
        so_far: Callable[[], Summary],
    ) -> None:
        """One step of the run: the trainer's own metrics, our records, and what the rules say of them.

        Where a person hears of something bad, the decision on the run `so_far` comes with it, and its picture.
        """
        loud = any(notice.level != "info" for notice in notices)
        drawings, descriptions = self._decision(so_far, f"As of step {step}.") if loud else ([], [])
        self._write(step, [Metrics(own), *records, *drawings], [*news, *notices, *descriptions])

    def events(
        self, step: int, events: Sequence[str], news: Sequence[Finding | Standing], notices: Sequence[Notice]
    ) -> None:
        """What was done on purpose at `step`, and the findings that ended by it."""
        self._write(step, [], [*map(Event, events), *news, *notices])

    def hand_over(self, step: int, *entries: Entry) -> None:
        """Write what is of no step of the training, such as a file: to the trackers, and not to the log."""
        for entry in self._passed(entries):
            for tracker in self.trackers:
                with self._guard():
                    give(tracker, step, [entry])

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        """Write the end to all of them first: while one that is down is waited for, the others finish."""
        summary = self._named(replace(summary, over=True))
        drawings, descriptions = self._decision(lambda: summary)
        self._write(summary.last_step or 0, drawings, [*descriptions, End(summary, tables)])
        for tracker in self._all:
            with self._guard():
                tracker.close()
            self._collect(tracker)

    def _named(self, summary: Summary) -> Summary:
        """`summary` of a live run under the name by which the run is found later, if a tracker has one."""
        names: list[str] = []
        with self._guard():
            names = [tracker.source for tracker in self.trackers if tracker.source]
        return replace(summary, source=names[0]) if names and summary.source == LIVE else summary

    def _decision(self, so_far: Callable[[], Summary], below: str = "") -> tuple[list[Drawing], list[Description]]:
        """The picture and the description of the run `so_far`, where there is somebody to show them.

        There is no picture where nothing is to be pointed at.
        """
        if self.trackers:
            with self._health.guard("internal_errors"), writing():
                summary = self._named(so_far())
                shown, note = picture(summary), note_on(summary, LINKS, PICTURE)
                return [shown] if shown else [], [Description(f"{note}\n\n{below}".strip(), summary.over)]
        return [], []

    def _write(self, step: int, together: Sequence[Entry], single: Sequence[Entry]) -> None:
        """Give entries to each tracker, each `single` one by itself: a record that cannot be written costs no alert."""
        parts = [together, *([entry] for entry in single)]
        sent = [entries for part in parts if (entries := self._passed(part))]
        for tracker in self._all:
            for part in sent:
                with self._guard():
                    give(tracker, step, part)
            self._collect(tracker)

    def _passed(self, entries: Sequence[Entry]) -> list[Entry]:
        """The `entries` as they may leave the process."""
        passed: list[Entry] = []
        waiting = iter(entries)
        while True:  # one guard for as many as raise nothing: it costs more than what it guards
            with self._guard():
                for entry in waiting:
                    clean = scrubbed(entry)
                    kept = self._before_send(clean) if self._before_send else clean
                    passed += [] if kept is None else [kept]
                return passed

    def flush(self, seconds: float) -> bool:
        """Wait until all trackers have what they were given, at most so long; whether they have."""
        deadline = time.monotonic()
        try:
            deadline += float(seconds)
        except (TypeError, ValueError, OverflowError):
            error = DiagError(f"flush: timeout: {seconds!r} given, expected seconds; it waited for nothing")
            self._health.record("internal_errors", error)
        return all(tracker.wait(deadline) for tracker in self.trackers if isinstance(tracker, Outbox))

    @contextmanager
    def _guard(self) -> Generator[None, None, None]:
        with self._health.guard("tracker_errors"), writing():
            yield

    def _collect(self, tracker: Tracker) -> None:
        counts, errors = tracker.tally.taken()
        self._health.counts.update(counts)
        for error in errors:
            self._health.record(OWN_KINDS.get(type(error), "tracker_errors"), error)


def scrubbed(entry: Entry) -> Entry:
    """An entry with stars in place of secrets in what it says."""
    if isinstance(entry, Scalar):  # as most are, which say nothing
        return entry
    if isinstance(entry, Notice):
        title, text, headline = map(without_secrets, (entry.title, entry.text, entry.headline))
        return replace(entry, title=title, text=text, headline=headline)
    if isinstance(entry, Event | Description | File):
        return replace(entry, text=without_secrets(entry.text))
    if isinstance(entry, End):
        return replace(entry, tables=[_table(table) for table in entry.tables])
    return _table(entry) if isinstance(entry, Table) else entry


def _table(table: Table) -> Table:
    clean = cache(without_secrets)
    rows = (tuple(clean(cell) if isinstance(cell, str) else cell for cell in row) for row in table.rows)
    return replace(table, rows=tuple(rows))
