"""Markdown: tables and findings for trackers and files that draw it; their content is shown as it is."""

import re

from tracker_diag.records import Cell, Table


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
