"""Traces in the terminal: the table of tools, what all traces come to, and what the rules say."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracker_diag.report.console import add_rows, cut, labelled
from tracker_diag.report.terminal import headline
from tracker_diag.report.timeline import STYLE
from tracker_diag.samples.tools import ToolRow
from tracker_diag.samples.traces.report import TraceReport

MOST = 20
"""Tools that the table shows."""


def on_screen(report: TraceReport) -> RenderableType:
    """At most 20 tools, the totals, the rules and the notes."""
    steps = report.steps
    where = f"; {steps.total()} name a training step, {len(steps)} steps in all" if steps else ", of no training step"
    head = Text.assemble(("tracker_diag: ", "dim"), (f"{len(report.records)} traces{where}", "bold"))
    parts: list[RenderableType] = [head]
    if report.tools:
        parts += [Text(), tool_table(report.tools[:MOST]), Text()]
    if len(report.tools) > MOST:
        parts.append(Text(f"and {len(report.tools) - MOST} more tools; --json has them", style="dim"))
    rows = labelled(11)
    rows.add_row("all traces", ", ".join(f"{name} {value:.3g}" for name, value in report.totals.items()))
    if report.summary is None:
        rows.add_row("rules", "they look at training steps, and no trace has one; name the run with --run")
    else:
        level = report.summary.level
        rows.add_row("rules", Text(headline(report.summary), style=STYLE[level] if level else "green"))
        for finding in (fired for fired in report.summary.findings if fired.fired is not None):
            place = f" on {finding.slice}" if finding.slice != "all" else ""
            line = f"{finding.rule.id}{place}, step {finding.onset}: {finding.summary}"
            rows.add_row("", Text(cut(line, 150), style=STYLE[finding.severity]))
    add_rows(rows, "but", (Text(cut(note, 200), style="yellow") for note in report.notes))
    return Group(*parts, rows)


def tool_table(tools: Sequence[ToolRow]) -> Table:
    """One row a tool."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("tool", overflow="ellipsis", no_wrap=True)
    for heading in ("calls", "failed", "timeout", "malformed", "truncated", "p50", "p95"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in tools:
        shares = (row.failed, row.timeout, row.malformed, row.truncated)
        cells = ["–" if share is None else f"{100 * share:.3g} %" for share in shares]
        cells += ["–" if seconds is None else f"{seconds:.3g} s" for seconds in (row.p50, row.p95)]
        table.add_row(Text(cut(row.tool, 40)), f"{row.calls:,}", *cells)
    return table
