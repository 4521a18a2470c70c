"""Log: alerts into Python's logging, and the verdict at the end into the terminal; for those who look nowhere else."""

import logging
from collections.abc import Callable, Sequence

from tracker_diag.backends.base import Backend
from tracker_diag.records import Table
from tracker_diag.report.console import Screen, say
from tracker_diag.report.terminal import short_verdict
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.triage import Summary

_log = logging.getLogger("tracker_diag")
_log.addHandler(Screen())


class LogBackend(Backend):
    """Tells whoever reads the log; `where` gives the places in which the run can be looked at."""

    name = "log"
    local = True

    def __init__(self, where: Callable[[], Sequence[str]]) -> None:
        self._where = where

    def alert(self, step: int, notice: Notice) -> None:
        lines = [notice.title, *notice.text.splitlines(), *(f"See: {place}" for place in self._where()[:1])]
        _log.log(logging.INFO if notice.level == "info" else logging.WARNING, "%s", "\n  ".join(lines))

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        if summary.steps:
            say(short_verdict(summary, self._where()))
