"""Whether a run's reward collapsed or never moved, whether a fault did harm, and what the curve of a public log says.

These definitions share no code with the rules.
"""

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np
from dataset import Run

REWARDS = (
    "rollout/ep_rew_mean", "charts/episodic_return", "rewards/accuracy_reward/mean", "reward", "critic/score/mean",
)  # fmt: skip
OUTCOMES = (
    *REWARDS, "rewards/rounded_reward/mean", "eval/mean_reward", "eval_rewards/accuracies", "eval_loss", "eval_reward",
    "val-core/tools/reward/mean@1",
)  # fmt: skip
WINDOW = 5


def labelled(runs: list[Run]) -> Iterable[Run]:
    """`runs` with `collapsed` as it should be."""
    gains: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.fault is None and (messages := levels(run)) is not None:
            gains.setdefault((run.trainer, run.task), []).append(float(messages.max() - messages[0]))
    for run in runs:
        healthy = gains.get((run.trainer, run.task))
        yield run.model_copy(update={"collapsed": bool(healthy and collapsed(run, median(healthy)))})


def collapsed(run: Run, gain: float) -> bool:
    """Means of 5 rows: the last is below the best by more than half of what was gained from the worst before that.

    And by more than it had ever fallen and recovered before, and by more than a quarter of `gain`, what healthy runs
    of the same trainer and task gain: what only wanders has not collapsed.
    """
    means = levels(run)
    if means is None:
        return False
    best = int(np.argmax(means))
    gained = means[best] - means[: best + 1].min()
    lost = means[best] - means[-1]
    before = np.maximum.accumulate(means[: best + 1]) - means[: best + 1]
    return bool(lost > 0.5 * gained and lost > 1.25 * before.max(initial=0.0) and lost > 0.25 * gain)


def levels(run: Run) -> np.ndarray | None:
    """Means of each 5 rows of the reward; None where there is none, or too little of it."""
    key = next((key for key in REWARDS if key in run.columns), None)
    if key is None:
        return None
    messages = values(run, key)
    messages = messages[~np.isnan(messages)]
    if len(messages) < 3 * WINDOW or not np.isfinite(messages).all():
        return None
    return np.convolve(messages, np.ones(WINDOW) / WINDOW, "valid")


def idle(run: Run) -> bool:
    """Whether the reward is one and the same value throughout: nothing was learnt, and to say so is right."""
    key = next((key for key in REWARDS if key in run.columns), None)
    return key is not None and len(messages := values(run, key)) >= 2 * WINDOW and bool((messages == messages[0]).all())


def harmed(runs: Sequence[Run]) -> set[str]:
    """Names of the faulty runs that end elsewhere than healthy runs of their trainer and task do.

    That is: of the reward, or of an evaluation, the mean of the last 5 values is outside of those of the healthy runs
    by more than a quarter of their median range, or is not finite, or was never logged.
    """
    healthy: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for run in runs:
        for key in OUTCOMES:
            if run.fault is None and not idle(run) and len(messages := values(run, key)):
                healthy.setdefault((run.trainer, run.task, key), []).append(
                    (messages[-WINDOW:].mean(), np.ptp(messages))
                )
    result = set()
    for run in runs:
        for key in OUTCOMES:
            ends = healthy.get((run.trainer, run.task, key))
            if run.fault is None or not ends:
                continue
            last, ranges = zip(*ends, strict=True)
            margin, messages = median(ranges) / 4, values(run, key)
            if not len(messages) or not min(last) - margin <= messages[-WINDOW:].mean() <= max(last) + margin:
                result.add(run.name)
    return result


def values(run: Run, key: str) -> np.ndarray:
    """What a run logged under `key`, in order."""
    return np.array([float(value) for value in run.columns.get(key, ()) if value is not None])


def by_curve(rewards: Sequence[float]) -> str:
    """collapsed, stable, flat or unclear, with means of a tenth of the rows, three at least; short or noreward.

    Collapsed: the last mean is below the best by more than half of what had been gained up to it, and by 6 standard
    errors. Stable: it ends within 15 % of its range below the best. Flat: a range below 6 standard errors.
    """
    messages = np.array([reward for reward in rewards if np.isfinite(reward)], float)
    if len(messages) < 10:
        return "short" if len(rewards) else "noreward"
    window = max(3, len(messages) // 10)
    means = np.convolve(messages, np.ones(window) / window, "valid")
    error = float(np.std(np.diff(messages))) / np.sqrt(window) or 1e-12
    best, spread = int(np.argmax(means)), float(means.max() - means.min())
    if spread < 6 * error:
        return "flat"
    fall, gained = float(means[best] - means[-1]), float(means[best] - means[: best + 1].min())
    if fall > gained / 2 and fall > 6 * error:
        return "collapsed"
    return "stable" if fall <= 0.15 * spread else "unclear"
