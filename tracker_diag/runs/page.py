"""A finished run as it is shown: the verdict with its curves, what its keys were read as, and the page."""

import math
from collections.abc import Mapping

from rich.console import RenderableType

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.report.html import render_html
from tracker_diag.report.terminal import verdict
from tracker_diag.report.timeline import LABEL
from tracker_diag.rules.findings import Finding
from tracker_diag.runs.diagnose import Cost, Diagnosis

MOST_CURVES = 12
CURVES_ON_SCREEN = 3


def on_screen(found: Diagnosis) -> RenderableType:
    """The verdict with the curves that it rests on: the outcome's, and those of what broke first and of its damage."""
    first = found.summary.first_break
    of_first = next((one.findings for one in found.summary.incidents if one.cause is first), ())
    names = [one.series for one in found.summary.best] + [_curve_of(found, one) for one in of_first]
    known = [name for name in dict.fromkeys(names) if name in found.series][:CURVES_ON_SCREEN]
    curves = {_with_ends(name, found.series[name]): found.series[name] for name in known}
    cost = cost_text(found.cost(first)) if first else ""
    return verdict(found.summary, curves=curves, cost=cost, live=found.live)


def _with_ends(name: str, points: Mapping[int, float]) -> str:
    """`name` with the smallest and the largest value, as the label of a curve."""
    values = [value for value in points.values() if math.isfinite(value)]
    ends = f" {min(values):.2g} to {max(values):.2g}" if values else ""
    short = name.removeprefix(PREFIX)
    room = LABEL - len(ends)
    return (short if len(short) <= room else f"{short[: room - 1]}…") + ends


def cost_text(cost: Cost) -> str:
    """What was spent, in words: steps, wall time and GPU-hours as far as they are known."""
    parts = [f"{cost.steps:,} steps"]
    if cost.seconds is not None:
        units = ((3600, "h", 1), (60, "min", 0), (1, "s", 0))
        size, unit, digits = next((one for one in units if cost.seconds >= one[0]), units[-1])
        parts.append(f"{cost.seconds / size:.{digits}f} {unit}")
    if cost.gpu_hours is not None:
        parts.append(f"{cost.gpu_hours:,.0f} GPU-hours" if cost.gpu_hours >= 10 else f"{cost.gpu_hours:.1f} GPU-hours")
    return ", ".join(parts)


def about_keys(found: Diagnosis) -> str:
    """What the run's own keys were read as, which were not, and what was odd about the source."""
    keys = found.keys
    read_as = f"read as {keys.framework}" if keys.framework else "no framework recognised, well-known names were read"
    text = f"{read_as}: {len(keys.mapped)} of {len(keys.mapped) + len(keys.unmapped)} keys."
    if keys.unmapped:
        more = f" and {len(keys.unmapped) - 8} more" if len(keys.unmapped) > 8 else ""
        text += f" Not read: {', '.join(keys.unmapped[:8])}{more}."
    if found.algorithm:
        text += f" Limits are those of {found.algorithm}."
    notes = "; ".join(note.rstrip(".") for note in found.run.notes)
    return f"{text} Of the source: {notes}." if notes else text


def run_page(found: Diagnosis) -> str:
    """One self-contained page: the verdict, the time line with its curves, the incidents, who could not see."""
    causes = [one for incident in found.summary.incidents for one in incident.findings]
    names = [one.series for one in found.summary.best] + [_curve_of(found, one) for one in causes]
    known = [name for name in dict.fromkeys(names) if name in found.series][:MOST_CURVES]
    curves = {name.removeprefix(PREFIX): found.series[name] for name in known}
    return render_html(found.summary, [], {}, about_keys(found), curves)


def _curve_of(found: Diagnosis, finding: Finding) -> str | None:
    """The first series of the evidence that can be drawn, one that holds if there is one."""
    names = (key for reading in sorted(finding.evidence, key=lambda one: not one.holds) for key in reading.keys)
    return next((name for name in names if name in found.series), None)
