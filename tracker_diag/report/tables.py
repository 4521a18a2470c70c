"""The tables that are shown in every place: findings with evidence, slices now against their baseline."""

from collections.abc import Sequence

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Table
from tracker_diag.rules.findings import Finding, Reading


def findings_table(findings: Sequence[Finding]) -> Table:
    """One row per finding, earliest onset first."""
    columns = (
        "onset",
        "fired",
        "resolved",
        "rule",
        "name",
        "slice",
        "severity",
        "state",
        "summary",
        "evidence",
        "remedy",
    )
    rows = tuple(
        (
            finding.onset,
            finding.fired,
            finding.resolved,
            finding.rule.id,
            finding.rule.name,
            finding.slice,
            finding.rule.severity,
            finding.state if finding.inhibited_by is None else f"{finding.state}, inhibited by {finding.inhibited_by}",
            finding.summary,
            "; ".join(describe(reading) for reading in finding.evidence),
            finding.rule.remedy[0] if finding.rule.remedy else "",
        )
        for finding in findings
    )
    return Table(PREFIX + "findings", columns, rows)


def describe(reading: Reading) -> str:
    """One reading in one line: "post_tool_tail_grows: yes (0.31, baseline 0.04, n 812)"."""
    verdict = {True: "yes", False: "no", None: "unknown"}[reading.holds]
    numbers = [f"{reading.value:.3g}"] if reading.value is not None else []
    numbers += [f"baseline {reading.baseline:.3g}"] if reading.baseline is not None else []
    numbers += [f"n {reading.n}"] if reading.n is not None else []
    detail = ", ".join(numbers) if reading.holds is not None else reading.note
    return f"{reading.signal}: {verdict}" + (f" ({detail})" if detail else "")


def events_table(events: Sequence[tuple[int, str]]) -> Table:
    """What was done on purpose, one row each: the step, and what."""
    return Table(PREFIX + "events", ("step", "event"), tuple(events))


BRIEF = (
    "pair", "slice", "count", "p50", "p95", "p95 baseline", "p99", "ess", "ess_sequence", "ess_applied",
    "pareto_k", "k3", "clip_fraction", "note",
)  # fmt: skip
"""Columns of the slices' table that a page has room for; the tracker's own table has all of them."""


def brief(table: Table) -> Table:
    """`table` as a page shows it: of the slices' columns those of `BRIEF`, and none that is empty throughout."""
    shown = [
        i
        for i, column in enumerate(table.columns)
        if (table.name != PREFIX + "slices" or column in BRIEF) and any(row[i] not in (None, "") for row in table.rows)
    ]
    shown.sort(key=lambda i: BRIEF.index(table.columns[i]) if table.columns[i] in BRIEF else i)
    rows = tuple(tuple(row[i] for i in shown) for row in table.rows)
    return Table(table.name, tuple(table.columns[i] for i in shown), rows)
