"""Batches of random log-probabilities, and how two sums of weights are held against each other."""

import pytest


def tensors(rng, size=4, width=12, scale=0.1):
    new = rng.normal(-1, 0.5, (size, width))
    model = rng.random((size, width)) < 0.7
    model[:, 0] = True
    return {"logprobs": new, "old_logprobs": new - scale * rng.normal(size=new.shape), "model_mask": model}


def same(found, expected):
    assert found.n == expected.n
    assert found.ess == pytest.approx(expected.ess, rel=1e-9)
    assert found.kl_k3 == pytest.approx(expected.kl_k3, rel=1e-9)
