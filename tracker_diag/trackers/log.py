"""Log: alerts into Python's logging, and the verdict at the end into the terminal; for those who look nowhere else."""

import logging
from collections.abc import Callable, Sequence

from tracker_diag.report.console import Screen, announce
from tracker_diag.report.terminal import alert, verdict
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.triage import diagnose_command
from tracker_diag.trackers.tracker import End, Entry, Tracker

_log = logging.getLogger("tracker_diag")
_log.addHandler(Screen())


class LogTracker(Tracker):
    """Writes for those who read the log; `others` gives the trackers by which the run can be looked at."""

    name = "log"
    takes = (Notice, End)
    local = True

    def __init__(self, others: Callable[[], Sequence[Tracker]]) -> None:
        self._others = others

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        for entry in entries:
            if isinstance(entry, Notice):
                if any(tracker.shows_alerts for tracker in self._others()):
                    continue
                text = alert(entry, *(f"See: {page}" for page in self._pages()[:1]))
                _log.log(logging.INFO if entry.level == "info" else logging.WARNING, "%s", text)
            elif isinstance(entry, End) and entry.summary.steps:
                sources = [tracker.source for tracker in self._others() if tracker.source]
                again = diagnose_command(sources[0]) if sources else ""
                where = [page for page in self._pages() if page != again]
                announce(verdict(entry.summary, where=where, again=again, explains="run.diag.explain()"))

    def _pages(self) -> list[str]:
        return [tracker.page for tracker in self._others() if tracker.page]
