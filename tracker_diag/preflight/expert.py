"""A weak expert against chance: if a simple rule does not beat random actions, no training will."""

import numpy as np

from tracker_diag.preflight.check import Check, judged, unchecked
from tracker_diag.stats.arrays import Float64Array

NAME = "expert_beats_random"
FEWEST = 10
"""Episodes of each below which there is no verdict."""
RESAMPLES = 2000
GIVE = "give env=... and policy=..., a simple rule from an observation to an action"


def beats(random: Float64Array, expert: Float64Array) -> Check:
    """Whether the mean return of `expert` (m,) is above that of `random` (n,), by a 95 % interval.

    The interval is the percentile bootstrap of the difference of the means (Efron 1979), from a fixed seed.
    """
    n = min(len(random), len(expert))
    if n < FEWEST:
        return unchecked(NAME, f"{n} episodes were over in time, expected {FEWEST}", "give more time with seconds=...")
    rng = np.random.default_rng(0)
    means = [rng.choice(returns, (RESAMPLES, len(returns))).mean(1) for returns in (expert, random)]
    low, high = map(float, np.quantile(means[0] - means[1], [0.025, 0.975]))
    ours, chance = float(expert.mean()), float(random.mean())
    reason = (
        f"{len(expert)} episodes of the policy return {ours:.3g}, {len(random)} at random {chance:.3g}: "
        f"a difference of {ours - chance:.3g} (95 % interval {low:.3g} to {high:.3g})"
    )
    sign = "look at the reward's sign first, then at whether actions reach the environment"
    alike = (
        "do not train yet: see whether actions change what happens, whether the reward says what is wanted, and "
        "whether the policy is an expert at all"
    )
    flaws = [(high < 0, reason, sign), (low <= 0, reason, alike)]
    return judged(NAME, reason, flaws, random=chance, expert=ours, gap=ours - chance, low=low, high=high)
