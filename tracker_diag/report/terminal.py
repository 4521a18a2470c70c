"""The verdict in the terminal: what broke first, on which evidence, what to do, who could not see."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tracker_diag.metrics.reasons import Reason, Why
from tracker_diag.report.console import unbroken
from tracker_diag.report.first_look import sight
from tracker_diag.report.tables import best_level, describe
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary

STYLE = {"info": "cyan", "warn": "yellow", "error": "red"}


def verdict(
    summary: Summary, lines: Mapping[tuple[str, int], str] | None = None, live: Sequence[object] = ()
) -> RenderableType:
    """Panel with the first break, then the other findings, then the blind and the healthy rules.

    Args:
        lines: for a finding, by rule and onset, what is shown beside it: its curve and its cost, say.
        live: what the diagnostics found while the run was underway, a line each.
    """
    first = summary.first_break
    parts: list[RenderableType] = []
    if first is None:
        parts.append(Text("No rule fired at warn or above.", style="bold green"))
    else:
        parts += _headline(first, (lines or {}).get((first.rule.id, first.onset), ""))
    if len(summary.findings) > (first is not None):
        parts += [Text(), _others(summary, lines or {})]
    if live:
        parts += [Text(), Text("said while the run was underway", style="dim"), *(Text(f"  {one}") for one in live)]
    parts.append(Text())
    parts.append(_columns(summary))
    color = STYLE[summary.level] if summary.level else "green"
    title = f"verdict after {summary.steps} steps"
    return Panel(Group(*parts), title=title, title_align="left", border_style=color, padding=(1, 2))


LABELS = 11
"""Width of the labels beside the short verdict."""

MOST_OTHERS = 2
"""Incidents that are listed beside the first one."""


def short_verdict(summary: Summary, where: Sequence[str], again: str = "") -> RenderableType:
    """The same for the end of a run, in 25 lines of 80 columns at most, with the places to look further.

    Args:
        again: the command that shows all of it, later.
    """
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=LABELS)
    rows.add_column()
    color = STYLE[summary.level] if summary.level else "green"
    _add_incidents(rows, summary, color)
    for heading, caveat in zip(("but", ""), summary.caveats, strict=False):
        rows.add_row(heading, Text(_cut(caveat, 150), style="yellow"))
    for heading, line in zip(("tails now", ""), summary.tails, strict=False):
        rows.add_row(heading, _cut(line, 130))
    for heading, outcome in zip(("best", ""), summary.best, strict=False):
        rows.add_row(heading, best_level(outcome))
    rows.add_row("rules", f"{_sight(summary)}; run.diag.explain() says what")
    places = [
        (label, place) for label, place in (*zip(("see", ""), where, strict=False), ("all of it", again)) if place
    ]
    head = Text.assemble(
        ("tracker_diag: ", "dim"), (f"verdict after {summary.steps} step{'s' * (summary.steps != 1)}", f"bold {color}")
    )
    return Group(
        head, rows, *(unbroken(Text.assemble((label.ljust(LABELS + 2), "dim"), place)) for label, place in places)
    )


def _add_incidents(rows: Table, summary: Summary, color: str) -> None:
    """The first incident with what hangs on it, and the causes of the others."""
    first = summary.first_break
    if first is None:
        rows.add_row("found", Text("no rule fired at warn or above", style="bold" if summary.caveats else "bold green"))
    else:
        place = f", on {first.slice}" if first.slice != "all" else ""
        rows.add_row("broke first", Text(_cut(f"{first.rule.title}{place}", 150), style=f"bold {color}"))
        rows.add_row("since", f"step {first.onset}, told at step {first.fired}; rule {first.rule.id}")
        rows.add_row("evidence", _cut(first.summary, 200))
        if first.rule.remedy:
            rows.add_row("do first", _cut(first.rule.remedy[0], 130))
    for incident in (one for one in summary.incidents if one.cause is first):
        if with_it := dict.fromkeys(f"{one.rule.id} {one.rule.name}" for one in incident.symptoms):
            rows.add_row("with it", _cut(", ".join(with_it), 130))
        for one in incident.damage[:1]:
            rows.add_row("damage", Text(_cut(one.summary, 130), style="red"))
    others = [one.cause for one in summary.incidents if one.cause is not first]
    for heading, one in zip(("also", *[""] * MOST_OTHERS), others[:MOST_OTHERS], strict=False):
        end = f" to {one.resolved}" if one.resolved is not None else ""
        rows.add_row(heading, _cut(f"{one.rule.id} {one.slice} since step {one.onset}{end}: {one.rule.title}", 68))
    if len(others) > MOST_OTHERS:
        rows.add_row("", f"and {len(others) - MOST_OTHERS} more")


def _sight(summary: Summary) -> str:
    seeing = {*summary.healthy, *summary.explained, *(one.rule.id for one in summary.findings)}
    return sight(len(seeing | {*summary.blind}), summary.blind)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _headline(first: Finding, line: str) -> list[RenderableType]:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    facts.add_row(
        "broke first", Text(first.rule.title + (f", on {first.slice}" if first.slice != "all" else ""), style="bold")
    )
    facts.add_row("rule", f"{first.rule.id} {first.rule.name} ({first.rule.link})")
    facts.add_row("when", f"onset at step {first.onset}, fired at step {first.fired}")
    facts.add_row("what", first.summary)
    if line:
        facts.add_row("curve", line)
    facts.add_row("evidence", "\n".join(describe(reading) for reading in first.evidence))
    if first.rule.remedy:
        facts.add_row("do", "\n".join(f"{i}. {text}" for i, text in enumerate(first.rule.remedy, 1)))
    return [facts]


def _others(summary: Summary, lines: Mapping[tuple[str, int], str]) -> Table:
    """What hangs on the first break, the other incidents with what hangs on them, and what is pending."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("onset", "fired", "", "also found", "slice", "state", *(["curve"] if lines else [])):
        table.add_column(column, justify="right" if column in ("onset", "fired") else "left")
    of_incidents = [
        (finding, role)
        for one in summary.incidents
        for finding, role in (
            (one.cause, ""),
            *((f, "└ ") for f in one.symptoms),
            *((f, "└ damage: ") for f in one.damage),
        )
    ]
    for finding, role in (*of_incidents, *((one, "") for one in summary.findings if one.fired is None)):
        if finding is summary.first_break:
            continue
        state = finding.state + (f", explained by {finding.inhibited_by}" if finding.inhibited_by else "")
        severity = Text(finding.severity, style=STYLE[finding.severity])
        name = f"{role}{finding.rule.id} {finding.rule.name}" + (f" ({finding.pair})" if finding.pair else "")
        fired = "–" if finding.fired is None else str(finding.fired)
        beside = [lines.get((finding.rule.id, finding.onset), "")] if lines else []
        table.add_row(str(finding.onset), fired, severity, name, finding.slice, state, *beside)
    return table


