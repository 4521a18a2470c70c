"""Watched: one run of a watch, from how it is listed to what people are told of it and what stands in the table."""

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any, TypeAlias

from tracker_diag.errors import SourceError, without_password
from tracker_diag.report.fleet import LEVELS, FleetRow
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.logged import LiveFinding, told
from tracker_diag.rules.model import Severity
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.runs.follow import Follower, has_said_its_end, is_whole
from tracker_diag.runs.logbook import Logbook
from tracker_diag.runs.page import cost_text
from tracker_diag.runs.telling import Message, Teller
from tracker_diag.trackers.finished import FinishedRun, Listed, one_line
from tracker_diag.trackers.open import read_run

MakesFollower: TypeAlias = Callable[[Mapping[str, Any] | None], Follower]

OFTEN = 60.0
"""Seconds between two times that what was judged is kept on disk, where nothing is to be told."""
SHARE = 10
"""A run is read again after so many times the seconds that reading it took."""
SILENT = 600.0
"""Seconds without anything new after which a run is called silent, if it does not log as rarely as that."""
STALE = 3600.0
"""Seconds after which a file that nobody writes to is as it will stay."""

INSIDE = "its alerts are told by the diagnostics in the run itself"
TOLD = "told by the diagnostics in the run itself"
UNTOLD = "found here, and not told by the diagnostics in the run itself"


class Watched:
    """One run.

    Args:
        known: what the logbook has of it.
        history: it had ended before anybody watched it: what it had to tell is shown, and told nobody.
    """

    def __init__(self, listed: Listed, known: Mapping[str, Any] | None, *, history: bool) -> None:
        self.listed = listed
        self.gone = False
        known = known or {}
        self._follower: Follower | None = None
        self._read = str(known.get("mark", ""))
        """The mark of what was last read."""
        self._history = bool(known.get("history", history))
        self._waiting = [Message.of_state(one) for one in known.get("waiting", ())]
        self._row = FleetRow(**known["row"]) if "row" in known else FleetRow(listed.name, "unknown", "")
        self._gap = float(known.get("gap", 0.0))
        """Seconds between two rows, as a rule."""
        self.worst: Severity | None = known.get("worst")
        """The highest severity of an incident so far, over or not."""
        self._looked = False
        """Whether it was tried to read it."""
        self.problem = ""
        """Why it could not be read the last time."""
        self._again_at = 0.0
        self._kept_at = time.monotonic()
        self._unkept = False

    @property
    def key(self) -> str:
        """What it is kept under."""
        return without_password(self.listed.source)

    @property
    def waits(self) -> bool:
        """Whether somebody has not got all of its alerts yet."""
        return bool(self._waiting)

    def look(self, follower: MakesFollower, logbook: Logbook, teller: Teller, stop: Callable[[], bool]) -> bool:
        """Judge what is new, and tell it; whether the run was read for it.

        Args:
            follower: makes one that goes on from a state, or from the start without one.

        Raises:
            OSError: what was judged or told cannot be kept.
        """
        listed = self.listed
        changed = bool(listed.mark) and listed.mark != self._read
        waits = self._follower is not None and self._follower.waits and self._whole
        read = (changed or waits) and time.monotonic() >= self._again_at
        if read:
            self._judge(follower, logbook, teller, stop)
        if self._unkept and (self._waiting or listed.over or time.monotonic() - self._kept_at > OFTEN):
            self.keep(logbook)
        if self._waiting:
            left = teller.tell(self._waiting)
            self._unkept = self._unkept or left != self._waiting
            self._waiting = left
        if listed.over and not self._waiting and not self._unkept:
            self._follower = None  # on disk, should the run be taken up again
        return read

    @property
    def _whole(self) -> bool:
        updated = self.listed.updated
        stale = updated is not None and time.time() - updated > STALE
        return stale or (not self.listed.cut and is_whole(updated))

    def _judge(self, made: MakesFollower, logbook: Logbook, teller: Teller, stop: Callable[[], bool]) -> None:
        begun, self._looked = time.monotonic(), True
        try:
            run, last = read_run(self.listed.source), self.listed.last
            if last is not None:  # what came while it was read may be there of one metric and not of another
                run = replace(run, rows={step: row for step, row in run.rows.items() if step <= last})
            follower = self._follower or made((logbook.run(self.key) or {}).get("follow"))
            # Until a row is judged as a whole, nothing of it is to be kept: whoever breaks off in between begins again
            # from what was kept before.
            self._follower, self._unkept = None, False
            over = bool(self.listed.over) or has_said_its_end(run)
            notices = follower.take(run, over=over, whole=self._whole, stop=stop)
        except SourceError as error:
            self.problem = str(error).removeprefix(f"{self.key}: ")
            return
        except Exception as error:  # noqa: BLE001  # of a library or a rule; the other runs go on
            self.problem = f"could not be judged: {type(error).__name__}: {one_line(error)}"
            return
        finally:
            self._again_at = time.monotonic() + SHARE * (time.monotonic() - begun)
        self.problem = ""
        self._follower = follower
        left = stop() and follower.waits
        self._read = "" if left else self.listed.mark
        live = [one for one in told(run.rows, run.findings) if one.severity != "info"]
        # One that is watched from inside tells its alerts itself; at its end it is known whether it has.
        if not self._history and not (follower.own and (live or not over)):
            messages = [Message.of(self._with_command(one), self.key, self.listed.name) for one in notices]
            self._waiting += [one for one in messages if teller.waits(one)]
        self._history = self._history and left
        self._unkept = True
        times = [run.seconds[later] - run.seconds[earlier] for earlier, later in pairwise(run.seconds)]
        self._gap = median(times) if times else 0.0
        found = follower.diagnosis(run)
        if found:
            self.worst = found.summary.level
            inside = TOLD if live else UNTOLD if over and found.summary.first_break else INSIDE
            self._row = self._as_found(found, run, follower, live, [inside] * follower.own)

    def _with_command(self, notice: Notice) -> Notice:
        return replace(notice, text=f"{notice.text}\nSee: tracker-diag diagnose {shlex.quote(self.key)}")

    def keep(self, logbook: Logbook) -> None:
        """Put into `logbook` what a watch that comes later has to know.

        Raises:
            OSError: it cannot be written.
        """
        if not self._unkept:
            return
        kept = None if self._follower is None else self._follower.state_dict()
        if kept is None:
            kept = (logbook.run(self.key) or {}).get("follow")
        state = {
            "name": self.listed.name,
            "follow": kept,
            "mark": "" if self._follower and self._follower.waits else self._read,
            "history": self._history,
            "waiting": [one.state_dict() for one in self._waiting],
            "row": asdict(self._row),
            "gap": self._gap,
            "worst": self.worst,
        }
        logbook.keep(self.key, state)
        self._kept_at, self._unkept = time.monotonic(), False

    @property
    def row(self) -> FleetRow:
        """How the run stands now."""
        listed, row = self.listed, self._row
        notes = [row.note] if row.note else []
        if self.problem:
            notes.insert(0, self.problem if row.step is None else f"cannot be read: {self.problem}")
        if listed.state and row.step is not None:
            row = replace(row, level=min(row.level, _level(listed.state), key=LEVELS.index))
            if listed.first_break:
                row = replace(row, rule=listed.first_break.partition(" ")[0], first_break=listed.first_break)
        activity, goes_on = self._activity(row)
        return replace(row, run=listed.name, activity=activity, goes_on=goes_on, note="; ".join(notes))

    def _activity(self, row: FleetRow) -> tuple[str, bool]:
        listed = self.listed
        if self.gone:
            return "gone", False
        if listed.over or not row.goes_on:
            return listed.over or "finished", False
        if row.step is None:
            return ("no row yet" if self._looked or not listed.mark else "not read yet"), True
        if listed.updated is not None and time.time() - listed.updated > max(SILENT, 5 * self._gap):
            return f"silent since {_moment(listed.updated)}", False
        return "running", True

    def _as_found(
        self, found: Diagnosis, run: FinishedRun, follower: Follower, live: Sequence[LiveFinding], notes: list[str]
    ) -> FleetRow:
        summary, first = found.summary, found.summary.first_break
        firing = [_level(one.severity) for one in summary.incidents if one.state == "firing"]
        firing += [_level(one.severity) for one in live if one.resolved is None]
        best, last = _outcome(found)
        if follower.late:
            notes.append(f"{follower.late:,} values came after a later step, left out")
        row = FleetRow(
            self.listed.name,
            min(firing, key=LEVELS.index, default="ok"),
            "",
            follower.step,
            best=best,
            last=last,
            goes_on=not has_said_its_end(run),
            note="; ".join(notes),
        )
        if first is None:
            return _with_first(row, live[0]) if live else row
        place = f" on {first.slice}" if first.slice != "all" else ""
        end = ", over" if first.state == "resolved" else ""
        return replace(
            row,
            rule=first.rule.id,
            first_break=f"{first.rule.id}{place}: {first.rule.title}{end}",
            since=first.onset,
            when=_when(first.onset, found, self.listed),
            cost=cost_text(found.cost(first)),
        )


