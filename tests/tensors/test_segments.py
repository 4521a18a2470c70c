"""A batch that is cut into segments comes to what it comes to as a whole, by the kernel and by numpy."""

from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.stats import kernel, segments
from tracker_diag.stats.histogram import Tally, sketch
from tracker_diag.stats.segments import Segments, Sums, stretch_sums, sums_by_row
from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors.batch import LOGPROBS, TokenBatch
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.segments import cut, observations
from tracker_diag.tensors.slices import Names, label

WHOLE = 10**9
COMPILED = kernel.KERNEL
PATHS = ["numpy", pytest.param("kernel", marks=pytest.mark.skipif(COMPILED is None, reason="built without a compiler"))]


@contextmanager
def path(name):
    """The kernel or numpy, for batches of any size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "KERNEL", COMPILED if name == "kernel" else None)
        patch.setattr(segments, "FEW", 0 if name == "kernel" else segments.FEW)
        yield


def tensors(seed):
    """A batch of any form: with or without each mask and label, padded or packed, sparse or dense, with NaN or not."""
    rng = np.random.default_rng(seed)
    shape = size, width = rng.integers(1, 12), rng.integers(1, 60)
    dtype = rng.choice([np.float32, np.float64])
    arrays = {name: (-3 * rng.random(shape)).astype(dtype) for name in LOGPROBS}
    if rng.random() < 0.5:  # most are of two policies that are near each other
        arrays["old_logprobs"] = (arrays["logprobs"] + rng.normal(0, 0.05, shape)).astype(dtype)
    if rng.random() < 0.3:
        arrays["old_logprobs"][rng.integers(size), rng.integers(width)] = rng.choice([np.nan, -np.inf])
    arrays["model_mask"] = rng.random(shape) < rng.choice([0.1, 0.5, 0.95, 1])
    arrays["model_mask"][rng.integers(size), rng.integers(width)] = True
    some = {
        "response_mask": arrays["model_mask"] | (rng.random(shape) < rng.choice([0.5, 0.9, 1])),
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
    arrays |= {name: value for name, value in some.items() if rng.random() < 0.3}
    if rng.random() < 0.3:
        arrays = {name: value.reshape(-1) if value.ndim == 2 else value for name, value in arrays.items()}
        arrays["sequence_ids"] = np.repeat(np.arange(size), width)
    return arrays


@pytest.mark.slow
@pytest.mark.parametrize("by", PATHS)
@given(seed=st.integers(0, 10**6), most=st.sampled_from([WHOLE, 200, 50, 1]))
def test_segments_come_to_the_whole(by, seed, most):
    batch, names, expected_names = TokenBatch.validated(**tensors(seed)), Names(), Names()
    with path(by):
        by_pair = observations(batch, names, seed, most)
    labels = label(batch, expected_names)
    assert names.rows == expected_names.rows
    assert by_pair.keys() == {*batch.pairs}
    for pair, observed in by_pair.items():
        expected = Observation.reduced(batch, pair, labels, seed)
        assert observed.sketches.keys() == expected.sketches.keys()
        for dimension, counted in expected.sketches.items():
            np.testing.assert_array_equal(observed.sketches[dimension].counts, counted.counts)
            np.testing.assert_array_equal(observed.sketches[dimension].nonfinite, counted.nonfinite)
        tokens, sequences, reached, lengths = observed.sums
        np.testing.assert_allclose(tokens, expected.tokens.array(), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(sequences, expected.sequences.array(), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(reached, expected.sums[2], rtol=1e-11)
        np.testing.assert_allclose(lengths, expected.sums[3], rtol=1e-9)


@pytest.mark.slow
@given(st.integers(0, 10**6))
def test_segments_hold_each_model_token_once(seed):
    batch = TokenBatch.validated(**tensors(seed))
    segmented, _, steady = cut(batch)
    np.testing.assert_array_equal(segmented.tokens(), np.flatnonzero(batch.model_mask))
    np.testing.assert_array_equal(segmented.sequence, batch.sequence[segmented.begin])
    np.testing.assert_array_equal(segmented.sequence, batch.sequence[segmented.end - 1])
    for values in (batch.labels[name] for name in steady):
        np.testing.assert_array_equal(values[segmented.tokens()], values[segmented.begin].repeat(segmented.lengths))


SHAPES = [
    lambda rng, n: rng.normal(0, 0.05, n),
    lambda rng, n: rng.standard_cauchy(n),
    lambda rng, n: 1e-5 * rng.normal(size=n),
    lambda rng, n: rng.choice([0.0, -0.0, 1e-42, np.nan, np.inf, -np.inf, 3.9999, 4.0, -4.0, 700.0, -1e4, 1e30], n),
    lambda rng, n: np.where(rng.random(n) < 0.001, 12.0, rng.normal(0, 0.1, n)),
    lambda rng, n: np.zeros(n),
]


@pytest.mark.skipif(COMPILED is None, reason="built without a compiler")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("drift", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_numpy_count_the_same_and_sum_alike(shape, drift, dtype, rng):
    n = 20_000
    old = (-rng.exponential(0.5, n)).astype(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        new = (old + shape(rng, n)).astype(dtype)
    begin = np.append(0, 1 + np.flatnonzero(rng.random(n - 1) < 0.01))
    q, some = len(begin), rng.random(len(begin)) < 0.9
    end, sequence = np.append(begin[1:], n), np.sort(rng.integers(0, 7, q))
    chosen = Segments(begin[some], end[some], rng.integers(0, 2, some.sum()), sequence[some])
    rows = [rng.integers(0, 6, size).astype(np.int32) for size in (some.sum(), n)]
    by_path = {}
    for by in ("numpy", "kernel"):
        with path(by):
            by_path[by] = Sums([5, 5], 3, 7, from_numerator=drift)
            by_path[by].include(new, old, chosen, rows)
            by_path[by].counted = by_path[by].tally.sketches()
    for by_numpy, by_kernel in zip(by_path["numpy"].counted, by_path["kernel"].counted, strict=True):
        np.testing.assert_array_equal(by_numpy.counts, by_kernel.counts)
        np.testing.assert_array_equal(by_numpy.nonfinite, by_kernel.nonfinite)
    by_numpy, by_kernel = (WeightSums(*by_path[by].weights) for by in ("numpy", "kernel"))
    for name, absolute in (("n", 0), ("largest", 0), ("first", 0), ("second", 0), ("squares", 0), ("total", 1e-13 * n)):
        np.testing.assert_allclose(getattr(by_numpy, name), getattr(by_kernel, name), rtol=1e-12, atol=absolute)
    np.testing.assert_allclose(by_numpy.k3, by_kernel.k3, rtol=1e-12, atol=1e-20 * n)  # numpy's k3 is a difference
    np.testing.assert_allclose(by_path["numpy"].of_sequences, by_path["kernel"].of_sequences, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@given(st.integers(0, 10**6))
def test_kernel_and_numpy_sketch_the_same(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 3000))
    values = rng.standard_cauchy(n).astype(rng.choice([np.float32, np.float64]))
    values[rng.random(n) < 0.01] = rng.choice([np.nan, np.inf, -0.0, 1e30, 256.0])
    labels, sketches = [rng.integers(0, size + 1, n) for size in (1, 7)], []
    for by in PATHS:
        with path(by if by == "numpy" else "kernel"), pytest.MonkeyPatch.context() as patch:
            patch.setattr("tracker_diag.stats.histogram.FEW", 0)
            tally = Tally([1, 7])
            for part in (slice(0, n // 3), slice(n // 3, n)):
                tally.count(values[part], [rows[part] for rows in labels])
            sketches.append(tally.sketches())
    sketches.append(sketch(values, labels, [1, 7]))
    for expected in sketches[1:]:
        for first, other in zip(sketches[0], expected, strict=True):
            np.testing.assert_array_equal(first.counts, other.counts)
            np.testing.assert_array_equal(first.nonfinite, other.nonfinite)


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
    sums = WeightSums(*sums_by_row(summed, row, 3))
    np.testing.assert_allclose(sums.array(), expected.array(), rtol=1e-10, atol=1e-12 * len(r))
    np.testing.assert_allclose(sums.ess, expected.ess, rtol=1e-12)
    np.testing.assert_allclose(sums.k3, expected.k3, rtol=1e-9, atol=1e-18 * len(r))


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, 700.0, -30.0])
def test_what_needs_a_common_factor_is_not_summed_without(odd):
    assert stretch_sums(np.array([0.1, odd]), np.array([0]), from_numerator=False) is None


def test_what_is_masked_is_not_looked_at():
    """Broken values off the model tokens, as padding may hold, change nothing and are not counted."""
    rng = np.random.default_rng(0)
    model = np.arange(64) < rng.integers(5, 20, (50, 1))
    new, old = (-3 * rng.random((50, 64)) for _ in range(2))
    clean, masked = (
        observations(TokenBatch.validated(logprobs=a, old_logprobs=b, model_mask=model), Names(), 0, 256)["policy"]
        for a, b in ((new, old), (np.where(model, new, np.nan), np.where(model, old, np.inf)))
    )
    assert not masked.nonfinite.any()
    for actual, expected in zip(masked.arrays(), clean.arrays(), strict=True):
        np.testing.assert_array_equal(actual, expected)