UNLOGGED = "what they need is not logged; --json says what"
UNMEASURED = "they look at tokens; observe the tensors, or replay them"


def _in_short(reasons: Sequence[Reason]) -> str:
    """Why a rule was blind, in a line that many rules share."""
    kinds = {reason.why for reason in reasons}
    if kinds & {Why.NOT_MEASURED, Why.FEW_TOKENS}:
        return UNMEASURED
    return UNLOGGED if Why.NOT_LOGGED in kinds else "; ".join(map(str, reasons))


def _columns(summary: Summary) -> Table:
    """How good it was, who could not see, by reason, and who saw nothing wrong."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for one in summary.best:
        table.add_row(Text("best", style="cyan"), best_level(one))
    groups: dict[str, list[str]] = {}
    for rule, reasons in summary.blind.items():
        groups.setdefault(_in_short(reasons), []).append(rule)
    for why, rules in sorted(groups.items(), key=lambda group: group[0] in (UNLOGGED, UNMEASURED)):
        table.add_row(Text("blind", style="magenta"), Text.assemble(", ".join(rules) + "  ", (why, "dim")))
    for by in dict.fromkeys(summary.explained.values()):
        parts = ", ".join(rule for rule, whole in summary.explained.items() if whole == by)
        table.add_row(Text("explained", style="dim"), Text.assemble(parts, (f"  {by} covers them", "dim")))
    table.add_row("rules", Text(_sight(summary), style="dim"))
    table.add_row(Text("healthy", style="green"), ", ".join(summary.healthy) or "none")
    return table


BARS = "▁▂▃▄▅▆▇█"


def sparkline(points: Mapping[int, float], width: int = 24) -> str:
    """A curve in one line of text: means of `width` parts of the run, from their smallest to their largest."""
    values = [value for value in points.values() if math.isfinite(value)]
    if not values:
        return ""
    parts = [values[len(values) * i // width : len(values) * (i + 1) // width] for i in range(width)]
    means = [sum(part) / len(part) for part in parts if part]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)
