"""The time line in a terminal: what was found from onset to end, and curves, over one axis of steps."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rich.table import Table
from rich.text import Text

from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, Incident

STYLE = {"info": "cyan", "warn": "yellow", "error": "red"}

LABEL = 30
"""Columns of the names beside it."""
WIDTH = 48
"""Columns of the axis."""

MOST_LANES = 5
"""Lines of findings; those of the first incident's cause and damage are always among them."""

QUIET, PENDING, FIRING = "·", "░", "█"
BARS = "▁▂▃▄▅▆▇█"


def timeline(
    incidents: Sequence[Incident], first: int, last: int, curves: Mapping[str, Mapping[int, float]] | None = None
) -> Table:
    """A line for each rule and slice, the first incident's cause on top and its damage below, then one for each curve.

    Args:
        incidents: at least one.
        first, last: steps of the run's first and last row.
        curves: by the name that they are shown with, values by step.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=LABEL, max_width=LABEL, overflow="ellipsis")
    table.add_column(no_wrap=True)
    ends = f"{first:<{WIDTH - len(str(last))}}{last}"
    table.add_row(Text("step", style="dim"), Text(ends, style="dim"))
    drawn, left_out = _lanes(incidents)
    for mark, findings in drawn:
        color = STYLE[max((one.severity for one in findings), key=SEVERITIES.index)]
        name = f"{mark}{findings[0].rule.id} {_place(findings[0])}"
        table.add_row(Text(name, style=color), Text(lane(findings, first, last), style=color))
    if left_out:
        table.add_row(Text(f"and {left_out} more", style="dim"), "")
    for name, points in (curves or {}).items():
        table.add_row(name, curve(points, first, last))
    return table


def lane(findings: Sequence[Finding], first: int, last: int) -> str:
    """Findings of one rule and slice on the axis: pending from the onset, firing from when it was told to its end."""
    cells = [QUIET] * WIDTH
    for one in findings:
        fired = _column(last if one.fired is None else one.fired, first, last)
        end = last if one.resolved is None else one.resolved
        for at in range(_column(one.onset, first, last), _column(end, first, last) + 1):
            if cells[at] != FIRING:
                cells[at] = FIRING if at >= fired else PENDING
    return "".join(cells)


def curve(points: Mapping[int, float], first: int, last: int) -> str:
    """`points` on the axis, from their smallest mean in a column to their largest; a column without any repeats."""
    columns: dict[int, list[float]] = {}
    for step, value in points.items():
        if math.isfinite(value):
            columns.setdefault(_column(step, first, last), []).append(value)
    if not columns:
        return ""
    means = {at: sum(values) / len(values) for at, values in columns.items()}
    low, high = min(means.values()), max(means.values())
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    drawn, bar = "", " "
    for at in range(WIDTH):
        bar = BARS[round((means[at] - low) * scale)] if at in means else bar
        drawn += bar
    return drawn


def _column(step: int, first: int, last: int) -> int:
    return min(max((step - first) * WIDTH // max(last - first + 1, 1), 0), WIDTH - 1)


Lane: TypeAlias = tuple[str, Sequence[Finding]]


def _lanes(incidents: Sequence[Incident]) -> tuple[list[Lane], int]:
    """What is drawn, each with the mark of its part in the incident, and how many lines are left out."""
    first, *others = incidents
    by_place: dict[tuple[str, str | None, str], list[Finding]] = {}
    for one in [*first.findings, *(other.cause for other in others)]:
        by_place.setdefault(_of(one), []).append(one)
    cause, symptoms, damage = ([_of(one) for one in part] for part in ((first.cause,), first.symptoms, first.damage))
    order = list(dict.fromkeys([*cause, *symptoms, *damage]))
    parts = [place for place in order if place not in cause]
    rest = [place for place in by_place if place not in order]
    # The last part, that is the damage if there is any, always has a line, and so has what else began by itself.
    room = MOST_LANES - 1 - bool(rest)
    shown = parts if len(parts) <= room else [*parts[: room - 1], parts[-1]]
    kept = rest[: MOST_LANES - 1 - len(shown)]
    marks = ["├ "] * (len(shown) - 1) + ["└ "]
    drawn = [("", cause[0]), *zip(marks, shown, strict=False), *(("", place) for place in kept)]
    return [(mark, by_place[place]) for mark, place in drawn], len(by_place) - len(drawn)


def _of(finding: Finding) -> tuple[str, str | None, str]:
    return finding.rule.id, finding.pair, finding.slice


def _place(finding: Finding) -> str:
    return finding.rule.name if finding.slice == "all" else f"{finding.slice} {finding.rule.name}"
