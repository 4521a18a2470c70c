"""One run of a watch: what its tracker lists, what is kept of it, and its row in the table."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from hashlib import sha256

from pydantic import BaseModel, ConfigDict

from tracker_diag.report.curves import main_finding
from tracker_diag.report.decision import what
from tracker_diag.report.fleet import LEVELS, FleetRow, curves_of
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.logged import LiveFinding, is_ours
from tracker_diag.rules.triage import diagnose_command
from tracker_diag.runs.diagnose import RUNTIME, Diagnosis, SoFar
from tracker_diag.scrub import without_password
from tracker_diag.trackers.finished import FinishedRun, Listed
from tracker_diag.trackers.open import read_run

QUIET = 5.0
"""Seconds without news after which the last row is complete: trackers write a step's metrics separately."""
SILENT = 1200.0
"""Seconds without news after which a run is called silent."""
STALE = 3600.0
"""Seconds without news after which a file counts as ended."""

MISSED_INSIDE = "found here; the diagnostics in the run did not report it"


class RunState(BaseModel):
    """What is kept of one run."""

    model_config = ConfigDict(extra="forbid")

    row: FleetRow
    underway: bool
    """Whether the run was still going when it was first judged. A run that had ended is judged by its length."""
    mark: str = ""
    """The mark of the rows that were judged and whose alerts were all sent."""
    sent: dict[str, list[str]] = {}
    """Ids of the notices that were sent, by receiver."""


class WatchedRun:
    """One run, with what the state has of it; None before its first diagnosis."""

    def __init__(self, listed: Listed, kept: RunState | None) -> None:
        self.listed = listed
        self.kept = kept or RunState(row=FleetRow("", "unknown", ""), underway=True)
        self.judged = self.kept.mark
        """The mark of the rows that were judged completely."""
        self.notices: list[Notice] = []
        """The alerts of the last diagnosis, without those that the run sends itself."""
        self.gone = False
        self.problem = ""
        """Why it could not be read the last time."""
        self.rests_until = 0.0
        self.so_far = SoFar()

    @property
    def key(self) -> str:
        """What it is kept under."""
        return without_password(self.listed.source)

    @property
    def due(self) -> bool:
        """Whether it has rows that were not judged, and has rested."""
        mark = self.listed.mark
        return bool(mark) and mark != self.judged and time.monotonic() >= self.rests_until

    def readable(self) -> tuple[FinishedRun, bool]:
        """The run without rows that are not complete yet, and whether these are all."""
        run, listed = read_run(self.listed.source), self.listed
        rows = run.rows
        if listed.last is not None:  # a later row may have some of its metrics and lack others
            rows = {step: row for step, row in rows.items() if step <= listed.last}
        age = -math.inf if listed.updated is None else time.time() - listed.updated
        complete = bool(listed.over) or has_ended(run) or age > STALE or (not listed.cut and age >= QUIET)
        return replace(run, rows=rows if complete else dict(list(rows.items())[:-1])), complete

    def ended_before(self, began: float) -> bool:
        """Whether it had ended at `began`, in seconds since 1970."""
        updated, over = self.listed.updated, self.listed.over
        return updated is not None and over != "" and updated < began - (0.0 if over else STALE)

    def judge(self, diagnosis: Diagnosis) -> None:
        """Take over what `diagnosis` says."""
        read, summary = diagnosis.run, diagnosis.summary
        live = [finding for finding in diagnosis.live if finding.severity != "info"]
        inside = any(is_ours(key) for row in read.rows.values() for key in row)
        over = bool(self.listed.over) or has_ended(read)
        # The diagnostics in a run send its alerts; that they missed one is known at its end.
        self.notices = []
        for notice in () if inside and (live or not over) else diagnosis.notices:
            text = f"{notice.text}\nSee: {diagnose_command(self.key)}"
            name = short_hash(self.key, notice.step, notice.level, notice.title)
            self.notices.append(replace(notice, text=text, id=name))
        missed = inside and over and not live and summary.first_break is not None
        self.kept.row = _row(self.listed.name, diagnosis, live, MISSED_INSIDE if missed else "")

    @property
    def row(self) -> FleetRow:
        """Its row in the table."""
        listed, row = self.listed, self.kept.row
        problem = f"cannot be read: {self.problem}" if self.problem and row.step is not None else self.problem
        if listed.state and row.step is not None:
            row = replace(row, level=min(row.level, _level(listed.state), key=LEVELS.index))
            if listed.first_break:
                text, _, rule = listed.first_break.removesuffix(")").rpartition(" (")
                row = replace(row, rule=rule, first_break=f"{rule}: {text.rpartition(' @')[0]}")
        activity, active = self._activity(row)
        note = "; ".join(filter(None, (problem, row.note)))
        return replace(row, run=listed.name, activity=activity, active=active, note=note)

    def _activity(self, row: FleetRow) -> tuple[str, bool]:
        """What it does, and whether more rows are expected."""
        updated = self.listed.updated
        if self.gone:
            return "gone", False
        if self.listed.over or not row.active:
            return self.listed.over or "finished", False
        if row.step is None:
            return "no row yet", True
        if updated is not None and time.time() - updated > SILENT:
            then, now = datetime.fromtimestamp(updated).astimezone(), datetime.now().astimezone()
            return f"silent since {then:%H:%M}" if then.date() == now.date() else f"silent since {then:%F %H:%M}", False
        return "running", True


