"""A watch from outside: one run, or all of an experiment, looked at again and again."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from tracker_diag.detect.growth import USUAL
from tracker_diag.errors import SourceError, without_password
from tracker_diag.report.fleet import Fleet
from tracker_diag.rules.model import Rule, Severity
from tracker_diag.runs.follow import Follower
from tracker_diag.runs.logbook import Logbook
from tracker_diag.runs.telling import Channel, Teller
from tracker_diag.runs.watched import STALE, Watched
from tracker_diag.trackers.finished import Gone, Listed
from tracker_diag.trackers.listing import list_runs

_log = logging.getLogger("tracker_diag")


class FleetWatch:
    """Watches `source`, with what it has read and told in `logbook`.

    Args:
        project: whether `source` names several runs.
        rules: what the runs are held against.
        channels: where alerts go.
        expected_runs_between_false_alarms: the dial, as in `Monitor`.
    """

    def __init__(
        self,
        source: str,
        logbook: Logbook,
        *,
        project: bool,
        rules: Sequence[Rule],
        channels: Sequence[Channel],
        expected_runs_between_false_alarms: float = USUAL,
    ) -> None:
        self._source = source
        self._project = project
        self._logbook = logbook
        self._follower = partial(Follower, rules, expected_runs_between_false_alarms=expected_runs_between_false_alarms)
        self._teller = Teller(logbook, channels)
        self._runs: dict[str, Watched] = {}
        self._seen = False
        """Whether it has been seen how the runs stand."""
        self._away = ""
        """Since when, and why, nothing can be reached."""
        self._trouble = ""
        """Why nothing can be kept."""
        for name, known in logbook.runs():
            self._runs[name] = Watched(Listed(name, known["name"], known["mark"]), known, history=False)

    def look(
        self,
        stop: Callable[[], bool] = lambda: False,
        seen: Callable[[Fleet], object] | None = None,
        turn: float = math.inf,
    ) -> Fleet:
        """Look at each run once, at those that go on before those that have ended.

        Args:
            stop: asked now and then whether to leave the rest for another time.
            seen: called with how things stand after each run.
            turn: seconds that one run, and all that have ended, may take before the rest of it waits for the next look.

        Raises:
            MissingExtra: the library that reads this kind of run is not installed.
            SourceError: there is no such source, and there never was.
        """
        self._teller.again()
        self._list()
        ended_from = math.inf
        for run in sorted(self._runs.values(), key=lambda one: bool(one.listed.over)):
            begun = time.monotonic()
            ended_from = min(ended_from, begun if run.listed.over else math.inf)
            late = begun - ended_from > turn
            if stop() or late or not self._looked_at(run, _or_from(begun + turn, stop)):
                break
            if seen:
                seen(self.fleet)
        return self.fleet

    def _looked_at(self, run: Watched, stop: Callable[[], bool]) -> bool:
        """Look at `run`; whether to go on with the others."""
        could = not run.problem
        try:
            run.look(self._follower, self._logbook, self._teller, stop)
        except OSError as error:
            # Nothing was told that was not kept before, so all of it comes again.
            if not self._trouble:
                _log.warning("what was read cannot be kept, and alerts wait until it can: %s", error)
            self._trouble = f"cannot keep what was read in {self._logbook.folder}: {error.strerror or error}"
            return False
        self._trouble = ""
        if could and run.problem:
            self._list()  # else each of many runs would wait for a server that is gone
        return not self._away

    def _list(self) -> None:
        try:
            listed = list_runs(self._source, project=self._project)
        except SourceError as error:
            if not self._runs:
                raise
            for run in self._runs.values():
                run.gone = run.gone or (isinstance(error, Gone) and not self._project)
            if not self._away:
                self._away = f"cannot be reached since {datetime.now().astimezone():%H:%M:%S}: {error}"
                _log.warning("what is watched cannot be reached, and is tried again: %s", error)
            return
        if self._away:
            _log.warning("what is watched can be reached again: %s", without_password(self._source))
        self._away = ""
        there = {without_password(one.source): one for one in listed}
        for name, one in there.items():
            if name in self._runs:
                self._runs[name].listed = one
            else:
                self._runs[name] = Watched(one, None, history=self._ended_before(one))
        if not self._seen:  # what went while nobody watched is shown no more, once all of it is told
            self._runs = {name: run for name, run in self._runs.items() if name in there or run.waits}
            self._seen = True
        for name, run in self._runs.items():
            run.gone = name not in there
        self._runs = {name: self._runs[name] for name in [*there, *(self._runs.keys() - there.keys())]}

    def _ended_before(self, listed: Listed) -> bool:
        """Whether a run of several had ended before anybody watched them."""
        if not self._project or listed.updated is None or listed.over == "":
            return False
        margin = 0.0 if listed.over else STALE
        return listed.updated < self._logbook.began - margin

    @property
    def fleet(self) -> Fleet:
        """How things stand."""
        rows = tuple(run.row for run in self._runs.values())
        return Fleet(without_password(self._source), datetime.now().astimezone(), rows, self._away or self._trouble)

    @property
    def levels(self) -> set[Severity]:
        """The highest severity of an incident in each run that has any."""
        return {run.worst for run in self._runs.values() if run.worst}

    def close(self) -> None:
        """Keep what a watch that comes later has to know, and let go of the logbook.

        Raises:
            OSError: it cannot be written.
        """
        try:
            for run in self._runs.values():
                run.keep(self._logbook)
        finally:
            self._logbook.close()


def _or_from(end: float, stop: Callable[[], bool]) -> Callable[[], bool]:
    """`stop`, which says yes from `end` on in any case."""
    return lambda: stop() or time.monotonic() > end
