"""A finished run as it is shown: what stands beside a finding, what its keys were read as, and the page with curves."""

from tracker_diag.report.html import render_html
from tracker_diag.report.terminal import sparkline
from tracker_diag.rules.findings import Finding
from tracker_diag.runs.diagnose import Cost, Diagnosis

MOST_CURVES = 12


def lines(found: Diagnosis) -> dict[tuple[str, int], str]:
    """For each finding, by rule and onset: the curve of its first evidence, and what it has cost."""
    beside: dict[tuple[str, int], str] = {}
    for finding in found.summary.findings:
        name = _curve_of(found, finding)
        curve = f"{name} {sparkline(found.series[name])}" if name else ""
        beside[finding.rule.id, finding.onset] = f"{curve}  {cost_text(found.cost(finding))}".strip()
    return beside


def cost_text(cost: Cost) -> str:
    """What was spent, in words: steps, wall time and GPU-hours as far as they are known."""
    parts = [f"{cost.steps:,} steps"]
    if cost.seconds is not None:
        parts.append(f"{cost.seconds / 3600:.1f} h" if cost.seconds >= 3600 else f"{cost.seconds / 60:.0f} min")
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
    """One self-contained page: the verdict, the curves with their onsets, the findings, who could not see."""
    from tracker_diag.report.figures import curve_figure, data_uri

    figures: dict[str, str] = {}
    for finding in found.summary.findings:
        name = _curve_of(found, finding)
        title = f"{finding.rule.id}: {name}"
        if name and finding.fired is not None and title not in figures and len(figures) < MOST_CURVES:
            figure = curve_figure(title, found.series[name], finding.onset, finding.fired)
            figures[title] = data_uri(figure)
    return render_html(found.summary, [], figures, about_keys(found))


def _curve_of(found: Diagnosis, finding: Finding) -> str | None:
    """The first series of the evidence that can be drawn, one that holds if there is one."""
    names = (key for reading in sorted(finding.evidence, key=lambda one: not one.holds) for key in reading.keys)
    return next((name for name in names if name in found.series), None)
