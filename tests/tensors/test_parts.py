"""A batch that is reduced part by part comes to what it comes to as a whole, and what is masked is not touched."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.stats.weights import WeightSums, stretch_sums, sums_by_row
from tracker_diag.tensors.batch import LOGPROBS, TokenBatch
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.parts import observations, parts
from tracker_diag.tensors.slices import Names, label

WHOLE = 10**9


def tensors(seed):
    """A batch of any form: with or without each mask and label, padded or packed, sparse or dense, with NaN or not."""
    rng = np.random.default_rng(seed)
    shape = size, width = rng.integers(1, 12), rng.integers(1, 60)
    dtype = rng.choice([np.float32, np.float64])
    found = {name: (-3 * rng.random(shape)).astype(dtype) for name in LOGPROBS}
    if rng.random() < 0.5:  # most are of two policies that are near each other
        found["old_logprobs"] = (found["logprobs"] + rng.normal(0, 0.05, shape)).astype(dtype)
    if rng.random() < 0.3:
        found["old_logprobs"][rng.integers(size), rng.integers(width)] = rng.choice([np.nan, -np.inf])
    found["model_mask"] = rng.random(shape) < rng.choice([0.1, 0.5, 0.95, 1])
    found["model_mask"][rng.integers(size), rng.integers(width)] = True
    some = {
        "response_mask": found["model_mask"] | (rng.random(shape) < rng.choice([0.5, 0.9, 1])),
        "after_tool": rng.random(shape) < 0.5,
        "tool": rng.choice(["search", "python", ""], shape),
        "env": rng.choice(["math", "web"], size),
        "turn": rng.integers(-1, 9, shape),
        "policy_lag": rng.integers(0, 9, size),
        "advantages": rng.normal(size=size),
        "control": rng.random(shape) < 0.2,
        "prompt": rng.integers(0, 4, size),
        "trajectory_ids": rng.integers(0, 4, size),
        "begins_after_tool": rng.random(size) < 0.5,
        "applied_weights": rng.random(shape),
    }
    found |= {name: value for name, value in some.items() if rng.random() < 0.3}
    if rng.random() < 0.3:
        found = {name: value.reshape(-1) if value.ndim == 2 else value for name, value in found.items()}
        found["sequence_ids"] = np.repeat(np.arange(size), width)
    return found


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from([WHOLE, 200, 50, 1]))
def test_parts_come_to_the_whole(seed, most):
    batch, names, expected_names = TokenBatch.validated(**tensors(seed)), Names(), Names()
    found = observations(batch, names, seed, most)
    labels = label(batch, expected_names)
    assert names.rows == expected_names.rows
    assert found.keys() == {*batch.pairs}
    for pair, one in found.items():
        expected = Observation.reduced(batch, pair, labels, seed)
        assert [*one.sketches] == [*expected.sketches]
        for dimension, counted in expected.sketches.items():
            np.testing.assert_array_equal(one.sketches[dimension].counts, counted.counts)
            np.testing.assert_array_equal(one.sketches[dimension].nonfinite, counted.nonfinite)
        tokens, sequences, reached, lengths = one.sums
        np.testing.assert_allclose(tokens, expected.tokens.array(), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(sequences, expected.sequences.array(), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(reached, expected.reached, rtol=1e-11)
        np.testing.assert_allclose(lengths, expected.lengths, rtol=1e-9)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(1, 300))
def test_parts_hold_each_model_token_once(seed, most):
    batch = TokenBatch.validated(**tensors(seed))
    found = list(parts(batch, most))
    np.testing.assert_array_equal(np.concatenate([one.at for one in found]), np.flatnonzero(batch.model_mask))
    for one in found:
        numbers = batch.sequence[one.at]
        np.testing.assert_array_equal(numbers[one.starts], one.numbers)
        assert one.end - one.begin <= most or len(np.unique(batch.sequence[one.begin : one.end])) == 1


@pytest.mark.slow
@given(st.integers(0, 10**6), st.sampled_from([1e-6, 1e-3, 0.05, 0.5]), st.booleans())
def test_sums_of_stretches_are_those_of_weights(seed, scale, from_numerator):
    rng = np.random.default_rng(seed)
    r = rng.normal(0, scale, rng.integers(1, 2000))
    starts = np.append(0, 1 + np.flatnonzero(rng.random(len(r) - 1) < 0.05))
    row = rng.integers(0, 3, len(starts))
    summed = stretch_sums(r, starts, from_numerator=from_numerator)
    member = np.repeat(row, np.diff(starts, append=len(r))) == np.arange(3)[:, None]
    expected = WeightSums.summed(r, member, from_numerator=from_numerator)
    found = WeightSums.of_array(sums_by_row(summed, row, 3))
    np.testing.assert_allclose(found.array(), expected.array(), rtol=1e-10, atol=1e-12 * len(r))
    np.testing.assert_allclose(found.ess, expected.ess, rtol=1e-12)
    np.testing.assert_allclose(found.k3, expected.k3, rtol=1e-9, atol=1e-18 * len(r))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 700.0, -30.0])
def test_what_needs_a_common_factor_is_not_summed_without(odd):
    assert stretch_sums(np.array([0.1, odd]), np.array([0]), from_numerator=False) is None


def test_what_is_masked_is_not_looked_at():
    """Broken values off the model tokens, as padding may hold, change nothing and are not counted."""
    rng = np.random.default_rng(0)
    model = np.arange(64) < rng.integers(5, 20, (50, 1))
    new, old = (-3 * rng.random((50, 64)) for _ in range(2))
    clean = observations(TokenBatch.validated(logprobs=new, old_logprobs=old, model_mask=model), Names(), 0, 256)[
        "policy"
    ]
    new, old = np.where(model, new, np.nan), np.where(model, old, np.inf)
    found = observations(TokenBatch.validated(logprobs=new, old_logprobs=old, model_mask=model), Names(), 0, 256)[
        "policy"
    ]
    assert not found.nonfinite.any()
    for one, expected in zip(found.arrays(), clean.arrays(), strict=True):
        np.testing.assert_array_equal(one, expected)
