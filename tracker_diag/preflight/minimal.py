"""The smallest run that can fail: one batch learnt, one group ranked, one evaluation made twice, one critic fitted."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, Flaw, failed, judged, unchecked
from tracker_diag.preflight.limits import within
from tracker_diag.preflight.rewards import array, scored
from tracker_diag.samples.rewards import known, superiority

OVERFITS, RANKS, REPEATS = "batch_overfits", "reward_ranks", "evaluation_repeats"

FEWEST = 5
"""Losses below which there is no verdict."""
LEFT = 0.5
"""Share of the first loss that may be left at the end: a choice; what learns at all comes near to 0."""
RANKED = 0.9
"""Share of pairs in which the solved sample of a group must have more reward: a choice."""
NOISE = 0.02
"""Difference of two scores that is noise of an evaluation: what counts as a change of `eval_score`."""

GIVE_LOSSES = "give overfit=..., the loss of one and the same batch in each of some updates on it alone"
GIVE_GROUPS = "give rewards=..., success=... and groups=..."
GIVE_EVALUATE = "give evaluate=..., a function that evaluates one checkpoint and returns its score"


def overfit_check(overfit: Any) -> Check:
    """Whether updates on one batch alone bring its loss down; `overfit` (n,) are the losses, all above 0."""
    losses = array("overfit", overfit)
    if len(losses) < FEWEST:
        return unchecked(OVERFITS, f"{len(losses)} losses", f"{GIVE_LOSSES}; {FEWEST} at least")
    if not (np.isfinite(losses).all() and losses[0] > 0):
        do = "take the negative log-probability of the right tokens as the loss, and find what is not finite"
        return failed(OVERFITS, f"the losses begin with {losses[0]:.3g}, and all must be finite", do)
    end = float(np.mean(losses[-max(len(losses) // 10, 1) :]))
    reason = f"the loss of one batch goes from {losses[0]:.3g} to {end:.3g} in {len(losses)} updates on it alone"
    do = (
        "look whether gradients reach the parameters, whether the optimiser has them all, and whether labels are "
        "shifted; then raise the learning rate"
    )
    return judged(OVERFITS, reason, [(end > LEFT * losses[0], reason, do)], first=float(losses[0]), last=end)


def ranking_check(rewards: Any, success: Any, groups: Any) -> Check:
    """Whether within a group solved samples have more reward than others; each (n,)."""
    samples = scored(rewards, success, groups)
    solved, ids = samples["success"], samples["group"]
    more = pairs = 0.0
    for group in np.unique(known(ids)):
        right, wrong = (known(samples["reward"][(ids == group) & kind]) for kind in (solved > 0.5, solved <= 0.5))
        if len(right) and len(wrong):
            more += superiority(right, wrong) * len(right) * len(wrong)
            pairs += len(right) * len(wrong)
    if not pairs:
        return unchecked(RANKS, "no group has both solved and other samples", "take prompts that are solved sometimes")
    share = more / pairs
    reason = f"within its group a solved sample has more reward than another in {share:.0%} of {pairs:.0f} pairs"
    do = "print both samples of a pair with their reward; what pays more than the solution, is what will be learnt"
    return judged(RANKS, reason, [(share < RANKED, reason, do)], share=share, pairs=pairs)


def repeated_check(evaluate: Callable[[], Any], seconds: float = 30.0) -> Check:
    """Whether two evaluations of one checkpoint give the same score; each may take `seconds`."""
    by_hand = "call it by hand, and print its score"
    first, second = scores = [within(seconds, lambda: float(evaluate()), lambda: "evaluate", by_hand) for _ in range(2)]
    reason = f"two evaluations of one checkpoint give {first:.4g} and {second:.4g}"
    do = "fix seed, temperature and order of tasks, or evaluate on more of them; smaller changes mean nothing"
    flaws: list[Flaw] = [
        (not all(map(math.isfinite, scores)), reason, "find which task gives no score"),
        (abs(first - second) > NOISE * max(1.0, abs(first)), reason, do),
    ]
    return judged(REPEATS, reason, flaws, first=first, second=second)


CRITIC = "critic_fit"
EXPLAINED = 0.05
"""Explained variance below which a critic explains nothing: CRI001."""
LINEAR = 0.5
"""Explained variance of a line through the values, at which only scale or sign of a poor critic is wrong."""
FEWEST_RETURNS = 16

GIVE_RETURNS = "give returns=... of one rollout, and values=..., what the critic says after fitting them"


def critic_check(returns: Any, values: Any) -> Check:
    """How much of the variance of `returns` (n,) `values` (n,) explain: 1 − Var(returns − values) / Var(returns)."""
    wanted, given = array("returns", returns), array("values", values)
    n = len(given)
    if n != len(wanted):
        raise BatchError("values", f"{n} rows", f"{len(wanted)}, as returns has")
    if bad := int((~np.isfinite(wanted + given)).sum()):
        do = "check bootstrap targets and terminal masks; a NaN in one of them is in all"
        return failed(CRITIC, f"{bad} of {n} rows are NaN or infinite", do)
    if n < FEWEST_RETURNS:
        return unchecked(CRITIC, f"{n} returns", f"give {FEWEST_RETURNS} returns at least")
    if not np.ptp(wanted):
        do = "give a rollout whose returns differ; if they never do, look at the reward first"
        return unchecked(CRITIC, f"all {n} returns are {wanted[0]:.3g}: there is nothing to explain", do)
    explained = float(1 - np.var(wanted - given) / np.var(wanted))
    correlation = float(np.corrcoef(given, wanted)[0, 1]) if np.ptp(given) else 0.0
    line = correlation**2
    reason = f"the critic explains {explained:.0%} of the variance of {n} returns"
    spread = f"the values spread by {given.std():.3g}, the returns by {wanted.std():.3g}"
    what = "sign" if correlation < 0 else "scale"
    target = f"look at the {what} of the value target: normalised in one place alone, or a cost in place of a reward"
    do = "check terminal masks and bootstrap targets, then the scale of the reward; only then raise its learning rate"
    poor = explained < EXPLAINED
    flaws = [
        (poor and line >= LINEAR, f"{reason}, a line through its values {line:.0%}: {spread}", target),
        (poor, reason, do),
    ]
    return judged(CRITIC, reason, flaws, explained_variance=explained, of_a_line=line)
