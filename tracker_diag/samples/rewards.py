"""Rewards, advantages and groups of a step, as the rules read them: pure functions of columns, NaN where unknown."""

from collections.abc import Mapping

import numpy as np

from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import Float64Array

FEWEST_FOR_P99 = 100
FEWEST_TO_CORRELATE = 16
TOP = 0.05
"""Part of the sequences of whose advantages the share is taken."""


def known(values: Float64Array) -> Float64Array:
    """Those that are known."""
    return values[np.isfinite(values)]


def means(columns: Mapping[str, Float64Array], least: int = 1) -> dict[str, float]:
    """The mean of what is known of each column; columns of which fewer than `least` values are known are left out."""
    return {name: float(some.mean()) for name, column in columns.items() if len(some := known(column)) >= least}


def reward_aggregates(samples: Samples, lowest: float, highest: float) -> dict[str, float]:
    """What the distribution of the rewards says.

    Args:
        lowest, highest: rewards that were ever seen in the run. Which one is the highest that there is can be known
            once two different ones were, or one above 0.
    """
    reward = known(samples["reward"])
    if not len(reward):
        return {}
    size, std = np.abs(reward), reward.std()
    values = {
        "reward": reward.mean(),
        "reward_min": reward.min(),
        "reward_max": reward.max(),
        "reward_p50": np.median(reward),
        "reward_zero_share": np.mean(reward == 0),
    }
    if lowest < highest or highest > 0:
        values["reward_max_share"] = np.mean(reward >= highest - 1e-9 * abs(highest))
    if size.max() > 0 and len(reward) > 1:
        values["reward_top_share"] = size.max() / size.sum()
    if len(reward) >= FEWEST_FOR_P99:
        values["reward_p99"] = np.quantile(reward, 0.99)
    if len(reward) > 1:
        values["reward_std"] = std
    if len(reward) > 2 and std > 1e-12 * size.max():
        values["reward_skew"] = np.mean(((reward - reward.mean()) / std) ** 3)
    return {name: float(value) for name, value in values.items()}


def env_aggregates(samples: Samples, keys: Mapping[str, str]) -> dict[str, float]:
    """Mean reward of each environment of `keys`, under the name that it has in series, and the highest of several."""
    env = np.array([name for name, _ in samples.shown], dtype=object)
    rewards = means({f"env_reward:{key}": samples["reward"][env == name] for name, key in keys.items()})
    return rewards | ({"env_reward_best": max(rewards.values())} if len(rewards) > 1 else {})


def component_aggregates(components: Mapping[str, Float64Array]) -> dict[str, float]:
    """Mean and standard deviation of each part of the reward over the sequences in which it was asked."""
    asked = {name: known(column) for name, column in components.items()}
    spread = {
        f"reward_component_std:{name}": float(np.ptp(some) and some.std())  # exactly 0 where all are equal
        for name, some in asked.items()
        if len(some) > 1
    }
    return means({f"reward_component:{name}": some for name, some in asked.items()}) | spread


def group_aggregates(reward: Float64Array, group: Float64Array) -> dict[str, float]:
    """Spread of the rewards within groups of two sequences or more."""
    both = np.isfinite(reward) & np.isfinite(group)
    rewards = reward[both]
    _, place, n = np.unique(group[both], return_inverse=True, return_counts=True)
    several = n > 1
    if not several.any():
        return {}
    mean = np.bincount(place, rewards) / n
    variance = np.bincount(place, (rewards - mean[place]) ** 2) / n
    lowest, highest = np.full(len(n), np.inf), np.full(len(n), -np.inf)
    np.minimum.at(lowest, place, rewards)
    np.maximum.at(highest, place, rewards)
    flat = (lowest == highest)[several]
    return {
        "zero_std_share": float(flat.mean()),
        "effective_groups": float((~flat).sum()),
        "group_reward_std": float(np.sqrt(variance[several]).mean()),
    }


def advantage_aggregates(samples: Samples) -> dict[str, float]:
    """Size and concentration of the advantages, and whether they go with success."""
    advantage = known(samples["advantage"])
    if not len(advantage):
        return {}
    size = np.sort(np.abs(advantage))[::-1]
    values = {"advantage_max": advantage.max()}
    if len(advantage) > 1:
        values["advantage_std"] = advantage.std()
    if (total := size.sum()) > 0:
        values["advantage_top_share"] = size[: max(1, round(TOP * len(size)))].sum() / total
        values["advantage_ess"] = total**2 / (size @ size) / len(size)
    if (together := correlation(samples["advantage"], solved_of(samples))) is not None:
        values["advantage_success_correlation"] = together
    weight = np.where(np.isfinite(samples["length"]), samples["length"], 1.0)
    positive = (samples["advantage"] > 0) & np.isfinite(samples["logprob"]) & (weight > 0)
    if positive.any():
        values["positive_logprob"] = np.average(samples["logprob"][positive], weights=weight[positive])
    return {name: float(value) for name, value in values.items()}


def solved_of(samples: Samples) -> Float64Array:
    """(n,) whether the task was solved: by `success`, else by `correct`."""
    success = samples["success"]
    return np.where(np.isfinite(success), success, samples["correct"])


def superiority(some: Float64Array, others: Float64Array) -> float:
    """Share of pairs in which one of `some` is above one of `others`, ties half: Mann–Whitney's U by pairs."""
    order = np.sort(others)
    below = np.searchsorted(order, some, "left") + np.searchsorted(order, some, "right")
    return float(below.mean() / 2 / len(others))


def correlation(first: Float64Array, second: Float64Array) -> float | None:
    """Pearson's correlation where both are known; None of fewer than sixteen, or where one of them does not vary."""
    both = np.isfinite(first) & np.isfinite(second)
    if both.sum() < FEWEST_TO_CORRELATE or not np.ptp(first[both]) or not np.ptp(second[both]):
        return None
    return float(np.corrcoef(first[both], second[both])[0, 1])
