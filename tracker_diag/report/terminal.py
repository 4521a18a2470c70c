"""The verdict in the terminal: what broke first, on which evidence, what to do, who could not see."""

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tracker_diag.report.tables import describe
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary

STYLE = {"info": "cyan", "warn": "yellow", "error": "red"}


def verdict(summary: Summary) -> RenderableType:
    """Panel with the first break, then the other findings, then the blind and the healthy rules."""
    first = summary.first_break
    parts: list[RenderableType] = []
    if first is None:
        parts.append(Text("No rule fired at warn or above.", style="bold green"))
    else:
        parts += _headline(first)
    others = [finding for finding in summary.findings if finding is not first]
    if others:
        parts += [Text(), _others(others)]
    parts.append(Text())
    for rule, reason in summary.blind.items() or [("none", "")]:
        parts.append(Text.assemble(("blind    ", "magenta"), f"{rule}  ", (reason, "dim")))
    parts.append(Text.assemble(("healthy  ", "green"), ", ".join(summary.healthy) or "none"))
    color = STYLE[summary.level] if summary.level else "green"
    title = f"verdict after {summary.steps} steps"
    return Panel(Group(*parts), title=title, title_align="left", border_style=color, padding=(1, 2))


def alert_line(step: int, finding: Finding) -> Text:
    """One line for a finding that fired or was resolved at `step`."""
    style = STYLE[finding.rule.severity] if finding.state == "firing" else "green"
    return Text.assemble(
        (f"step {step:>4}  ", "dim"),
        (f"{finding.rule.severity.upper():5} {finding.state:8} ", f"bold {style}"),
        (f"{finding.rule.id} on {finding.slice}: ", "bold"),
        finding.summary if finding.state == "firing" else finding.rule.title,
    )


def _headline(first: Finding) -> list[RenderableType]:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    facts.add_row("broke first", Text(f"{first.rule.title}, on {first.slice}", style="bold"))
    facts.add_row("rule", f"{first.rule.id} {first.rule.name} ({first.rule.link})")
    facts.add_row("when", f"onset at step {first.onset}, fired at step {first.fired}")
    facts.add_row("what", first.summary)
    facts.add_row("evidence", "\n".join(describe(reading) for reading in first.evidence))
    facts.add_row("do", "\n".join(f"{i}. {text}" for i, text in enumerate(first.rule.remedy, 1)))
    return [facts]


def _others(findings: list[Finding]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("onset", "fired", "", "also found", "slice", "state"):
        table.add_column(column, justify="right" if column in ("onset", "fired") else "left")
    for finding in findings:
        state = finding.state + (f", explained by {finding.inhibited_by}" if finding.inhibited_by else "")
        severity = Text(finding.rule.severity, style=STYLE[finding.rule.severity])
        name = f"{finding.rule.id} {finding.rule.name}" + (f" ({finding.pair})" if finding.pair else "")
        fired = "–" if finding.fired is None else str(finding.fired)
        table.add_row(str(finding.onset), fired, severity, name, finding.slice, state)
    return table