def _level(severity: str) -> str:
    """How a run stands by a severity, or by what its tags say."""
    return severity if severity in ("warn", "error") else "ok"


def _with_first(row: FleetRow, live: LiveFinding) -> FleetRow:
    """`row`, with what the run itself has told of first."""
    since = live.fired if live.onset is None else live.onset
    place = f" on {live.slice}" if live.slice not in (None, "all") else ""
    return replace(row, rule=live.rule, first_break=f"{live.rule}{place}, found live", since=since)


def _when(onset: int, found: Diagnosis, listed: Listed) -> str:
    """The time of the step `onset`, if it is known."""
    known = {step: at for step, at in found.run.seconds.items() if step >= onset}
    if listed.updated is None or not known or listed.over:
        return ""
    return _moment(listed.updated - (max(found.run.seconds.values()) - next(iter(known.values()))))


def _moment(at: float) -> str:
    """Local time of day, with the date if that is another one."""
    then, now = datetime.fromtimestamp(at).astimezone(), datetime.now().astimezone()
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%Y-%m-%d %H:%M}"


def _outcome(found: Diagnosis) -> tuple[str, str]:
    """The best level of the reward, or of what there is in its place, and the last one; with as many decimals."""
    of_reward = sorted(found.summary.best, key=lambda one: one.series != "reward")
    one = next(iter(of_reward), None)
    if one is None or one.baseline is None or one.value is None:
        return "", ""
    values = (one.baseline, one.value)
    size = max(map(abs, values))
    places = 2 - math.floor(math.log10(size)) if size else 0
    told = [f"{round(value, places) + 0.0:.3g}" for value in values]  # no -0
    return (told[0] if one.series == "reward" else f"{one.series} {told[0]}"), told[1]
