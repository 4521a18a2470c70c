"""Aggregates: all that the rules read of the samples of a step, under the canonical names of the registry."""

from collections.abc import Collection, Mapping

import numpy as np

from tracker_diag.metrics.families import derived
from tracker_diag.samples.rewards import (
    advantage_aggregates,
    component_aggregates,
    correlation,
    env_aggregates,
    group_aggregates,
    known,
    means,
    reward_aggregates,
    solved_of,
)
from tracker_diag.samples.samples import Samples
from tracker_diag.samples.tools import tool_aggregates
from tracker_diag.stats.arrays import Float64Array

MEANS = {
    "success_rate": "solved", "verified_success": "success", "judge_score": "judge", "human_score": "human",
    "response_length": "length", "truncated_share": "truncated",
    "retokenised_share": "retokenised", "turns": "turns", "refusal_rate": "refuses",
    "claimed_success": "claims", "repeat_ratio": "repeats", "unversioned_share": "unversioned",
    "version_span": "version_span", "scorer_error_share": "scorer_error",
}  # fmt: skip
"""Canonical names that are the mean of a column."""


def aggregates(
    samples: Samples,
    *,
    lowest: float = np.inf,
    highest: float = -np.inf,
    tools: Mapping[str, str] | None = None,
    envs: Mapping[str, str] | None = None,
    essential: Collection[str] = (),
) -> dict[str, float]:
    """By canonical name, and `name:member` of one tool, component or environment; what is not known is left out.

    Args:
        lowest, highest: rewards that were seen before, if any; those of `samples` count as well.
        tools: tools with series of their own, and their names in those; all, by their own names, if left out.
        envs: environments with series of their own, in the same way.
        essential: tools that were declared so.
    """
    rewards = known(samples["reward"])
    if len(rewards):
        lowest, highest = min(lowest, float(rewards.min())), max(highest, float(rewards.max()))
    columns = {**samples.columns, "solved": solved_of(samples)}
    values = reward_aggregates(samples, lowest, highest)
    values |= component_aggregates(samples.components)
    values |= env_aggregates(samples, {name: name for name, _ in samples.shown if name} if envs is None else envs)
    values |= group_aggregates(samples["reward"], samples["group"])
    values |= advantage_aggregates(samples)
    values |= means({name: columns[column] for name, column in MEANS.items() if column in columns})
    values |= means({"verifier_score": samples["verifier"]}) or means({"verifier_score": samples["correct"]})
    values |= _lengths(samples) | _void(samples)
    styles = (correlation(samples["judge"], samples[column]) for column in ("length", "marks"))
    if sizes := [abs(value) for value in styles if value is not None]:
        values["judge_style_correlation"] = max(sizes)
    if (diverse := diversity(samples["behaviour"], samples["group"])) is not None:
        values["diversity"] = diverse
    keys = {name: name for name in samples.calls.names} if tools is None else tools
    return derived(values | tool_aggregates(samples, keys, essential))


def diversity(behaviour: Float64Array, group: Float64Array) -> float | None:
    """How many of the others in its group a sequence differs from: 0 if all do the same, 1 if none does as another.

    Distinct behaviours less one over sequences less one, mean over groups; over the batch where there are no groups.
    """
    seen = np.isfinite(behaviour)
    groups = group[seen] if np.isfinite(group[seen]).all() else np.zeros(int(seen.sum()))
    _, place, n = np.unique(groups, return_inverse=True, return_counts=True)
    pairs = np.unique(np.stack([place, np.unique(behaviour[seen], return_inverse=True)[1]]), axis=1)
    distinct = np.bincount(pairs[0], minlength=len(n))
    many = n > 1
    return float(((distinct[many] - 1) / (n[many] - 1)).mean()) if many.any() else None


def _lengths(samples: Samples) -> dict[str, float]:
    """The longest response, the mean length of right and of wrong answers, and what a solved task costs."""
    length, solved = samples["length"], solved_of(samples)
    if not len(some := known(length)):
        return {}
    values = {"response_length_max": float(some.max())}
    values |= means({"response_length_right": length[solved > 0], "response_length_wrong": length[solved <= 0]})
    both = np.isfinite(length) & np.isfinite(solved)
    if (successes := float((solved[both] > 0).sum())) > 0:
        values["tokens_per_success"] = float(length[both].sum()) / successes
    return values


def _void(samples: Samples) -> dict[str, float]:
    """Void turns over turns; where they were not counted, the episodes that neither called a tool nor said anything."""
    void, turns = samples["void_turns"], samples["turns"]
    if len(counted := known(void)):
        total = known(turns[np.isfinite(void)]).sum()
        return {"void_turn_rate": float(counted.sum() / total if total > 0 else np.mean(counted > 0))}
    blank, calls = samples["blank"], samples["calls"]
    return means({"void_turn_rate": np.where(np.isfinite(blank + calls), (blank > 0) & (calls == 0), np.nan)})
