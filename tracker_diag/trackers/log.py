"""Log: alerts into Python's logging, and the verdict at the end into the terminal; for those who look nowhere else."""

import logging
import shlex
from collections.abc import Callable, Sequence

from tracker_diag.records import Table
from tracker_diag.report.console import Screen, say
from tracker_diag.report.terminal import verdict
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.tracker import Tracker

_log = logging.getLogger("tracker_diag")
_log.addHandler(Screen())


class LogTracker(Tracker):
    """Tells whoever reads the log; `others` gives the trackers by which the run can be looked at."""

    name = "log"
    local = True

    def __init__(self, others: Callable[[], Sequence[Tracker]]) -> None:
        self._others = others

    def alert(self, step: int, notice: Notice) -> None:
        lines = [notice.title, *notice.text.splitlines(), *(f"See: {page}" for page in self._pages()[:1])]
        _log.log(logging.INFO if notice.level == "info" else logging.WARNING, "%s", "\n  ".join(lines))

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        if summary.steps:
            sources = [tracker.source for tracker in self._others() if tracker.source]
            again = f"tracker-diag diagnose {shlex.quote(sources[0])}" if sources else ""
            where = [page for page in self._pages() if page != again]
            say(verdict(summary, where=where, again=again, explains="run.diag.explain()"))

    def _pages(self) -> list[str]:
        return [tracker.page for tracker in self._others() if tracker.page]
