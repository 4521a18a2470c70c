"""Settings that contradict each other, or do nothing: clip, KL, normalisation, groups, and ratios that stay at 1."""

from collections.abc import Iterator, Mapping

from tracker_diag.preflight.check import Check, Flaw, failed, judged, passed, unchecked
from tracker_diag.preflight.settings import Settings, settings_of

NAMES = CLIP, KL, NORMALISATION, GROUPS, RATIO = (
    "config_clip",
    "config_kl",
    "config_normalisation",
    "config_groups",
    "config_ratio",
)

SEQUENCE_MOST = 0.05
"""Clip of a sequence's ratio above which it never binds: GSPO uses 3e-4 and 4e-4 (arXiv 2507.18071)."""
TOKEN_LEAST = 0.01
"""Clip of a token's ratio below which numerics alone are clipped: bfloat16 gives a p95 of 0.11 (TRL #6789)."""

GIVE = "give config=..., the settings of TRL, verl, OpenRLHF or SB3, and framework=... if it is not recognised"


def config_checks(config: Mapping[str, object], framework: str | None = None) -> Iterator[Check]:
    """All five, of settings by dotted name of a framework that is known."""
    settings = settings_of(config, framework) if config else None
    if settings is None:
        yield from (unchecked(name, "no configuration of a known framework", GIVE) for name in NAMES)
        return
    yield _clip(settings)
    yield _kl(settings)
    yield _normalisation(settings)
    yield _groups(settings)
    yield _ratio(settings)


def _clip(settings: Settings) -> Check:
    low, high = settings.number("clip_low"), settings.number("clip_high")
    if low is None or high is None:
        return unchecked(CLIP, "the clip range is no number", "give the number that a schedule begins with")
    key = settings.keys.get("clip_low", settings.keys.get("clip_high", "the clip range"))
    sequence = settings.values.get("ratio_level") == "sequence"
    reason = f"the ratio is clipped to {1 - low:.4g} and {1 + high:.4g}"
    flaws: list[Flaw] = [
        (not (0 < low < 1 and high > 0), f"{reason}: {key} makes no range around 1", "take 0.2, as the PPO paper does"),
        (
            sequence and min(low, high) > SEQUENCE_MOST,
            f"{reason}, which the ratio of a whole sequence does not reach",
            "a mean over a sequence moves far less than a token: take 3e-4 and 4e-4, as the GSPO paper does",
        ),
        (
            not sequence and max(low, high) < TOKEN_LEAST,
            f"{reason}, which numerics alone exceed on a token",
            "take 0.2; a range this small belongs to ratios of whole sequences (GSPO)",
        ),
    ]
    return judged(CLIP, reason, flaws, low=low, high=high)


def _kl(settings: Settings) -> Check:
    values = settings.values
    if "kl_in_loss" not in values:
        name = settings.framework.framework
        return unchecked(KL, f"{name} has no KL penalty", "nothing: watch approx_kl and target_kl")
    positive = {part: (settings.number(f"kl_{part}_coef") or 0.0) > 0 for part in ("loss", "reward")}
    in_loss, in_reward = (values.get(f"kl_in_{part}") is True and positive[part] for part in positive)
    estimator = str(values.get("kl_loss_estimator"))
    key = settings.keys.get("kl_loss_estimator", "the default")
    set_to = [] if in_loss or in_reward else [f"kl_{part}_coef" for part in positive if positive[part]]
    idle = settings.changed(*set_to)
    if in_loss:
        biased = "; the gradient of k3 is biased (arXiv 2510.01555)" if estimator == "k3" else ""
        reason = f"KL in the loss by {estimator}, coefficient {values.get('kl_loss_coef')}{biased}"
    elif in_reward:
        reason = f"KL in the reward, coefficient {values.get('kl_reward_coef')}"
    else:
        reason = "no KL penalty is in use"
    flaws: list[Flaw] = [
        (
            in_loss and in_reward,
            "the KL penalty is both in the loss and in the reward, and counts twice",
            "keep only that in the reward with k1, or only that in the loss with k2 or k3",
        ),
        (
            in_loss and estimator == "k1",
            f"the KL in the loss is k1 ({key}), whose gradient is 0 on average: it holds nothing back",
            "take k2 or k3 for the loss, or put the penalty into the reward, where k1 is right",
        ),
        (idle, f"{' and '.join(idle)} is set, and no KL penalty is in use", "switch it on, or leave the setting out"),
    ]
    return judged(KL, reason, flaws)


