"""The time line of a page: bars of what was found, and curves, in parts of one axis of steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tracker_diag.report.curves import Panel
from tracker_diag.report.overlay import overlay
from tracker_diag.report.timeline import Role, grouped
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, Incident
from tracker_diag.rules.model import Severity

MOST_LANES = 24
"""Lines of findings on a page."""

MOST_EVENTS = 100
"""Those that have a mark, the last ones."""

POINTS = 500
"""Of a curve, at most: each the mean of its part of the run."""

TICKS = 5

BASELINE = "baseline"


@dataclass(frozen=True)
class Bar:
    """A finding, or the part of it before it was told; in per cent of the axis."""

    left: float
    width: float
    state: Literal["pending", "firing"]


@dataclass(frozen=True)
class Lane:
    """One rule on one slice."""

    role: Role
    name: str
    title: str
    severity: Severity
    bars: Sequence[Bar]
    says: str
    """The same in words."""


@dataclass(frozen=True)
class Line:
    """The path of an SVG of 1,000 by 100."""

    of: str
    """A slice, "baseline", or "" for a line that is alone."""
    path: str
    last: float


@dataclass(frozen=True)
class Curve:
    """A series, or one statistic of both slices, over one scale."""

    name: str
    low: float
    high: float
    log: bool
    """Whether heights are those of the logarithm."""
    lines: Sequence[Line]
    about: str
    """What it measures, in a line."""


@dataclass(frozen=True)
class Swimlanes:
    """All that is drawn over the axis."""

    ticks: Sequence[tuple[float, int]]
    """Place in per cent, and step."""
    marks: Sequence[tuple[float, int]]
    """Where a line goes through all of it, and its step: the onset of the first incident's cause, and of its damage."""
    lanes: Sequence[Lane]
    curves: Sequence[Curve]
    left_out: int = 0
    """Findings that have no line."""
    events: Sequence[tuple[float, int, str]] = ()
    """Place in per cent, step and text."""


def swimlanes(
    incidents: Sequence[Incident],
    first: int,
    last: int,
    curves: Sequence[Panel],
    events: Sequence[tuple[int, str]] = (),
) -> Swimlanes:
    """What was found between the steps `first` and `last`, and `events`, over the same axis as `curves`."""
    drawn = grouped(incidents)
    whole = [(role, findings) for role, findings in drawn if role in ("cause", "damage")]
    marks = {findings[0].onset for _, findings in whole[:1] + whole[-1:]}
    steps = dict.fromkeys(round(first + (last - first) * i / (TICKS - 1)) for i in range(TICKS))
    return Swimlanes(
        ticks=[(_place(step, first, last), step) for step in steps],
        marks=[(_place(step, first, last), step) for step in sorted(marks)],
        lanes=[_lane(role, findings, first, last) for role, findings in drawn[:MOST_LANES]],
        curves=[one for panel in curves if (one := _curve(panel, first, last))],
        left_out=max(len(drawn) - MOST_LANES, 0),
        events=[(_place(step, first, last), step, text) for step, text in events[-MOST_EVENTS:]],
    )


def _lane(role: Role, findings: Sequence[Finding], first: int, last: int) -> Lane:
    rule = findings[0].rule
    slice = "" if findings[0].slice == "all" else f" {findings[0].slice}"
    bars, says = list[Bar](), list[str]()
    for one in findings:
        end = last if one.resolved is None else one.resolved
        told = end if one.fired is None else one.fired
        since, at, until = (_place(step, first, last) for step in (one.onset, told, end))
        bars += [Bar(since, at - since, "pending")] if at > since else []
        bars.append(Bar(at, until - at, "firing"))
        over = "still there at the end" if one.resolved is None else f"not detected any more at step {one.resolved}"
        says.append(f"onset at step {one.onset}, detected at step {one.fired}, {over}")
    severities: set[Severity] = {one.severity for one in findings}
    worst = max(severities, key=SEVERITIES.index)
    return Lane(role, f"{rule.id}{slice}", rule.title, worst, bars, "; ".join(says))


def _curve(panel: Panel, first: int, last: int) -> Curve | None:
    lines = {of: points for of, points in panel.lines.items() if any(map(math.isfinite, points.values()))}
    if not lines:
        return None
    if panel.baseline is not None:
        lines[BASELINE] = {first: panel.baseline, last: panel.baseline}
    over = overlay([*lines.values()], first, last, POINTS)
    if over is None:
        return None
    values = {
        of: [value for _, value in sorted(points.items()) if math.isfinite(value)] for of, points in lines.items()
    }
    drawn = [Line(of, path, values[of][-1]) for of, path in zip(lines, over.paths, strict=True)]
    shown = [value for of, line in values.items() if of != BASELINE for value in line]
    return Curve(panel.name, min(shown), max(shown), over.log, drawn, panel.about)


def _place(step: int, first: int, last: int) -> float:
    return min(max(100 * (step - first) / max(last - first, 1), 0.0), 100.0)
