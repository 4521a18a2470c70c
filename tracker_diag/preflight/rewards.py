"""Rewards before training: distribution, direction, spread in groups, extremes, and a definition that is to change."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, Flaw, failed, judged, passed, unchecked
from tracker_diag.preflight.limits import within
from tracker_diag.samples.rewards import group_aggregates, known, reward_aggregates, superiority
from tracker_diag.samples.samples import Samples
from tracker_diag.stats.arrays import Float64Array

HISTOGRAM, SIGN, GROUPS = "reward_histogram", "reward_sign", "reward_groups"
EXTREMES, REVISION = "advantage_extremes", "reward_revision"

MOSTLY = 0.95
"""Share that is "almost all": REW001 and REW002."""
FURTHEST = 1 / (1 - MOSTLY)
"""How many times the mean distance from the median the largest may be: as far is a success that less than a twentieth
of the samples have. Of a hundred normal rewards it is about 4, of exponential ones about 7."""
FEWEST = 40
"""Rewards below which there is no outlier: the largest distance is at most their number times the mean."""
DEAD = 0.5
"""Share of groups without spread: ADV001."""
SURE = 1.96
"""Standard deviations beyond which chance is excluded, at 95 %."""
COLLIDING = 2
"""How many times the usual size of a group the largest may have; Search-R1 #88 had one id for several prompts."""
WORSE = 0.02
"""Share of pairs of a solved and another sample that a new definition may order worse: a choice."""
LARGEST = 100.0
"""Advantage that one reward of 10⁶ may make; normalised ones of n samples are at most √n."""

GIVE = "give rewards=..., those of a few hundred episodes of the untrained policy"
GIVE_SUCCESS = "give rewards=... and success=..."
GIVE_ADVANTAGE = "give advantage=..., from rewards and groups to advantages, as the trainer makes them"
GIVE_GROUPS = "give rewards=... and groups=..., the prompt of each sample"
GIVE_BEFORE = (
    "give rewards=... by the new definition, rewards_before=... of the same samples by the old one, and success=..."
)

EXTREME = {
    "a group of equal rewards": [0.3] * 8,
    "a group of zeros": [0.0] * 8,
    "one success among zeros": [1.0] + [0.0] * 7,
    "one reward of 1e6": [1e6] + [0.0] * 7,
}
"""The groups that `advantage` is tried with."""


def array(name: str, given: Any) -> Float64Array:
    """(n,) float64 of the numbers `given`, NaN for None; BatchError if they are none."""
    expected = "a list or an array of numbers"
    try:
        values = given.detach().cpu().double().numpy() if hasattr(given, "detach") else given
        values = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BatchError(name, f"{type(given).__name__} ({error})", expected) from error
    if values.ndim != 1:
        raise BatchError(name, f"shape {values.shape}", expected)
    return values


def scored(rewards: Any, success: Any = None, groups: Any = None) -> Samples:
    """Samples of these columns; BatchError where they do not fit together."""
    return Samples.from_columns({"reward": array("rewards", rewards), "success": success, "group": groups})


def histogram_check(rewards: Any) -> Check:
    """The verdict on the distribution of `rewards` (n,)."""
    values = array("rewards", rewards)
    n = len(values)
    if not n:
        return unchecked(HISTOGRAM, "rewards are empty", GIVE)
    if bad := int((~np.isfinite(values)).sum()):
        reason = f"{bad} of {n} rewards are NaN, infinite or missing"
        do = "find the scorer or the division that gives them; one NaN makes all advantages of its group NaN"
        return failed(HISTOGRAM, reason, do, n=n)
    shares = reward_aggregates(scored(values), values.min(), values.max())
    zero, most = shares["reward_zero_share"], shares.get("reward_max_share", 0.0)
    distance = np.abs(values - np.median(values))
    furthest = float(distance.max() / distance.mean()) if distance.any() else 0.0
    reason = (
        f"{n} rewards from {values.min():.3g} to {values.max():.3g}, mean {values.mean():.3g}, {zero:.0%} of them 0"
    )
    far = f"{reason}; the furthest is {furthest:.0f} times as far from the median as they are on average"
    scorer = "print what the scorer is given, and what it returns for a right and a wrong answer"
    harder = "harder tasks, or a reward that ranks good answers"
    flaws: list[Flaw] = [
        (zero == 1, f"all {n} rewards are 0", "see whether the scorer runs at all, and on what"),
        (values.min() == values.max(), f"all {n} rewards are {values[0]:.3g}: nothing can be learnt from them", scorer),
        (zero > MOSTLY, reason, "easier tasks, a curriculum or intermediate rewards, before any training"),
        (most > MOSTLY, f"{most:.0%} of {n} rewards are the maximum, {values.max():.3g}", harder),
        (n >= FEWEST and furthest > FURTHEST, far, "clip or normalise the reward: a few samples would make the update"),
    ]
    return judged(HISTOGRAM, reason, flaws, **shares | {"n": n, "furthest": furthest})


