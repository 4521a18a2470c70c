"""The audit in the terminal and as a page."""

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from tracker_diag.report.console import add_rows, cut, labelled
from tracker_diag.report.templates import rendered
from tracker_diag.report.terminal import headline
from tracker_diag.report.timeline import STYLE
from tracker_diag.samples.audit.audit import Audit
from tracker_diag.samples.audit.estimates import Estimate
from tracker_diag.samples.rewards import known
from tracker_diag.samples.tools import tool_rows
from tracker_diag.samples.traces.shown import tool_table
from tracker_diag.stats.arrays import Float64Array

MOST = 10
"""Parts of the reward and tools that are shown."""
BINS = 24


def on_screen(audit: Audit) -> RenderableType:
    """The findings, the reward next to its labels and parts, and who could not look."""
    worst = audit.findings[0].severity if audit.findings else None
    heading = (
        f"{audit.samples.n:,} samples of {audit.prompts.different:,} prompts: {len(audit.findings) or 'nothing'} found"
    )
    head = Text.assemble(("tracker_diag: ", "dim"), (heading, f"bold {STYLE[worst] if worst else 'green'}"))
    rows = labelled(12)
    for finding in audit.findings:
        kind = finding.kind
        title = kind.title + (f" ({kind.rule})" if kind.rule else "")
        rows.add_row(Text(finding.severity, style=STYLE[finding.severity]), Text(title, "bold"))
        rows.add_row("", cut(finding.summary, 200))
        rows.add_row("do first", Text(cut(kind.remedy, 160), style="dim"))
    shares = ", ".join(f"{name} {interval(share)}" for name, share in audit.pairs.items())
    sections: dict[str, list[RenderableType]] = {
        "reward with": [f"{name}: rank correlation {interval(rho)}" for name, rho in audit.agreement.items()],
        "pairs": [f"the better of two answers has more reward: {shares}"] if audit.pairs else [],
        "components": [
            f"{part.name}: mean {part.mean:.3g}, std {part.std:.3g}, {part.variance_share:.0%} of the variance"
            + (f", rank correlation with {audit.label} {interval(part.with_label)}" if part.with_label else "")
            for part in audit.components[:MOST]
        ],
        "rules": [headline(audit.summary)] if audit.summary else [],
        "blind": [Text(cut(f"{what}: {why}", 150), style="dim") for what, why in audit.blind.items()],
        "but": [Text(cut(note, 200), style="yellow") for note in audit.notes],
    }
    for label, lines in sections.items():
        add_rows(rows, label, lines)
    rows.add_row("to read", "--html shows suspicious samples with their texts")
    tools = tool_rows(audit.samples)[:MOST]
    return Group(head, rows, Text(), tool_table(tools)) if tools else Group(head, rows)


def page(audit: Audit) -> str:
    """One self-contained page with the rewards' histograms and the reading list. All texts are escaped."""
    parts = {"reward": audit.samples["reward"], **audit.samples.components}
    rate = audit.totals.get("success_rate")
    return rendered(
        "audit.html.j2",
        {
            "interval": interval,
            "percent": lambda value: "–" if value is None else f"{100 * value:.3g} %",
            "cell": lambda value: "–" if value is None else f"{value:.3g}",
        },
        found=audit,
        label_share="" if rate is None else f"{rate:.0%} of the answers are right",
        histograms=[_histogram(name, values) for name, column in parts.items() if len(values := known(column))],
        tools=tool_rows(audit.samples)[:MOST],
        reading=_reading(audit),
    )


def interval(estimate: Estimate) -> str:
    """The value with its interval."""
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _reading(audit: Audit) -> list[dict[str, Any]]:
    """The cards of the reading list: kind, row, numbers that are known, what was found there, and text."""
    cards: list[dict[str, Any]] = []
    table = audit.reading
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        place = int(str(cells["sequence"]))
        marks = [finding.kind.title for finding in audit.findings if place in finding.rows]
        card: dict[str, Any] = {"kind": cells["kind"], "row": place, "marks": marks}
        card["text"] = cells.get("text") or ""
        card |= {"prompt": cut(audit.prompts.texts[place] or "", 400), "env": cells.get("env") or ""}
        names = (name for name in table.columns if name not in ("step", "sequence"))
        card["numbers"] = {name: cells[name] for name in names if isinstance(cells[name], int | float)}
        cards.append(card)
    return cards


def _histogram(name: str, values: Float64Array) -> dict[str, Any]:
    """Bars of a column: how many values, in parts of the highest."""
    low, high = float(values.min()), float(values.max())
    counts, edges = np.histogram(values, bins=BINS, range=(low, high) if high > low else (low - 0.5, low + 0.5))
    bars = [
        {"height": 100 * n / counts.max(), "says": f"{edges[i]:.3g} to {edges[i + 1]:.3g}: {n:,}"}
        for i, n in enumerate(counts.tolist())
    ]
    return {"name": name, "n": len(values), "bars": bars, "low": low, "high": high, "mean": float(values.mean())}
