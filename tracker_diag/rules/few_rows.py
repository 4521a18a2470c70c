"""Few rows: whether a run is long enough to be judged, and how many more rows which rules need."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tracker_diag.metrics.reasons import Reason, Why
from tracker_diag.rules.conditions import signals_of
from tracker_diag.rules.model import Rule

SHORT = {Why.FEW_STEPS, Why.FEW_VALUES, Why.FEW_OF_BOTH, Why.SHORT_BASELINE}
"""Reasons that end with more rows; each has `have` and `needed`."""
AT_ONCE = {"threshold", "non_finite", "config_is", "config_changed", "missing_rank", "fired"}
"""Kinds of signals that can judge the first row."""
AROUND = {"environment", "resources", "freshness"}
"""Links that do not show the outcome or the update."""
GROUPS = 5
"""The most groups of rules in the list."""
NAMED = 6
"""The most rules that a line names."""


class Waiting(NamedTuple):
    """Rules that all need the same number of further rows."""

    more: int
    rules: tuple[str, ...]


def waiting(blind: Mapping[str, Sequence[Reason]]) -> list[Waiting]:
    """The rules that lack only rows, grouped by how many they need, the fewest first."""
    groups: dict[int, list[str]] = {}
    for rule, reasons in blind.items():
        needs = [int(lack.facts["needed"]) - int(lack.facts["have"]) for lack in reasons if lack.why in SHORT]
        if needs:
            groups.setdefault(max(min(needs), 1), []).append(rule)
    return [Waiting(more, tuple(rules)) for more, rules in sorted(groups.items())]


def is_judged(rules: Iterable[Rule], blind: Mapping[str, Sequence[Reason]], steps: int) -> bool:
    """Whether a run of `steps` rows is long enough to be judged.

    It is if a rule that needs several rows had its inputs and looks at the outcome or the update. It is also if no rule
    waits for rows.
    """
    if steps == 0:
        return False
    could_see = (rule for rule in rules if rule.id not in blind and rule.link not in AROUND)
    return any(map(_needs_rows, could_see)) or not waiting(blind)


def _needs_rows(rule: Rule) -> bool:
    """Whether all signals of one of the rule's ways need several rows."""
    ways = ([rule.signals[name] for name in signals_of((way,), rule.predicates)] for way in rule.when)
    return any(signals and not any(getattr(signal, "kind", "") in AT_ONCE for signal in signals) for signals in ways)


def too_short(steps: int, blind: Mapping[str, Sequence[Reason]]) -> list[str]:
    """Lines that say: the run is too short to judge, and (at most five lines) which rules need how many more rows."""
    groups = waiting(blind)
    lines = [f"too short to judge: {steps} row{'s' * (steps != 1)}"]
    if groups:
        lines[0] += "; these rules need more"
    for more, rules in groups[: GROUPS - 1] if len(groups) > GROUPS else groups:
        lines.append(f"{_rows(more)}: {_named(rules)}")
    if len(groups) > GROUPS:
        rest = groups[GROUPS - 1 :]
        names = [rule for group in rest for rule in group.rules]
        lines.append(f"{rest[0].more} to {_rows(rest[-1].more)}: {_named(names)}")
    return lines


def _rows(more: int) -> str:
    return f"{more} more row{'s' * (more != 1)}"


def _named(rules: Sequence[str]) -> str:
    left = len(rules) - NAMED
    return ", ".join(rules[:NAMED]) + (f" and {left} more" if left > 0 else "")