def sign_check(rewards: Any, success: Any) -> Check:
    """Whether solved tasks get more reward than others; both (n,)."""
    samples = scored(rewards, success)
    solved = samples["success"]
    right, wrong = (known(samples["reward"][kind]) for kind in (solved > 0.5, solved <= 0.5))
    if len(right) < 2 or len(wrong) < 2:
        give = "give samples of both kinds, at least two that are solved and two that are not"
        return unchecked(SIGN, f"{len(right)} samples are solved, {len(wrong)} are not", give)
    auc = superiority(right, wrong)
    reason = f"a solved task has more reward than one that is not in {auc:.0%} of pairs"
    deviation = math.sqrt((len(right) + len(wrong) + 1) / 12 / len(right) / len(wrong))  # of U without any relation
    if auc < 0.5 - SURE * deviation:
        do = "turn the sign round where a cost, a distance or a loss becomes the reward"
        return failed(SIGN, reason, do, auc=auc)
    if auc < 0.5 + SURE * deviation:
        do = "give more samples; if they say no more, the reward has nothing to do with success"
        return unchecked(SIGN, f"{reason}, which chance would give as well", do)
    return passed(SIGN, reason, auc=auc)


def group_check(rewards: Any, groups: Any) -> Check:
    """Whether the rewards (n,) rank samples within their `groups`, n ids."""
    samples = scored(rewards, groups=groups)
    _, sizes = np.unique(known(samples["group"]), return_counts=True)
    if not len(sizes) or not np.isfinite(samples["reward"]).any():
        return unchecked(GROUPS, "no reward with a group", GIVE_GROUPS)
    if sizes.max() == 1:
        do = "give all samples of one prompt the same id, and sample more than one of each"
        return failed(GROUPS, f"each of {samples.n} samples is a group of its own, so every advantage is 0", do)
    usual = int(np.median(sizes))
    if sizes.max() > COLLIDING * usual:
        reason = f"the largest group has {sizes.max()} samples, the usual one {usual}"
        do = "look whether several prompts share an id; make ids unique in a batch"
        return failed(GROUPS, reason, do, largest=sizes.max())
    spread = group_aggregates(samples["reward"], samples["group"])
    if "effective_groups" not in spread:
        return unchecked(GROUPS, "no group has two known rewards", GIVE_GROUPS)
    total = int((sizes > 1).sum())
    reason = (
        f"{spread['effective_groups']:.0f} of {total} groups have spread; "
        f"their mean standard deviation is {spread['group_reward_std']:.3g}"
    )
    do = "see whether the dead groups are all right or all wrong, and take other prompts or larger groups"
    return judged(GROUPS, reason, [(spread["zero_std_share"] > DEAD, reason, do)], **spread)


def extremes_check(advantage: Callable[[Float64Array, Any], Any], seconds: float = 30.0) -> Check:
    """Whether `advantage`, from rewards (n,) and group ids (n,) to advantages (n,), bears the groups of `EXTREME`."""
    rows = np.array([*EXTREME.values()])
    ids = np.repeat(np.arange(len(rows)), rows.shape[1])

    def call() -> Float64Array:
        return np.asarray(advantage(rows.ravel().copy(), ids.copy()), dtype=float)

    given = within(seconds, call, lambda: "advantage", "call it by hand with groups of equal rewards")
    if given.shape != (rows.size,):
        return failed(EXTREMES, f"advantage gave shape {given.shape}, expected ({rows.size},)", "return one a sample")
    largest = dict(zip(EXTREME, np.abs(given.reshape(rows.shape)).max(1).tolist(), strict=True))
    most = max(largest.values())
    constant = "add a small constant to the standard deviation that is divided by"
    clip = "clip or normalise rewards or advantages"
    flaws: list[Flaw] = [
        *(
            (not math.isfinite(size), f"{name} gives advantages that are NaN or infinite", constant)
            for name, size in largest.items()
        ),
        *((size > LARGEST, f"{name} gives an advantage of {size:.3g}", clip) for name, size in largest.items()),
    ]
    return judged(EXTREMES, f"advantages stay finite, the largest is {most:.3g}", flaws, largest=most)


def revision_check(rewards: Any, rewards_before: Any, success: Any) -> Check:
    """Whether the new reward orders solved samples before others as well as the old one; each (n,)."""
    samples, old = scored(rewards, success), array("rewards_before", rewards_before)
    new, solved = samples["reward"], samples["success"]
    if len(old) != samples.n:
        raise BatchError("rewards_before", f"{len(old)} values", f"{samples.n}, as rewards has")
    scored_twice = np.isfinite(new) & np.isfinite(old) & np.isfinite(solved)
    right, wrong = scored_twice & (solved > 0.5), scored_twice & (solved <= 0.5)
    if not (right.any() and wrong.any()):
        return unchecked(REVISION, "no solved samples, or no others", GIVE_BEFORE)
    before, after = (superiority(values[right], values[wrong]) for values in (old, new))
    paid = int((new[wrong] > new[right].max()).sum())
    reason = f"a solved sample has more reward than another in {after:.1%} of pairs, {before:.1%} before the change"
    read = "read what is paid more than before and is not solved; a small change opens a new way to be paid"
    flaws: list[Flaw] = [
        (after < before - WORSE, reason, read),
        (paid, f"{paid} samples that are not solved have more reward than any solved one", read),
    ]
    return judged(REVISION, reason, flaws, before=before, after=after)