def short_hash(*parts: object) -> str:
    """An id of `parts` that is the same in each process."""
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def has_ended(run: FinishedRun) -> bool:
    """Whether the run says so, or its last row is what Hugging Face's trainers log at the end."""
    last = next(reversed(run.rows.values()), {})
    return run.ended is not None or any(key in last for key in RUNTIME)


def _row(name: str, diagnosis: Diagnosis, live: Sequence[LiveFinding], note: str) -> FleetRow:
    summary, first = diagnosis.summary, main_finding(diagnosis.summary)
    firing = [_level(incident.severity) for incident in summary.incidents if incident.state == "firing"]
    firing += [_level(finding.severity) for finding in live if finding.resolved is None]
    blind = summary.steps > 0 and not diagnosis.series
    calm = "info" if summary.recommendation.action == "watch" else "ok" if summary.judged and not blind else "unknown"
    level = min([*firing, calm], key=LEVELS.index)
    active = not has_ended(diagnosis.run)
    nothing = "none of its metrics is known" if blind else ""
    note = "; ".join(
        filter(None, (note, nothing, *summary.log[:1], *(line.partition(";")[0] for line in summary.short[:1])))
    )
    outcome, tail = curves_of(summary, diagnosis.series)
    row = FleetRow(
        name, level, "", summary.last_step, reward=_reward(diagnosis), active=active, note=note,
        decision=summary.recommendation.in_short, outcome_curve=outcome, tail_curve=tail,
    )  # fmt: skip
    if first is not None:
        end = ", over" if first.state == "resolved" else ""
        text = f"{first.rule.id}: {what(first)}{end}"
        cost, remedy = str(diagnosis.cost(first)), next(iter(first.rule.remedy), "")
        return replace(row, rule=first.rule.id, first_break=text, since=first.onset, cost=cost, remedy=remedy)
    if live:
        place = f" on {live[0].slice}" if live[0].slice not in (None, "all") else ""
        since = live[0].fired if live[0].onset is None else live[0].onset
        return replace(row, rule=live[0].rule, first_break=f"{live[0].rule}{place}, found live", since=since)
    return row


def _level(severity: str) -> str:
    """The level of a run by a severity, or by what its tags say."""
    return severity if severity in ("warn", "error") else "ok"


def _reward(diagnosis: Diagnosis) -> str:
    """The best and the last level of the reward, or else of an evaluation, with as many decimals."""
    outcome = min(diagnosis.summary.best, key=lambda reading: reading.series != "reward", default=None)
    if outcome is None or outcome.baseline is None or outcome.value is None:
        return ""
    size = max(abs(outcome.baseline), abs(outcome.value))
    places = 2 - math.floor(math.log10(size)) if size else 0
    best, last = (f"{round(value, places) + 0.0:.3g}" for value in (outcome.baseline, outcome.value))  # no -0
    return f"{best} → {last}" if outcome.series == "reward" else f"{outcome.series} {best} → {last}"
