"""The sampler against the trainer before the first update."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.metrics.series import PAIRS
from tracker_diag.preflight.check import Check, failed, judged, passed, unchecked
from tracker_diag.report.console import cut
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors.batch import Tensors, TokenBatch
from tracker_diag.tensors.given import unified
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.suspicions import GAPS, suspicions

NAMES = FORM, STEP0 = "batch_form", "sampler_step0"

DOCUMENTED = 0.3
"""p95 of |log-ratio| in nats that is too much where no floor was measured: POL007, nearly three times the 0.117 that
bfloat16 alone gave between two passes of one trainer (TRL #6789)."""
FACTOR = 3.0
"""How many times its measured floor p95 may be: as POL007 has it over the documented floor."""
AT_LEAST = 0.01
"""Limit for p95 in nats however small the measured floor is; other kernels differ by more than a repeated pass."""
NO_FLOOR = 1e-6
"""A repeated pass that differs by less is the same computation once more, and measures nothing."""
IMPOSSIBLE = 19.9
"""Difference in nats beyond which one side says that a sampled token cannot be: NUM002."""
PLACEHOLDER = 0.1
"""If the trainer is so many nats from 0, an exact 0 of the sampler is a placeholder."""
PLACEHOLDERS = 0.001
"""Share of placeholders that is too much."""

GIVE = "give batch=... with old_logprobs, rollout_logprobs and model_mask, as observe takes them"


def sampler_checks(batch: Mapping[str, Any]) -> Iterator[Check]:
    """What looks wrong in the tensors of a first batch, and how far the sampler is off the trainer.

    Args:
        batch: as `Monitor.observe` takes it. If `old_logprobs` are missing, `logprobs` replace them, as they are the
            same before the first update. `logprobs_again` is a second pass of the trainer over the same tokens with
            another batch size. It measures the noise floor.
    """
    given: Any = {name: value for name, value in batch.items() if name in Tensors.__annotations__ and value is not None}
    if "old_logprobs" not in given and "logprobs" in given and "rollout_logprobs" in given:
        given["old_logprobs"] = given.pop("logprobs")
    if not {"response_mask", "model_mask"} & given.keys() and batch.get("loss_mask") is not None:
        given["model_mask"] = batch["loss_mask"]
    masked = bool({"response_mask", "model_mask"} & given.keys())
    if not (masked and any({new, old} <= given.keys() for new, old in PAIRS.values())):
        lacking = "no two log-probabilities that are compared" if masked else "no mask says what was sampled"
        yield from (unchecked(name, lacking, GIVE) for name in NAMES)
        return
    tensors = TokenBatch.validated(**given)
    yield _form(given, tensors)
    if "mismatch" in tensors.pairs:
        yield _step0(tensors, batch.get("logprobs_again"))
    else:
        yield unchecked(STEP0, "no log-probabilities of trainer and sampler", GIVE)


def _form(given: Any, tensors: TokenBatch) -> Check:
    """The first thing that looks like a mistake in the tensors, as a live run would report it."""
    for name, values in tensors.logprobs.items():
        if bad := int((~np.isfinite(_host(values)) & _host(tensors.model_mask).astype(bool)).sum()):
            do = "find which tokens these are; a mask that is too wide often holds tokens that nobody scored"
            return failed(FORM, f"{name} is NaN or infinite on {bad:,} sampled tokens", do, broken=bad)
    suspected = [text for text in suspicions(given, tensors, label(tensors, Names())) if text != GAPS]
    if suspected:
        do = "fix it before any other number of this batch is read"
        return failed(FORM, cut(suspected[0], 300), do, suspicions=len(suspected))
    return passed(FORM, "masks and log-probabilities look as they should")


def _step0(tensors: TokenBatch, again: Any) -> Check:
    model = _host(tensors.model_mask).astype(bool)
    trainer, sampler = (_host(tensors.logprobs[name])[model] for name in ("old_logprobs", "rollout_logprobs"))
    n = len(trainer)
    if bad := int((~np.isfinite(trainer)).sum() + (~np.isfinite(sampler)).sum()):
        do = "see which tokens the engine did not score, and keep them out of the loss"
        return failed(STEP0, f"{bad:,} of {2 * n:,} log-probabilities of sampled tokens are NaN or infinite", do)
    ratio = trainer - sampler
    size = np.abs(ratio)
    p95, largest = float(np.quantile(size, 0.95)), float(size.max())
    limit, why = _limit(again, trainer, model)
    placeholders = float(((sampler == 0) & (trainer < -PLACEHOLDER)).mean())
    reason = f"p95 |log-ratio| is {p95:.2g} nat, the largest {largest:.2g}, over {n:,} tokens; {why}"
    zeros = f"{placeholders:.1%} of the sampler's log-probabilities are exactly 0"
    mask = "they are placeholders of tokens that nobody scored: tool output, padding, a skipped prefix; mask them"
    compare = (
        "compare the two on one sequence: same ids, temperature, weights, dtype and chat template, softmax in 32 bits; "
        "no top_p or penalty in the sampler's log-probabilities"
    )
    find = "find that token: padding, a tool's, a token that the template inserted, or an overflow"
    flaws = [
        (placeholders > PLACEHOLDERS, zeros, mask),
        (p95 > limit, reason, compare),
        (largest > IMPOSSIBLE, reason, find),
    ]
    sums = WeightSums.summed(ratio)
    values = {"p95": p95, "max": largest, "k3": float(sums.kl_k3), "ess": float(sums.ess), "n": n, "limit": limit}
    return judged(STEP0, reason, flaws, **values)


def _limit(again: Any, trainer: Float64Array, model: Float64Array) -> tuple[float, str]:
    """What p95 may be at most, in nats, and where that comes from."""
    if again is None:
        return DOCUMENTED, f"limit {DOCUMENTED}, as no noise floor was measured: give logprobs_again in the batch"
    second = _host(unified({"logprobs_again": again}, ("logprobs_again",), ())["logprobs_again"])
    if second.shape != model.shape:
        raise BatchError("logprobs_again", f"{second.size} values", f"{model.size}, as old_logprobs has")
    floor = float(np.quantile(np.abs(trainer - second[model.astype(bool)]), 0.95))
    if not floor > NO_FLOOR:
        return DOCUMENTED, f"limit {DOCUMENTED}: logprobs_again repeats the first pass, take another batch size for it"
    limit = max(FACTOR * floor, AT_LEAST)
    return limit, f"limit {limit:.2g}, by a noise floor of {floor:.2g}"


def _host(value: Any) -> Float64Array:
    """(N,) float64 of an array or a tensor on any device."""
    values = value.detach().cpu().double().numpy() if hasattr(value, "detach") else value
    return np.asarray(values, dtype=np.float64).reshape(-1)
