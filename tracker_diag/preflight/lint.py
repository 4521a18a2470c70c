"""Settings that contradict each other, or do nothing: clip, KL, normalisation, groups, and ratios that stay at 1."""

from collections.abc import Iterator

from tracker_diag.preflight.check import Check, Flaw, failed, judged, passed, unchecked
from tracker_diag.preflight.settings import Settings

CLIP = "config_clip"
KL = "config_kl"
NORMALISATION = "config_normalisation"
GROUPS = "config_groups"
RATIO = "config_ratio"
NAMES = (CLIP, KL, NORMALISATION, GROUPS, RATIO)

SEQUENCE_MOST = 0.05
"""Clip of a sequence's ratio above which it never binds: GSPO uses 3e-4 and 4e-4 (arXiv 2507.18071)."""
TOKEN_LEAST = 0.01
"""Clip of a token's ratio below which numerics alone are clipped: bfloat16 gives a p95 of 0.11 (TRL #6789)."""

GIVE = "give config=..., the settings of TRL, verl, OpenRLHF or SB3, and framework=... if it is not recognised"


def config_checks(settings: Settings | None) -> Iterator[Check]:
    """All five, of settings that were recognised."""
    if settings is None:
        yield from (unchecked(name, "no configuration of a known framework", GIVE) for name in NAMES)
        return
    yield _clip(settings)
    yield _kl(settings)
    yield _normalisation(settings)
    yield _groups(settings)
    yield _ratio(settings)


def _clip(of: Settings) -> Check:
    low, high = of.number("clip_low"), of.number("clip_high")
    if low is None or high is None:
        return unchecked(CLIP, "the clip range is no number", "give the number that a schedule begins with")
    key = of.keys.get("clip_low", of.keys.get("clip_high", "the clip range"))
    told = f"the ratio is clipped to {1 - low:.4g} and {1 + high:.4g}"
    if not (0 < low < 1 and high > 0):
        return failed(CLIP, f"{told}: {key} makes no range around 1", "take 0.2, as the PPO paper does")
    if of.values.get("ratio_level") == "sequence":
        if min(low, high) > SEQUENCE_MOST:
            do = "a mean over a sequence moves far less than a token: take 3e-4 and 4e-4, as the GSPO paper does"
            return failed(CLIP, f"{told}, which the ratio of a whole sequence does not reach", do, low=low, high=high)
    elif max(low, high) < TOKEN_LEAST:
        do = "take 0.2; a range this small belongs to ratios of whole sequences (GSPO)"
        return failed(CLIP, f"{told}, which numerics alone exceed on a token", do, low=low, high=high)
    return passed(CLIP, told, low=low, high=high)


def _kl(of: Settings) -> Check:
    if "kl_in_loss" not in of.values:
        return unchecked(KL, f"{of.framework.framework} has no KL penalty", "nothing: watch approx_kl and target_kl")
    in_loss, in_reward = _on(of, "loss"), _on(of, "reward")
    estimator = str(of.values.get("kl_loss_estimator"))
    key = of.keys.get("kl_loss_estimator", "the default")
    idle = [] if in_loss or in_reward else [*_idle(of, "loss"), *_idle(of, "reward")]
    if in_loss:
        biased = "; the gradient of k3 is biased (arXiv 2510.01555)" if estimator == "k3" else ""
        told = f"KL in the loss by {estimator}, coefficient {of.values.get('kl_loss_coef')}{biased}"
    elif in_reward:
        told = f"KL in the reward, coefficient {of.values.get('kl_reward_coef')}"
    else:
        told = "no KL penalty is in use"
    flaws: list[Flaw] = [
        (
            in_loss and in_reward,
            "the KL penalty is both in the loss and in the reward, and counts twice",
            "keep one: in the reward with k1, or in the loss with k2 or k3",
        ),
        (
            in_loss and estimator == "k1",
            f"the KL in the loss is k1 ({key}), whose gradient is 0 on average: it holds nothing back",
            "take k2 or k3 for the loss, or put the penalty into the reward, where k1 is right",
        ),
        (idle, f"{' and '.join(idle)} is set, and no KL penalty is in use", "switch it on, or leave the setting out"),
    ]
    return judged(KL, told, flaws)


