"""Live: keeps the context record of a run that is underway, and leaves a postmortem where it does not end by itself.

It is told of the run as a tracker is, so that nothing else needs to know of it. The files go into
`.tracker_diag/postmortem/<run>`, and to each tracker that keeps files, under `diag/`.
"""

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from rich.text import Text

from tracker_diag.health import folder
from tracker_diag.monitor.context import FILE, Context, code_here, context_of, versions_here
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.records import Table
from tracker_diag.report.console import near, say, unbroken
from tracker_diag.report.tokens import worst_table
from tracker_diag.rules.triage import Summary
from tracker_diag.runs.postmortem.folder import NAME, PAGE, Ending, Remains, of_nan, write
from tracker_diag.runs.postmortem.signals import PROCESS, of_exception
from tracker_diag.scrub import secrets_of, without_secrets
from tracker_diag.tensors.suspicions import SETTLED
from tracker_diag.trackers.delivery.journal import file_name
from tracker_diag.trackers.tracker import End, Entry, Event, File, Metrics, Tracker, give

RECENT = 120.0
"""Seconds after a signal that a handler of the user's has taken in which the run's end is put down to it."""

_log = logging.getLogger("tracker_diag")

_of: "dict[Monitor, Postmortem]" = {}
"""Of the runs that are underway."""


class Postmortem(Tracker):
    """Of one run. Use `leave_one`."""

    name = NAME
    takes = (Metrics, Table, Event, End)
    local = True
    outside = True

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._place = folder().absolute() / NAME
        self._versions, self._code = versions_here(), code_here()
        self._steps = 0
        self._kept = False
        """Whether the trackers have the context record."""
        self._tables: dict[str, Table] = {}
        self._events: list[tuple[int, str]] = []
        self._noted: list[tuple[Ending, int | None]] = []
        """What may have ended the run, and the step that was underway then."""
        self._turn = Lock()
        self._written: Path | None = None

    @property
    def context(self) -> Context:
        """The context record as it stands."""
        return context_of(self._monitor.config, self._versions, self._code)

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        for entry in entries:
            if isinstance(entry, Table):
                self._tables[entry.name] = entry
            elif isinstance(entry, Event):
                self._events.append((step, entry.text))
            elif isinstance(entry, Metrics):
                self._steps += 1
                if self._steps == SETTLED:  # settings may be logged after the run is wrapped
                    self._keep_context()
            elif isinstance(entry, End):
                self._end(entry.summary, entry.tables)

    def _end(self, summary: Summary, tables: Sequence[Table]) -> None:
        """Before the trackers are closed."""
        self._tables |= {table.name: table for table in tables}
        if not self._kept and self._steps:
            self._keep_context()
        PROCESS.settle()
        endings = tuple(self._endings(summary))
        if endings and self._written is None:
            self._write(self._remains(endings, summary))
        if self._written is not None:
            for file in self._written.iterdir():
                self._hand_over(f"{NAME}/{file.name}", file.read_text(encoding="utf-8"))
            say(unbroken(Text.assemble(("tracker_diag: ", "dim"), "postmortem in  ", near(self._written / PAGE))))

    def noted(self, ending: Ending) -> None:
        """Something came that may end the run."""
        self._noted.append((ending, self._monitor.step))

    def ended(self, ending: Ending) -> None:
        """The process ends within seconds: write, then have the trackers told."""
        self.noted(ending)
        try:
            summary = self._monitor.summary()
            self._tables |= {table.name: table for table in (self._monitor.slices_table(), worst_table(summary.worst))}
            self._write(self._remains((ending,), summary))
        except Exception as error:  # noqa: BLE001  # the trackers are told all the same
            self._monitor.record("internal_errors", error)
        self._monitor.close()

    def gave_up(self) -> None:
        """The diagnostics do not answer: write what is known without them."""
        with suppress(Exception):  # nobody is left to be told
            self._write(self._remains(tuple(ending for ending, _ in self._noted), None))

    def _keep_context(self) -> None:
        """Give the record to the trackers, and say once what it lacks."""
        self._kept, context = True, self.context
        text = json.dumps(context.to_json(), indent=1)
        self._hand_over(FILE, without_secrets(text, secrets_of(self._monitor.config)))
        if context.missing:
            lacks = f"the context record, which the run is repeated from, lacks {'; '.join(context.missing)}"
            say(Text.assemble(("tracker_diag: ", "dim"), f"{lacks}: see docs/postmortem.md"))

    def _endings(self, summary: Summary) -> Iterator[Ending]:
        """What has ended the run, the strongest first; nothing where it ends by itself."""
        if error := PROCESS.exception():
            yield of_exception(error)
        if why := self._monitor.guards.stopped:
            yield Ending("stop", why)
        for ending, step in self._noted:
            recent = ending.at is not None and time.time() - ending.at < RECENT
            # A thread whose exception ended it, and since then nothing was logged: it was the one that trains.
            if step == self._monitor.step if ending.cause == "thread" else recent:
                yield ending
        yield from of_nan(summary)

    def _remains(self, endings: tuple[Ending, ...], summary: Summary | None) -> Remains:
        monitor = self._monitor
        run, source = _named(monitor)
        return Remains(
            run,
            source,
            endings,
            self.context,
            summary,
            tuple(table for table in self._tables.values() if table.rows),
            tuple(self._events),
            dict(monitor.health),
            tuple(monitor.failures),
            secrets_of(monitor.config),
        )

    def _write(self, remains: Remains) -> None:
        """Once: what comes later knows no more."""
        with self._turn:
            if self._written is None:
                self._written = write(remains, self._place / file_name(remains.run))

    def _hand_over(self, name: str, text: str) -> None:
        for tracker in self._monitor.trackers:
            with self._monitor.guard("tracker_errors"):
                give(tracker, self._monitor.step or 0, [File(name, text)])


def _named(monitor: Monitor) -> tuple[str, str]:
    """The run's name, as its journal has it, and what `tracker-diag diagnose` reads it from."""
    sources = [tracker.source for tracker in monitor.trackers if tracker.source]
    names = [f"{tracker.name}-{run}" for tracker in monitor.trackers if (run := tracker.address.get("run"))]
    return names[0] if names else f"run-{os.getpid()}", sources[0] if sources else ""


def leave_one(monitor: Monitor) -> None:
    """Have `monitor` keep the run's context record, and leave a postmortem if the run does not end by itself."""
    if monitor not in _of:
        with monitor.guard("internal_errors"):
            _of[monitor] = postmortem = Postmortem(monitor)
            if not PROCESS.watch(postmortem):
                _log.warning("SIGTERM would end this run without a postmortem: attach to it in the main thread")
            monitor.add(postmortem)
            monitor.at_close(lambda: PROCESS.leave(_of.pop(monitor)))
