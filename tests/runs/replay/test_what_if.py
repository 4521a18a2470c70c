"""What a truncation, a cut of stale tokens and whole sequences would do, against the tokens themselves."""

import json

import numpy as np
import pytest

from tracker_diag.runs.replay.fold import Folded, fold
from tracker_diag.runs.replay.what_if import WhatIf


def ess(weights):
    return weights.sum() ** 2 / (weights.size * (weights**2).sum())


def test_variants_are_those_of_the_tokens():
    shape, totals = (64, 50), WhatIf()
    ratios, lags = [], []
    for step in range(4):
        rng = np.random.default_rng(step)
        old = -2 - rng.random(shape)
        ratio = 0.3 * rng.standard_t(3, shape)
        lag = np.broadcast_to(rng.integers(0, 4, 64)[:, None], shape)
        tensors = {"logprobs": old + ratio, "old_logprobs": old, "model_mask": np.ones(shape, bool), "policy_lag": lag}
        totals.add_step(step, Folded.of_state(json.loads(json.dumps(fold(tensors, means=True).state_dict()))))
        ratios.append(ratio)
        lags.append(lag)
    ratio, lag = np.concatenate(ratios), np.concatenate(lags)
    weight = np.exp(ratio)
    by_name = {variant.name: variant for variant in totals.variants()}
    logged, capped = by_name["tokens, as logged"], by_name["tokens, weight at most 2"]
    fresh, whole = by_name["tokens, at most 1 updates old"], by_name["whole sequences"]
    gspo = by_name["sequences, as GSPO"]
    assert logged.ess == pytest.approx(ess(weight), rel=0.03)
    assert logged.top == pytest.approx(np.sort(weight, axis=None)[-weight.size // 100 :].sum() / weight.sum(), rel=0.03)
    assert capped.ess == pytest.approx(ess(np.minimum(weight, 2)), rel=0.005)
    assert capped.cut == pytest.approx((weight > 2).mean(), abs=0.002)
    assert fresh.count == (lag <= 1).sum()
    assert fresh.cut == pytest.approx((lag > 1).mean())
    assert fresh.ess == pytest.approx(ess(weight[lag <= 1]), rel=0.03)
    assert whole.ess == pytest.approx(ess(np.exp(ratio.sum(1))), rel=0.05)
    assert gspo.ess == pytest.approx(ess(np.exp(ratio.mean(1))), rel=1e-4)
    assert gspo.count == whole.count == len(ratio)
