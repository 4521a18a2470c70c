"""The time line as plain values, that another process may draw: what was found, and the curves below it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tracker_diag.records import Drawing
from tracker_diag.report.curves import Panel, panels
from tracker_diag.report.tables import TIMELINE
from tracker_diag.report.timeline import Role, grouped
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES
from tracker_diag.rules.model import Severity
from tracker_diag.rules.triage import Summary

MOST_LANES, MOST_PANELS = 8, 6
"""Findings and curves that a picture has room for."""


@dataclass(frozen=True)
class Bars:
    """One rule on one slice."""

    role: Role
    title: str
    place: str
    severity: Severity
    spans: Sequence[tuple[int, int, int]]
    """Onset, where it was told, and end of each."""


@dataclass(frozen=True)
class Picture:
    """All that the picture of a run shows."""

    title: str
    says: str
    first: int
    last: int
    marks: Sequence[int]
    """Steps with a line through all of it: the onset of what broke first, and of the damage."""
    events: Sequence[int]
    """Steps at which something was done on purpose: a new baseline, a guard's act."""
    lanes: Sequence[Bars]
    panels: Sequence[Panel]

    def drawing(self) -> Drawing:
        """For a tracker that will have it drawn."""
        lines = [
            {**asdict(one), "lines": {of: [*points.items()] for of, points in one.lines.items()}} for one in self.panels
        ]
        return Drawing(TIMELINE, {**asdict(self), "panels": lines})

    @classmethod
    def of_drawing(cls, of: dict[str, Any]) -> "Picture":
        """The picture that `drawing` was made of, also when it has been JSON meanwhile."""
        drawn = [
            Panel(one["name"], {of: dict(points) for of, points in one["lines"].items()}, one["baseline"])
            for one in of["panels"]
        ]
        kept: dict[str, Any] = {**of, "lanes": [Bars(**one) for one in of["lanes"]], "panels": drawn}
        return cls(**kept)


def picture(summary: Summary) -> Picture | None:
    """What is drawn of a run; None where nothing was found at warn or above: there is nothing to point at."""
    first, last, cause = summary.first_step, summary.last_step, summary.first_break
    if first is None or last is None or cause is None:
        return None
    lanes = grouped([one for one in summary.incidents if one.severity != "info"])[:MOST_LANES]
    place = "" if cause.slice == "all" else f", on {cause.slice}"
    return Picture(
        title=f"{cause.rule.title}{place}, from step {cause.onset}",
        says=f"At step {cause.fired}: {cause.summary}",
        first=first,
        last=last,
        marks=sorted({cause.onset, *(findings[0].onset for role, findings in lanes if role == "damage")}),
        events=sorted({step for step, _ in summary.events}),
        lanes=[_bars(role, findings, last) for role, findings in lanes],
        panels=panels(summary)[:MOST_PANELS],
    )


def _bars(role: Role, findings: Sequence[Finding], last: int) -> Bars:
    rule, slice = findings[0].rule, findings[0].slice
    severities: set[Severity] = {one.severity for one in findings}
    spans = []
    for one in findings:
        end = last if one.resolved is None else one.resolved
        spans.append((one.onset, end if one.fired is None else one.fired, end))
    place = f"{rule.id}{'' if slice == 'all' else f' {slice}'}{', damage' if role == 'damage' else ''}"
    return Bars(role, rule.title, place, max(severities, key=SEVERITIES.index), spans)
