"""First look: what the diagnostics see of a run, and what would open their eyes to more."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracker_diag.metrics.own import SAMPLED
from tracker_diag.metrics.reasons import SAY_TURN, Reason, Why
from tracker_diag.metrics.series import UNKNOWN, Pair
from tracker_diag.report.console import labelled
from tracker_diag.rules.triage import Summary

MISSING = {
    Why.NOT_LOGGED, Why.NOT_MEASURED, Why.NOT_OBSERVED, Why.NOT_SET, Why.NOT_SEEN, Why.ON_POLICY, Why.NO_SETTING,
    Why.NO_RANKS, Why.NO_CELLS, Why.LOST, Why.LOGGED,
}  # fmt: skip
"""Reasons that no waiting takes away."""


def first_look(
    step: int | None,
    tokens: Mapping[Pair, Counter[str]],
    lacks: Mapping[Pair, Reason],
    *,
    shown_by: str,
    rules: Mapping[str, str],
    blind: Mapping[str, Sequence[Reason]],
    tools: bool,
    against: str,
    whole: bool,
) -> RenderableType:
    """What is seen of each pair, the slices and the rules, and what to pass for more rules; in short three lines.

    Args:
        tokens: how many of each slice are in the window, by pair.
        lacks: why a pair has no values.
        shown_by: which argument showed the tokens after a tool.
        rules: the name of each rule, by id.
        blind: why rules cannot see, by rule.
        tools: whether there can be any.
        against: which earlier runs the run is held against; in short it is given where they lack a pair.
        whole: all of it, and not in short.
    """
    rows = labelled(0)
    if whole:
        for pair, n in tokens.items():
            unknown = f", {n[UNKNOWN]:,} unknown" if n[UNKNOWN] else ""
            there = f"{n['post_tool']:,} tokens after a tool result, {n['text_only']:,} before any{unknown}"
            rows.add_row(pair, str(lacks[pair]) if pair in lacks else there)
        if tools and shown_by:
            rows.add_row("post_tool", shown_by)
    else:
        by_count: dict[str, list[str]] = {}  # pairs with as many tokens share a text
        for pair, n in [(pair, n) for pair, n in tokens.items() if pair not in lacks]:
            counts = f"{n['post_tool']:,} after a tool result, {n['text_only']:,} before any"
            by_count.setdefault(counts, []).append(pair)
        rows.add_row("tokens", "; ".join(f"{many} ({', '.join(names)})" for many, names in by_count.items()) or "none")
    if against:
        rows.add_row("baseline", against)
    seen = {name for n in tokens.values() for name, many in n.items() if many}
    if UNKNOWN in seen:
        rows.add_row("unknown", Text(f"a prompt may end with a tool result or not: {SAY_TURN}", style="yellow"))
    if tools and "text_only" in seen and "post_tool" not in seen:
        missing = "no token comes after a tool here; if the agent calls tools, give model_mask, 0 on what they returned"
        rows.add_row("", Text(missing, style="yellow"))
    if whole:
        rows.add_row("rules", sight(len(rules), blind))
        for number, (what, ids) in enumerate(remedies(_lacking(blind))[:5]):
            more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
            names = ", ".join(rules[rule] for rule in ids[:3])
            rows.add_row("" if number else "to see more", Text(f"{what}: {names}{more}"))
    else:
        active = len(rules) - len(blind)
        rows.add_row("rules", f"{active} of {len(rules)} active; run.diag.explain() says what the others lack")
    head = "no step yet" if step is None else f"what is seen at step {step}"
    return Group(Text.assemble(("tracker_diag: ", "dim"), (head, "bold")), rows)


def sight(rules: int, blind: Mapping[str, Sequence[Reason]]) -> str:
    """How many of `rules` can judge, how many will once they have enough steps, and how many lack an input."""
    lacking = len(_lacking(blind))
    waiting = len(blind) - lacking
    return f"{rules - len(blind)} of {rules} active, {waiting} waiting for more steps, {lacking} lacking an input"


def sighted(summary: Summary) -> str:
    """The same of a run that is over."""
    seeing = {*summary.healthy, *summary.explained, *(finding.rule.id for finding in summary.findings)}
    return sight(len(seeing | {*summary.blind}), summary.blind)


def _lacking(blind: Mapping[str, Sequence[Reason]]) -> dict[str, Sequence[Reason]]:
    return {rule: reasons for rule, reasons in blind.items() if all(reason.why in MISSING for reason in reasons)}


def remedies(blind: Mapping[str, Sequence[Reason]]) -> list[tuple[str, list[str]]]:
    """What to give, with the rules that lack it; what opens most of them first."""
    opened: dict[str, list[str]] = {}
    for rule, reasons in blind.items():
        for what in dict.fromkeys(filter(None, map(remedy, reasons))):
            opened.setdefault(what, []).append(rule)
    return sorted(opened.items(), key=lambda item: -len(item[1]))


REMEDIES = {
    Why.NOT_LOGGED: "log {series}",
    Why.NOT_OBSERVED: "observe(...) with {fields}",
    Why.NOT_SET: "{how}",
    Why.NOT_MEASURED: "tensors for {series}",
    Why.NO_SETTING: "wrap(..., config=...) with {keys}",
    Why.LOST: "log again what has ceased",
}


def remedy(reason: Reason) -> str:
    """What would take `reason` away, in a line; empty if only waiting does, or nothing.

    What `samples` counts is asked for by its columns, as one of them opens several rules.
    """
    if reason.why is Why.NOT_LOGGED and (columns := SAMPLED.get(str(reason.facts["series"]))):
        return f"samples(...) with {columns}"
    return REMEDIES.get(reason.why, "").format_map(reason.facts)
