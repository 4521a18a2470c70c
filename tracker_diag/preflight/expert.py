"""A weak expert against chance: if a simple rule does not beat random actions, no training will."""

import time
from functools import partial
from typing import Any

import numpy as np

from tracker_diag.preflight.check import Check, failed, judged, unchecked
from tracker_diag.preflight.environment import Act, Played, play
from tracker_diag.preflight.limits import within
from tracker_diag.stats.arrays import Float64Array

NAME = "expert_beats_random"
FEWEST = 10
"""Episodes of each, below which nothing is said."""
RESAMPLES = 2000
GIVE = "give env=... and policy=..., a simple rule from an observation to an action"


def expert_check(env: Any, act: Act, policy: Act | None, episodes: int, seconds: float) -> tuple[Check, list[float]]:
    """Play `episodes` at random and as many by `policy`, in at most `seconds` each.

    Returns:
        The check, and the returns of all episodes.
    """
    if policy is None:
        return unchecked(NAME, "no policy was given", GIVE), []
    found: list[list[float]] = []
    for who, acts in (("at random", act), ("by the policy", policy)):
        played = Played()
        until = time.monotonic() + seconds
        ended = within(seconds + 1, partial(play, env, acts, episodes, until, played))
        if ended.wrong:
            do = "make this very call by hand, and read the traceback"
            return failed(NAME, f"{who}: {played.underway} {ended.wrong}", do), []
        found.append(played.returns)
    return beats(*map(np.array, found)), [*found[0], *found[1]]


def beats(random: Float64Array, expert: Float64Array) -> Check:
    """Whether the mean return of `expert` (m,) lies above that of `random` (n,), by a 95 % interval.

    The interval is the percentile bootstrap of the difference of the means (Efron 1979), from a fixed seed.
    """
    n = min(len(random), len(expert))
    if n < FEWEST:
        return unchecked(NAME, f"{n} episodes were over in time, expected {FEWEST}", "give more time with seconds=...")
    rng = np.random.default_rng(0)
    means = [rng.choice(of, (RESAMPLES, len(of))).mean(1) for of in (expert, random)]
    low, high = np.quantile(means[0] - means[1], [0.025, 0.975])
    gap = float(expert.mean() - random.mean())
    values = {"random": float(random.mean()), "expert": float(expert.mean()), "gap": gap, "low": low, "high": high}
    numbers = {name: float(value) for name, value in values.items()}
    told = (
        f"{len(expert)} episodes of the policy return {expert.mean():.3g}, {len(random)} at random "
        f"{random.mean():.3g}: a difference of {gap:.3g} (95 % interval {low:.3g} to {high:.3g})"
    )
    sign = "look at the reward's sign first, then at whether actions reach the environment"
    alike = (
        "do not train yet: see whether actions change what happens, whether the reward says what is wanted, and "
        "whether the policy is an expert at all"
    )
    return judged(NAME, told, [(high < 0, told, sign), (low <= 0, told, alike)], **numbers)
