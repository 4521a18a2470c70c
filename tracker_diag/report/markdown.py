"""Markdown, for trackers and files that draw it: tables, findings and the verdict; their content is shown as it is."""

import re

from tracker_diag.records import Cell, Table
from tracker_diag.report.curves import main_finding
from tracker_diag.report.decision import decide
from tracker_diag.report.evidence import speaks_for
from tracker_diag.rules.triage import Summary


def markdown(table: Table) -> str:
    """`table` in Markdown; the content of its cells is shown as it is."""
    lines = [map(escaped, table.columns), ["---"] * len(table.columns), *(map(escaped, row) for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def findings_text(table: Table) -> str:
    """The findings in Markdown, one below the other: in a table of eleven columns nobody could read them."""
    parts: list[str] = []
    for row in table.rows:
        cells = dict(zip(table.columns, map(escaped, row), strict=True))
        steps = ", ".join(f"{name} {cells[name]}" for name in ("onset", "fired", "resolved") if cells[name])
        parts += [
            f"#### {cells['rule']} {cells['name']}, {cells['slice']}",
            f"**{cells['severity']}, {cells['state']}** (steps: {steps}). {cells['summary']}.",
            cells["evidence"] and f"*Evidence:* {cells['evidence']}",
            cells["remedy"] and f"*First:* {cells['remedy']}",
        ]
    return "\n\n".join(filter(None, parts))


def escaped(value: Cell) -> str:
    """`value` in one line, with nothing in it that Markdown or HTML would take for its own."""
    if value is None:
        return ""
    text = f"{value:.3g}" if isinstance(value, float) else " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("~", "&#126;")  # not all know that ~ may be escaped
    text = re.sub(r"([\\`*\[\]|>]|(?<!&)#)", r"\\\1", text)
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # within a word it means itself


def note_on(summary: Summary, links: str, picture: str = "") -> str:
    """The decision in the first line, with `links` to more; then what to do and the cost. Trackers fold the rest."""
    decision, first = decide(summary), main_finding(summary)
    tiles = [f"**{tile.value}** {tile.what}" + (f" ({tile.note})" if tile.note else "") for tile in decision.tiles]
    head = f"**{escaped(str(decision))}.** {links}".strip()
    parts = [head, *(f"**The log**: {line}." for line in summary.log)]
    if first is None:
        return "\n\n".join([*parts, *tiles, *(f"**But** {caveat}." for caveat in summary.caveats)])
    (incident,) = (incident for incident in summary.incidents if incident.cause is first)
    far, harm, step, resume = tiles
    parts += [f"{step} {resume}.", f"{far}. {harm}.", decision.remark and f"{decision.remark}.", picture]
    if incident.symptoms:
        parts.append("Symptoms:\n\n" + "\n".join(f"- {finding}" for finding in incident.symptoms))
    if evidence := speaks_for(first):
        parts.append(f"Evidence at step {first.fired}:\n\n" + "\n".join(f"- {line}" for line in evidence))
    if first.rule.remedy[1:]:
        parts.append("Then:\n\n" + "\n".join(f"1. {text}" for text in first.rule.remedy[1:]))
    return "\n\n".join(part for part in parts if part)
