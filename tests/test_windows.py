from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag import TokenBatch
from tracker_diag.slices import label_context
from tracker_diag.stats.tails import Estimate
from tracker_diag.stats.weights import WeightSums
from tracker_diag.windows import Observation, PairWindow, slice_counts


def observation(rng, batch=4, width=12, scale=0.1):
    new = rng.normal(-1, 0.5, (batch, width))
    model = rng.random((batch, width)) < 0.7
    model[:, 0] = True
    tokens = TokenBatch.of(logprobs=new, old_logprobs=new - scale * rng.normal(size=new.shape), model_mask=model)
    return Observation.of(tokens, "policy", label_context(tokens)), tokens


def same(found, expected):
    assert found.n == expected.n
    assert found.ess == pytest.approx(expected.ess, rel=1e-9)
    assert found.kl_k3 == pytest.approx(expected.kl_k3, rel=1e-9)


def test_weights_are_over_the_model_tokens_of_the_slice_and_their_sequences():
    observed, tokens = observation(np.random.default_rng(0))
    r, row = tokens.log_ratio("policy").reshape(4, 12), label_context(tokens).reshape(4, 12)
    members = {"text_only": row == 0, "post_tool": row == 1, "all": row < 2}
    for name, member in members.items():
        same(observed.tokens[name], WeightSums.of(r[member]))
        sums = [r[i][member[i]].sum() for i in range(4) if member[i].any()]
        same(observed.sequences[name], WeightSums.of(np.array(sums)))


@given(st.integers(1, 12), st.integers(1, 30))
def test_the_window_is_the_merge_of_the_last_steps(steps, length):
    rng = np.random.default_rng(1)
    observed = [observation(rng)[0] for _ in range(length)]
    window = PairWindow(steps, burn_in=3, baseline=5)
    for one in observed:
        window.push(one)
    expected = sum((one.sketch.counts for one in observed[-steps:]), np.zeros(1, np.int64))
    np.testing.assert_array_equal(window.total.counts, expected)
    sequences = reduce(add, (one.sequences["all"] for one in observed[-steps:]))
    if sequences.n >= 50:
        assert window.statistics()["all"]["ess_sequence"] == Estimate(sequences.ess, sequences.n)
    reference = sum((one.sketch.counts for one in observed[3:8]), np.zeros(1, np.int64))
    assert window.baseline.counts.sum() == reference.sum()
    if length > 3:
        np.testing.assert_array_equal(window.baseline.counts, reference)


def test_micro_batches_add_up_to_the_batch():
    rng = np.random.default_rng(2)
    new, old = rng.normal(size=(2, 6, 10))
    model = rng.random((6, 10)) < 0.8

    def observed(rows):
        tokens = TokenBatch.of(logprobs=new[rows], old_logprobs=old[rows], model_mask=model[rows])
        return Observation.of(tokens, "policy", label_context(tokens))

    whole, parts = observed(slice(0, 6)), observed(slice(0, 2)) + observed(slice(2, 6))
    np.testing.assert_array_equal(parts.sketch.counts, whole.sketch.counts)
    same(parts.tokens["all"], whole.tokens["all"])
    same(parts.sequences["post_tool"], whole.sequences["post_tool"])


def test_the_reference_period_begins_with_the_first_signal():
    """On-policy steps, where the ratio is 1, are no baseline for what comes after them."""
    rng = np.random.default_rng(3)
    window = PairWindow(4, burn_in=1, baseline=2)
    for _ in range(10):
        window.push(observation(rng, scale=0.0)[0])
    assert window.baseline.counts.sum() == 0
    later = [observation(rng)[0] for _ in range(5)]
    for one in later:
        window.push(one)
    np.testing.assert_array_equal(window.baseline.counts, later[1].sketch.counts + later[2].sketch.counts)


def test_all_is_the_sum_of_the_slices():
    observed, tokens = observation(np.random.default_rng(4))
    by_slice = slice_counts(observed.sketch)
    np.testing.assert_array_equal(by_slice["all"], by_slice["text_only"] + by_slice["post_tool"])
    assert by_slice["all"].sum() == pytest.approx(tokens.model_mask.sum())
