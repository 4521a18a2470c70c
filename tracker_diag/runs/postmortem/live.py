"""Live: keeps the context record of a run underway, and leaves a postmortem if it does not end by itself.

It is written to as a tracker is, so that nothing else needs to know of it. The files go into
`.tracker_diag/postmortem/<run>`, and to each tracker that keeps files, under `diag/`. No handler and no hook is set:
Python keeps the exception that ends a program, and `tracker-diag export postmortem` reads a run that was killed.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from weakref import WeakSet

from rich.text import Text

from tracker_diag.health import folder
from tracker_diag.monitor.context import FILE, code_here, context_of, versions_here
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.records import Table
from tracker_diag.report.console import announce, near, unbroken
from tracker_diag.runs.postmortem.folder import NAME, PAGE, Ending, Remains, nan_at_the_end, write
from tracker_diag.tensors.suspicions import SETTLED
from tracker_diag.trackers.delivery.journal import file_name
from tracker_diag.trackers.tracker import End, Entry, Event, File, Metrics, Tracker

_watched: "WeakSet[Monitor]" = WeakSet()


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
        self._error_before = getattr(sys, "last_value", None)
        """The exception that Python kept when the run began."""
        self._steps = 0
        self._tables: dict[str, Table] = {}
        self._events: list[tuple[int, str]] = []

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
                self._end(entry)

    def _end(self, end: End) -> None:
        """Before the trackers are closed."""
        if 0 < self._steps < SETTLED:
            self._keep_context()
        if not (endings := tuple(self._endings(end))):
            return
        tables = self._tables | {table.name: table for table in end.tables}
        monitor = self._monitor
        sources = [tracker.source for tracker in monitor.trackers if tracker.source]
        names = [f"{tracker.name}-{run}" for tracker in monitor.trackers if (run := tracker.address.get("run"))]
        run = names[0] if names else f"run-{os.getpid()}"
        remains = Remains(
            run, sources[0] if sources else "", endings, context_of(monitor.config, self._versions, self._code),
            end.summary, tables=tuple(table for table in tables.values() if table.rows), events=tuple(self._events),
            health=dict(monitor.health), failures=tuple(monitor.failures),
        )  # fmt: skip
        written = write(remains, self._place / file_name(run))
        for file in written.iterdir():
            monitor.hand_over(File(f"{NAME}/{file.name}", file.read_text(encoding="utf-8")))
        announce(unbroken(Text.assemble(("tracker_diag: ", "dim"), "postmortem in  ", near(written / PAGE))))

    def _keep_context(self) -> None:
        """Give the record to the trackers, and say once what it lacks."""
        context = context_of(self._monitor.config, self._versions, self._code)
        self._monitor.hand_over(File(FILE, json.dumps(context.to_json(), indent=1)))
        if context.missing:
            lacks = f"to repeat this run, its record lacks {', '.join(context.missing)}"
            announce(Text.assemble(("tracker_diag: ", "dim"), f"{lacks}: see docs/postmortem.md"))

    def _endings(self, end: End) -> Iterator[Ending]:
        """What has ended the run, the strongest first; nothing where it ends by itself."""
        if error := self._exception():
            what = " ".join("".join(traceback.format_exception_only(error)).split())[:500]
            yield Ending("exception", what, "".join(traceback.format_exception(error)))
        if why := self._monitor.guards.stopped:
            yield Ending("stop", why)
        yield from nan_at_the_end(end.summary)

    def _exception(self) -> BaseException | None:
        """What ends the program, or the block that the run belongs to; None if nothing does."""
        error = sys.exc_info()[1]
        if error is None and not hasattr(sys, "ps1"):  # at a prompt a program continues after each of them
            kept = getattr(sys, "last_value", None)
            error = None if kept is self._error_before else kept
        if isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit):
            return None
        return None if isinstance(error, SystemExit) and error.code in (None, 0) else error


def leave_one(monitor: Monitor) -> None:
    """Have `monitor` keep the run's context record, and leave a postmortem if the run does not end by itself."""
    if monitor not in _watched:
        _watched.add(monitor)
        with monitor.guard("internal_errors"):
            monitor.add_tracker(Postmortem(monitor))
            monitor.at_close(_end_by_ctrl_c_all_the_same)


def _end_by_ctrl_c_all_the_same() -> None:
    """Have Python remember that Ctrl-C ends it.

    It forgets that as soon as anything is run from a string, as an import may do; its exit code would be another.
    """
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1"):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102