def _normalisation(settings: Settings) -> Check:
    aggregation = settings.values.get("aggregation")
    step, update = settings.number("step_batch"), settings.number("update_batch")
    if settings.values.get("normalises_each_update") is True and step and update:
        if update < 2 or step % update == 1:
            batches = f"{step:.0f} steps in batches of {update:.0f}"
            reason = f"a mini-batch of 1 ({batches}) is normalised by its own deviation, 0"
            return failed(NORMALISATION, reason, "take a batch size that divides n_steps * n_envs")
        return passed(NORMALISATION, f"advantages are normalised over mini-batches of {update:.0f}")
    if aggregation is None:
        reason = f"{settings.framework.framework} does not say how it averages"
        return unchecked(NORMALISATION, reason, "compare a step of 1 and of 4 micro-batches")
    parts = settings.number("accumulation") or 1
    if aggregation in settings.framework.local_aggregations and parts > 1:
        reason = f"{aggregation} divides by the tokens of each of {parts:.0f} micro-batches, not of the whole batch"
        do = "take an aggregation over the whole batch (dapo, dr_grpo): short micro-batches otherwise weigh more"
        return failed(NORMALISATION, reason, do)
    biased = aggregation in settings.framework.length_biased
    bias = "; it weighs tokens of short answers more (arXiv 2503.20783)" if biased else ""
    return passed(NORMALISATION, f"the loss is averaged by {aggregation}{bias}")


def _groups(settings: Settings) -> Check:
    size, step, update = (settings.number(name) for name in ("group_size", "step_batch", "update_batch"))
    if settings.values.get("grouped") is True and (size or 0) < 2:
        key = settings.keys.get("group_size", "the default of the group size")
        do = "sample at least 4 to 8 of each prompt, or take an estimator without groups"
        return failed(GROUPS, f"advantages are relative to a group of {size or 0:.0f} ({key}): all of them are 0", do)
    if not step or not update:
        return unchecked(GROUPS, "the sizes of batches are no numbers", GIVE)
    size = size or 1
    reason = f"{step:.0f} samples a step, in updates of {update:.0f}"
    reason += f" and groups of {size:.0f}" if size > 1 else ""
    if "copies" in settings.values and "copies" not in settings.keys and (step % size or step % update):
        name = settings.framework.settings["copies"].keys[0]
        return unchecked(GROUPS, f"{reason} on one device or environment", f"give {name} in the configuration")
    rest = step % update
    flaws: list[Flaw] = [
        (update > step, f"{reason}: no update can be filled", "make the batch of an update at most that of a step"),
        (step % size, f"{reason}: the last group is cut", "make the batch a multiple of the group size"),
        (rest, f"{reason}: the last update has {rest:.0f}", "make the step a multiple of the update"),
    ]
    return judged(GROUPS, reason, flaws, step=step, update=update)


def _ratio(settings: Settings) -> Check:
    step, update, epochs = (settings.number(name) for name in ("step_batch", "update_batch", "epochs"))
    if not step or not update or not epochs:
        return unchecked(RATIO, "the number of updates a step is not known", GIVE)
    updates = epochs * max(1.0, step / update)
    if updates > 1:
        return passed(RATIO, f"{updates:.0f} updates a step: the ratio leaves 1", updates=updates)
    reason = "one update a step: the policy ratio is exactly 1"
    if in_vain := settings.changed("clip", "clip_low", "clip_high"):
        do = "take more epochs or smaller updates if clipping is wanted; else leave the clip range alone"
        return failed(RATIO, f"{reason}, so {' and '.join(in_vain)} does nothing", do, updates=updates)
    return passed(RATIO, f"{reason}; the pair policy has no signal, watch mismatch", updates=updates)
