"""One self-contained HTML page: the decision, what it costs, the curves under one cursor, and folded evidence."""

from collections.abc import Callable, Sequence
from typing import Any

from tracker_diag.records import Table
from tracker_diag.report.charts import Chart, Mark, axis_ticks, chart, marks_of
from tracker_diag.report.curves import PLACES, Panel, Role, baselines, panels
from tracker_diag.report.decision import decide, harm_began, since, where
from tracker_diag.report.distributions import rewards, steppers
from tracker_diag.report.evidence import speaks_against, speaks_for
from tracker_diag.report.first_look import remedies, sighted
from tracker_diag.report.note import note_on
from tracker_diag.report.tables import brief, by_growth
from tracker_diag.report.templates import rendered
from tracker_diag.report.tokens import WORST, groups
from tracker_diag.rules.triage import Summary


def render_html(
    summary: Summary,
    tables: Sequence[Table] = (),
    cost: str = "",
    note: str = "",
) -> str:
    """The page. All texts are escaped; it loads nothing from anywhere.

    Args:
        cost: what was spent since the onset of what broke first; the number of steps by default.
        note: what else is to be said, in small print at the end.
    """
    ends = (float(summary.first_step or 0), float(summary.last_step or 0))
    filters: dict[str, Callable[..., Any]] = {
        "cell": _cell,
        "since": since,
        "where": where,
        "speaks_for": speaks_for,
        "speaks_against": speaks_against,
    }
    first = summary.first_break
    return rendered(
        "report.html.j2",
        filters,
        summary=summary,
        first=first,
        decision=decide(summary, cost),
        charts=_charts(summary, ends),
        marks=_marks(summary, ends),
        axis_ticks=axis_ticks(ends),
        ends=ends,
        at=ends[1] if first is None else first.fired,
        about=[(panel.name, panel.metric.meaning) for panel in panels(summary) if panel.metric.meaning],
        tables=[brief(by_growth(table)) for table in tables if table.name != WORST],
        worst=groups(summary.worst),
        steppers=steppers(summary.distributions),
        rewards=rewards(summary.distributions),
        sight=sighted(summary),
        opens=remedies(summary.blind),
        issue=note_on(summary, f"`tracker-diag diagnose {summary.source}`"),
        note=note,
    )


def _charts(summary: Summary, ends: tuple[float, float]) -> dict[Role, list[Chart]]:
    """What is drawn, by its part on the page."""
    first, levels = summary.first_break, baselines(summary)
    drawn: dict[Role, list[Chart]] = {"hero": [], "outcome": [], "evidence": [], "dashboard": []}
    for panel in panels(summary):
        curves = [
            (PLACES.get(name, name), name, points) for name, points in _ordered(panel, first.slice if first else None)
        ]
        usual = panel.role in ("hero", "evidence") and panel.series & levels.keys()
        before = first.onset if first is not None and usual else None
        made = chart(panel.title, panel.unit, curves, ends, log=panel.log, before=before)
        if made is not None:
            drawn[panel.role].append(made)
    return drawn


def _ordered(panel: Panel, slice: str | None) -> list[tuple[str, Any]]:
    """The lines of a panel, that of the finding's slice first."""
    return sorted(panel.lines.items(), key=lambda line: line[0] != slice)


def _marks(summary: Summary, ends: tuple[float, float]) -> list[Mark]:
    """Where the first break began, was detected, did damage and ended."""
    first = summary.first_break
    if first is None:
        return []
    harm = harm_began(summary)
    given = [(float(first.onset), "began", "error")]
    given += [(float(first.fired), "alert", "")] if first.fired is not None else []
    given += [(float(harm), "damage", "error")] if harm is not None else []
    given += [(float(first.resolved), "over", "")] if first.resolved is not None else []
    return marks_of(given, ends)


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value
