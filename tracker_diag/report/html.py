"""One self-contained HTML page: the verdict, the time line, each incident with its evidence, the slices, who sees."""

from collections.abc import Callable, Sequence
from typing import Any

from tracker_diag.records import Table
from tracker_diag.report.curves import panels
from tracker_diag.report.distributions import rewards, steppers
from tracker_diag.report.evidence import damage, outcomes, speaks_against, speaks_for, spent
from tracker_diag.report.first_look import remedies, sighted
from tracker_diag.report.swimlanes import swimlanes
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
    loud = [one for one in summary.incidents if one.severity != "info"]
    first, last = summary.first_step, summary.last_step
    drawn = panels(summary)
    lanes = None if first is None or last is None else swimlanes(loud, first, last, drawn, summary.events)
    filters: dict[str, Callable[..., Any]] = {
        "cell": _cell,
        "speaks_for": speaks_for,
        "speaks_against": speaks_against,
    }
    return rendered(
        "report.html.j2",
        filters,
        summary=summary,
        first=summary.first_break,
        damage=damage(summary),
        cost=cost or spent(summary),
        outcomes=outcomes(summary),
        tables=[brief(by_growth(table)) for table in tables if table.name != WORST],
        worst=groups(summary.worst),
        steppers=steppers(summary.distributions),
        rewards=rewards(summary.distributions),
        swimlanes=lanes,
        sight=sighted(summary),
        opens=remedies(summary.blind),
        earlier=any(part.onset < one.onset for one in loud for part in one.symptoms),
        note=note,
    )


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value
