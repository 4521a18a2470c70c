"""One self-contained HTML page: the decision, what it costs, the curves under one cursor, and folded evidence."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from tracker_diag.errors import MissingExtra
from tracker_diag.records import Table
from tracker_diag.report import curves
from tracker_diag.report.charts import Chart, axis_ticks, chart, drawn_marks
from tracker_diag.report.decision import decide, marks_of, since, where
from tracker_diag.report.distributions import rewards, steppers
from tracker_diag.report.evidence import speaks_against, speaks_for
from tracker_diag.report.first_look import remedies, sighted
from tracker_diag.report.markdown import note_on
from tracker_diag.report.tables import brief, by_growth
from tracker_diag.report.templates import SLICES, rendered
from tracker_diag.report.tokens import MEANS, WORST, groups, visible
from tracker_diag.rules.triage import Summary, diagnose_command


def render_html(summary: Summary, tables: Sequence[Table] = (), cost: str = "", note: str = "") -> str:
    """The page, all texts escaped, with `note` in small print at its end; `cost` as in `decide`."""
    ends = (float(summary.first_step or 0), float(summary.last_step or 0))
    filters: dict[str, Callable[..., Any]] = {
        "cell": _cell,
        "since": since,
        "pair": curves.PAIRS_IN_WORDS.get,
        "place": curves.PLACES.get,
        "where": where,
        "speaks_for": speaks_for,
        "speaks_against": speaks_against,
        "visible": visible,
    }
    first = curves.main_finding(summary)
    again = diagnose_command(summary.source)
    return rendered(
        "report.html.j2",
        filters,
        summary=summary,
        first=first,
        decision=decide(summary, cost),
        charts=_charts(summary, ends),
        marks=drawn_marks(marks_of(summary), ends),
        axis_ticks=axis_ticks(ends),
        ends=ends,
        about=[(panel.name, panel.metric.meaning) for panel in curves.panels(summary) if panel.metric.meaning],
        tables=[brief(by_growth(table)) for table in tables if table.name != WORST],
        worst=groups(summary.worst),
        means=MEANS,
        steppers=steppers(summary.distributions),
        rewards=rewards(summary.distributions),
        sight=sighted(summary),
        opens=remedies(summary.blind),
        again=again,
        issue=note_on(summary, f"`{again}`" if again else ""),
        note=note,
    )


def shown(summary: Summary) -> str | None:
    """The page in a frame of its own, for the output of a notebook's cell; None without jinja2 (then it shows text)."""
    try:
        page = escape(render_html(summary))
    except MissingExtra:
        return None
    return f'<iframe srcdoc="{page}" title="tracker_diag" width="100%" height="640" frameborder="0"></iframe>'


Summary.shown_by = shown  # from here, as rules know no report


def _charts(summary: Summary, ends: tuple[float, float]) -> dict[curves.Role, list[Chart]]:
    """What is drawn, by its part on the page."""
    first = curves.main_finding(summary)
    main = first and curves.rests_on(first, summary.curves)
    drawn: dict[curves.Role, list[Chart]] = {"hero": [], "outcome": [], "evidence": [], "dashboard": []}
    for panel in curves.with_outcomes_together(curves.panels(summary)):
        lines = sorted(panel.lines.items(), key=lambda line: first is None or line[0] != first.slice)
        colors = [name if name in SLICES else "second" * (at > 0) for at, (name, _) in enumerate(lines)]
        named = [
            (curves.PLACES.get(name, name), color, points) for color, (name, points) in zip(colors, lines, strict=True)
        ]
        usual = panel.role == "hero" and not panel.metric.outcome and main and main[1].baseline is not None
        before = first.onset if first is not None and usual else None
        made = chart(panel.title, panel.unit, named, ends, log=panel.log, before=before)
        if made is not None:
            drawn[panel.role].append(made)
    if not drawn["hero"] and drawn["outcome"]:  # nothing of a series that is NaN throughout can be drawn
        drawn["hero"].append(drawn["outcome"].pop(0))
    return drawn


def _cell(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value
