"""The audit in the terminal and as a page."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from tracker_diag.report.console import cut, labelled
from tracker_diag.report.templates import rendered
from tracker_diag.report.terminal import headline
from tracker_diag.report.timeline import STYLE
from tracker_diag.samples.audit.audit import Audit
from tracker_diag.samples.audit.estimates import Estimate
from tracker_diag.samples.traces.sampled import ToolRow, tool_rows
from tracker_diag.samples.traces.shown import tool_table

LABELS = 12
MOST = 10
"""Parts of the reward, pairs of prompts and tools that are shown."""
BINS = 24

TITLES = {
    "reward-sign-confusion": (
        "The reward falls where answers get better",
        "Look for a sign or an order that is turned round between scorer and trainer.",
    ),
    "uncorrelated-proxy": (
        "The reward does not follow the label",
        "Read the highest rewards among wrong answers; what was the scorer pleased with?",
    ),
    "length-inflation": (
        "Long answers are paid for their length",
        "Compare a long and a short answer to one prompt; which part of the reward differs?",
    ),
    "tool-hacking": (
        "Tool calls are paid for themselves",
        "Pay for what a call brings, and refuse the same call twice.",
    ),
    "repetition": (
        "Responses repeat themselves",
        "Read the rows; have the scorer look at the text without repetition.",
    ),
    "refusal-drift": (
        "Refusals are paid",
        "See how many of these prompts are harmless, and give those refusals nothing.",
    ),
    "format-hacking": (
        "Form is paid without right answers",
        "Pay that part for right answers alone, or lower its weight.",
    ),
    "pseudo-success": (
        "Wrong answers claim success",
        "Score the state of the environment, not the text.",
    ),
    "judge-bias": (
        "The judge has a taste",
        "Have it compare answers of the same length and form, or check a part by hand.",
    ),
    "dead-component": (
        "A part of the reward never varies",
        "Test it by hand on a sample that should earn it; scale it or take it out.",
    ),
    "duplicated-prompts": (
        "Prompts are in the training set twice",
        "Take out the second one, or it counts twice in every epoch.",
    ),
    "contamination": (
        "Evaluation prompts are in the training set",
        "Take them out of one of the two; what the evaluation said so far does not count.",
    ),
}
"""Of each finding: its title, and the first thing to do."""


def on_screen(audit: Audit) -> RenderableType:
    """What was found, the reward beside its labels and parts, who could not look."""
    worst = audit.findings[0].severity if audit.findings else None
    heading = f"{len(audit.findings)} found" if audit.findings else "nothing found"
    color = STYLE[worst] if worst else "green"
    head = Text.assemble(
        ("tracker_diag: ", "dim"),
        (f"{audit.samples.n:,} samples of {audit.prompts:,} prompts: {heading}", f"bold {color}"),
    )
    rows = labelled(LABELS)
    for finding in audit.findings:
        title, remedy = TITLES[finding.name]
        rows.add_row(
            Text(finding.severity, style=STYLE[finding.severity]),
            Text(f"{title}{f' ({finding.rule})' if finding.rule else ''}", "bold"),
        )
        rows.add_row("", cut(finding.summary, 200))
        rows.add_row("do first", Text(cut(remedy, 160), style="dim"))
    for heading, (name, rho) in zip(_headed("reward with", audit.agreement), audit.agreement.items(), strict=False):
        rows.add_row(heading, f"{name}: rank correlation {interval(rho)}")
    if audit.pairs:
        shares = ", ".join(f"{name} {interval(share)}" for name, share in audit.pairs.items())
        rows.add_row("pairs", f"the better of two answers has more reward: {shares}")
    for heading, part in zip(_headed("components", audit.components), audit.components[:MOST], strict=False):
        with_label = (
            "" if part.with_label is None else f", rank correlation with {audit.label} {interval(part.with_label)}"
        )
        share = f"{part.variance_share:.0%} of the variance"
        rows.add_row(heading, f"{part.name}: mean {part.mean:.3g}, std {part.std:.3g}, {share}{with_label}")
    if audit.summary is not None:
        rows.add_row("rules", headline(audit.summary))
    for heading, (what, why) in zip(_headed("blind", audit.blind), audit.blind.items(), strict=False):
        rows.add_row(heading, Text(cut(f"{what}: {why}", 150), style="dim"))
    for heading, note in zip(_headed("but", audit.notes), audit.notes, strict=False):
        rows.add_row(heading, Text(cut(note, 200), style="yellow"))
    marked = sum(map(bool, audit.marks))
    rows.add_row("to read", f"{marked:,} samples are marked; --html shows the first ones with their texts")
    tools = tool_rows(audit.samples)[:MOST]
    parts: list[RenderableType] = [head, rows]
    return Group(*parts, Text(), tool_table(tools)) if tools else Group(*parts)


def page(audit: Audit) -> str:
    """One self-contained page with the rewards' histograms and the reading list. All texts are escaped."""
    parts = {"reward": _known(audit.samples["reward"].tolist())}
    parts |= {part.name: list(part.values) for part in audit.components}
    columns = [name for name in audit.reading.columns if name != "step"]
    return rendered(
        "audit.html.j2",
        {"interval": interval, "percent": _percent, "cell": _cell},
        found=audit,
        titles=TITLES,
        label_share=_share_right(audit),
        histograms=[_histogram(name, values) for name, values in parts.items() if values],
        totals=audit.totals,
        tools=[_tool(row) for row in tool_rows(audit.samples)[:MOST]],
        reading=_reading(audit, columns),
    )


def interval(estimate: Estimate) -> str:
    """The value with its interval."""
    return f"{estimate.value:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"


def _headed(label: str, rows: Any) -> list[str]:
    """The label for the first of `rows`, none for the others."""
    return [label, *[""] * len(rows)]


def _reading(audit: Audit, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The cards of the reading list: kind, row, numbers that are known, marks and text."""
    cards: list[dict[str, Any]] = []
    for row in audit.reading.rows:
        cells = dict(zip(audit.reading.columns, row, strict=True))
        place = int(str(cells["sequence"]))
        numbers = {name: cells[name] for name in columns if isinstance(cells[name], int | float) and name != "sequence"}
        about = {"kind": cells["kind"], "row": place, "marks": audit.marks[place], "text": cells.get("text") or ""}
        about["prompt"] = cut(audit.prompts_said[place] or "", 400)
        cards.append(about | {"numbers": numbers, "env": cells.get("env") or ""})
    return cards


def _histogram(name: str, values: list[float]) -> dict[str, Any]:
    """Bars of a column: how many values, in parts of the highest."""
    low, high = min(values), max(values)
    counts, edges = np.histogram(values, bins=BINS, range=(low, high) if high > low else (low - 0.5, low + 0.5))
    highest = int(counts.max())
    bars = [
        {"height": 100 * int(n) / highest, "says": f"{edges[i]:.3g} to {edges[i + 1]:.3g}: {int(n):,}"}
        for i, n in enumerate(counts)
    ]
    return {"name": name, "n": len(values), "bars": bars, "low": low, "high": high, "mean": float(np.mean(values))}


def _tool(row: ToolRow) -> dict[str, Any]:
    return {
        "tool": row.tool, "calls": row.calls, "failed": row.failed, "malformed": row.malformed,
        "p50": row.p50, "p95": row.p95,
    }  # fmt: skip


def _share_right(audit: Audit) -> str:
    rate = audit.totals.get("success_rate")
    return "" if rate is None else f"{rate:.0%} of the answers are right"


def _known(values: Sequence[float]) -> list[float]:
    return [value for value in values if np.isfinite(value)]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.3g} %"


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
