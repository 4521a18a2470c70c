"""Rewards, advantages and groups of a step, as the rules read them: pure functions of columns, NaN where unknown."""

from collections.abc import Mapping

import numpy as np

from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import Float64Array

FEWEST_FOR_P99 = 100
FEWEST_TO_CORRELATE = 16
TOP = 0.05
"""Part of the sequences whose share of the advantage is told."""


def reward_aggregates(samples: Samples, lowest: float, highest: float) -> dict[str, float]:
    """What the distribution of the rewards tells.

    Args:
        lowest, highest: rewards that were ever seen in the run. Which one is the highest that there is can be told once
            two different ones were, or one above 0.
    """
    reward = known(samples["reward"])
    if not len(reward):
        return {}
    size = np.abs(reward)
    found = {
        "reward": reward.mean(),
        "reward_min": reward.min(),
        "reward_max": reward.max(),
        "reward_p50": np.median(reward),
        "reward_zero_share": np.mean(reward == 0),
    }
    if lowest < highest or highest > 0:
        found["reward_max_share"] = np.mean(reward >= highest - 1e-9 * abs(highest))
    if size.max() > 0 and len(reward) > 1:
        found["reward_top_share"] = size.max() / size.sum()
    if len(reward) >= FEWEST_FOR_P99:
        found["reward_p99"] = np.quantile(reward, 0.99)
    if len(reward) > 1:
        found["reward_std"] = std = reward.std()
        if std > 1e-12 * size.max() and len(reward) > 2:
            found["reward_skew"] = np.mean(((reward - reward.mean()) / std) ** 3)
    return {name: float(value) for name, value in found.items()}


def env_aggregates(samples: Samples, keys: Mapping[str, str]) -> dict[str, float]:
    """Mean reward of each environment of `keys`, under the name that it has in series, and the highest of several."""
    env = np.array([one for one, _ in samples.shown], dtype=object)
    of = {key: known(samples["reward"][env == name]) for name, key in keys.items()}
    means = {f"env_reward:{key}": float(rewards.mean()) for key, rewards in of.items() if len(rewards)}
    return means | ({"env_reward_best": max(means.values())} if len(means) > 1 else {})


def component_aggregates(components: Mapping[str, Float64Array]) -> dict[str, float]:
    """Mean and standard deviation of each part of the reward over the sequences in which it was asked."""
    found: dict[str, float] = {}
    for name, values in components.items():
        if len(asked := known(values)):
            found[f"reward_component:{name}"] = float(asked.mean())
        if len(asked) > 1:
            found[f"reward_component_std:{name}"] = float(
                np.ptp(asked) and asked.std()
            )  # exactly 0 where all are equal
    return found


def group_aggregates(reward: Float64Array, group: Float64Array) -> dict[str, float]:
    """Spread of the rewards within groups of two sequences or more."""
    of = np.isfinite(reward) & np.isfinite(group)
    if not of.any():
        return {}
    _, place = np.unique(group[of], return_inverse=True)
    n = np.bincount(place)
    mean = np.bincount(place, reward[of]) / n
    variance = np.bincount(place, (reward[of] - mean[place]) ** 2) / n
    lowest, highest = np.full(len(n), np.inf), np.full(len(n), -np.inf)
    np.minimum.at(lowest, place, reward[of])
    np.maximum.at(highest, place, reward[of])
    groups = n > 1
    if not groups.any():
        return {}
    flat = (lowest == highest)[groups]
    return {
        "zero_std_share": float(flat.mean()),
        "effective_groups": float((~flat).sum()),
        "group_reward_std": float(np.sqrt(variance[groups]).mean()),
    }


def advantage_aggregates(samples: Samples) -> dict[str, float]:
    """Size and concentration of the advantages, and whether they go with success."""
    advantage = known(samples["advantage"])
    if not len(advantage):
        return {}
    size = np.sort(np.abs(advantage))[::-1]
    found = {"advantage_max": advantage.max()}
    if len(advantage) > 1:
        found["advantage_std"] = advantage.std()
    if (total := size.sum()) > 0:
        top = max(1, round(TOP * len(size)))
        found["advantage_top_share"] = size[:top].sum() / total
        found["advantage_ess"] = total**2 / (size @ size) / len(size)
    solved = solved_of(samples)
    if (together := correlation(samples["advantage"], solved)) is not None:
        found["advantage_success_correlation"] = together
    positive = samples["advantage"] > 0
    weight = np.where(np.isfinite(samples["length"]), samples["length"], 1.0)
    of = positive & np.isfinite(samples["logprob"]) & (weight > 0)
    if of.any():
        found["positive_logprob"] = np.average(samples["logprob"][of], weights=weight[of])
    return {name: float(value) for name, value in found.items()}


def solved_of(samples: Samples) -> Float64Array:
    """(n,) whether the task was solved: by `success`, else by `correct`."""
    success = samples["success"]
    return np.where(np.isfinite(success), success, samples["correct"])


def known(values: Float64Array) -> Float64Array:
    """Those that are known."""
    return values[np.isfinite(values)]


def correlation(one: Float64Array, other: Float64Array) -> float | None:
    """Pearson's correlation where both are known; None of fewer than sixteen, or where one of them does not vary."""
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < FEWEST_TO_CORRELATE or not np.ptp(one[both]) or not np.ptp(other[both]):
        return None
    return float(np.corrcoef(one[both], other[both])[0, 1])