def _on(of: Settings, part: str) -> bool:
    return of.values.get(f"kl_in_{part}") is True and (of.number(f"kl_{part}_coef") or 0.0) > 0


def _idle(of: Settings, part: str) -> list[str]:
    """Keys of coefficients that were set to something and are not in use."""
    return of.changed(f"kl_{part}_coef") if (of.number(f"kl_{part}_coef") or 0.0) > 0 else []


def _normalisation(of: Settings) -> Check:
    aggregation = of.values.get("aggregation")
    step, update = of.number("step_batch"), of.number("update_batch")
    if of.values.get("normalises_each_update") is True and step and update:
        rest = step % update
        if update < 2 or rest == 1:
            told = (
                f"a mini-batch of 1 ({step:.0f} steps in batches of {update:.0f}) is normalised by its own deviation, 0"
            )
            return failed(NORMALISATION, told, "take a batch size that divides n_steps * n_envs")
        return passed(NORMALISATION, f"advantages are normalised over mini-batches of {update:.0f}")
    if aggregation is None:
        name = of.framework.framework
        return unchecked(
            NORMALISATION, f"{name} does not say how it averages", "compare a step of 1 and of 4 micro-batches"
        )
    accumulation = of.number("accumulation") or 1
    if aggregation in of.framework.local_aggregations and accumulation > 1:
        told = (
            f"{aggregation} divides by the tokens of each of {accumulation:.0f} micro-batches, not of the whole batch"
        )
        do = "take an aggregation over the whole batch (dapo, dr_grpo): short micro-batches otherwise weigh more"
        return failed(NORMALISATION, told, do)
    bias = (
        "; it weighs tokens of short answers more (arXiv 2503.20783)"
        if aggregation in of.framework.length_biased
        else ""
    )
    return passed(NORMALISATION, f"the loss is averaged by {aggregation}{bias}")


def _groups(of: Settings) -> Check:
    size, step, update = of.number("group_size"), of.number("step_batch"), of.number("update_batch")
    if of.values.get("grouped") is True and (size or 0) < 2:
        key = of.keys.get("group_size", "the default of the group size")
        do = "sample at least 4 to 8 of each prompt, or take an estimator without groups"
        return failed(GROUPS, f"advantages are relative to a group of {size or 0:.0f} ({key}): all of them are 0", do)
    if not step or not update:
        return unchecked(GROUPS, "the sizes of batches are no numbers", GIVE)
    size = size or 1
    told = f"{step:.0f} samples a step, in updates of {update:.0f}"
    told += f" and groups of {size:.0f}" if size > 1 else ""
    cut = step % size or step % update
    if "copies" in of.values and "copies" not in of.keys and cut:
        name = of.framework.settings["copies"].keys[0]
        return unchecked(GROUPS, f"{told} on one device or environment", f"give {name} in the configuration")
    flaws: list[Flaw] = [
        (update > step, f"{told}: no update can be filled", "make the batch of an update at most that of a step"),
        (step % size, f"{told}: the last group is cut", "make the batch a multiple of the group size"),
        (
            step % update,
            f"{told}: the last update has {step % update:.0f}",
            "make the step a multiple of the update",
        ),
    ]
    return judged(GROUPS, told, flaws, step=step, update=update)


def _ratio(of: Settings) -> Check:
    step, update, epochs = of.number("step_batch"), of.number("update_batch"), of.number("epochs")
    if not step or not update or not epochs:
        return unchecked(RATIO, "the number of updates a step is not known", GIVE)
    updates = epochs * max(1.0, step / update)
    if updates > 1:
        return passed(RATIO, f"{updates:.0f} updates a step: the ratio leaves 1", updates=updates)
    told = "one update a step: the policy ratio is exactly 1"
    if set_in_vain := of.changed("clip", "clip_low", "clip_high"):
        do = "take more epochs or smaller updates if clipping is wanted; else leave the clip range alone"
        return failed(RATIO, f"{told}, so {' and '.join(set_in_vain)} does nothing", do, updates=updates)
    return passed(RATIO, f"{told}; the pair policy has no signal, watch mismatch", updates=updates)
