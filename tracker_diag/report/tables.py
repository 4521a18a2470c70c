"""The tables that are shown in every place: findings with evidence, slices now against their baseline."""

from collections.abc import Sequence

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.statistics import STATISTICS
from tracker_diag.records import Cell, Table
from tracker_diag.report.evidence import speaks_for
from tracker_diag.rules.findings import Finding


def findings_table(findings: Sequence[Finding]) -> Table:
    """One row per finding, earliest onset first."""
    columns = (
        "onset", "fired", "resolved", "rule", "name", "slice", "severity", "state", "summary", "evidence", "remedy",
    )  # fmt: skip
    rows = tuple(
        (
            it.onset, it.fired, it.resolved, it.rule.id, it.rule.name, it.slice, it.severity,
            it.state if it.inhibited_by is None else f"{it.state}, inhibited by {it.inhibited_by}",
            it.summary, "; ".join(speaks_for(it)), it.rule.remedy[0] if it.rule.remedy else "",
        )
        for it in findings
    )  # fmt: skip
    return Table(PREFIX + "findings", columns, rows)


def events_table(events: Sequence[tuple[int, str]]) -> Table:
    """What was done on purpose, one row each: the step, and what."""
    return Table(PREFIX + "events", ("step", "event"), tuple(events))


DECISION = f"{PREFIX}decision"
"""Name of the decision, as a picture, a page or a text; the first of our names in the order of the alphabet."""

CHECKPOINTS = f"{PREFIX}checkpoints"
"""Name of the table of checkpoints: each time all of them."""

BASELINE = "p95 baseline"
"""Column of the slices' table: p95 in the reference period."""


def by_growth(table: Table) -> Table:
    """The slices' table with what has grown most against its baseline on top; any other as it is."""
    if BASELINE not in table.columns:
        return table
    now, then = table.columns.index("p95"), table.columns.index(BASELINE)

    def growth(row: tuple[Cell, ...]) -> float:
        value, baseline = row[now], row[then]
        known = isinstance(value, float | int) and isinstance(baseline, float | int) and baseline > 0
        return value / baseline if known else 0.0  # type: ignore[operator]  # both are numbers

    return Table(table.name, table.columns, tuple(sorted(table.rows, key=growth, reverse=True)))


def brief(table: Table) -> Table:
    """`table` as a page shows it: of the statistics those that it has room for, and no column that is empty."""
    has_room = [column not in STATISTICS or STATISTICS[column].in_page for column in table.columns]
    shown = [i for i, room in enumerate(has_room) if room and any(row[i] not in (None, "") for row in table.rows)]
    rows = tuple(tuple(row[i] for i in shown) for row in table.rows)
    return Table(table.name, tuple(table.columns[i] for i in shown), rows)
