"""The sketch's guarantee, on hostile distributions, and the identities that merging rests on."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracker_diag.stats.histogram import (
    BINS,
    EDGES,
    FEW,
    QUANTILE_VALUES,
    Sketch,
    first_bins,
    quantiles,
    rebin,
    sketch,
)

BOUND = 1 / 257
LEVELS = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def partition(values, row, rows):
    """The sketch of one partition."""
    (result,) = sketch(values, [row], [rows])
    return result


def one_row(values):
    return partition(np.asarray(values), np.zeros(len(values), np.int64), 1)


def on_device(values, labels, sizes):
    """The path of a device, taken on the host, where its operations are the same."""
    given = [torch.from_numpy(np.asarray(label, np.int32)) for label in labels]
    return sketch(torch.from_numpy(np.array(values)), given, sizes)


def order_statistic(values, q):
    return np.sort(np.abs(values))[int(q * (len(values) - 1))]


@pytest.mark.parametrize(
    ("x", "sign", "index", "representative"),
    [
        (1.0, 0, 3073, 1.00389105),
        (1.0078125, 0, 3074, 1.01170367),
        (0.05, 0, 2509, 0.0499264594),
        (0.2, 0, 2765, 0.199705837),
        (-0.3, 1, 2842, 0.299801507),
        (255.9, 0, 4096, 255.499022),
        (0.0, 0, 0, 0),
        (-0.0, 1, 0, 0),
        (1e-42, 0, 0, 0),
        (6e-8, 0, 1, None),
        (256.0, 0, 4097, 256),
        (1e30, 0, 4097, 256),
    ],
)
def test_where_a_value_is_counted(x, sign, index, representative):
    counts = one_row([np.float32(x)]).counts[0]
    assert np.argwhere(counts).tolist() == [[sign, index]]
    if representative is not None:
        assert QUANTILE_VALUES[index] == pytest.approx(representative, rel=1e-8)


@pytest.mark.slow
def test_each_bin_holds_exactly_its_interval():
    below = np.nextafter(EDGES.astype(np.float32), np.float32(0))
    edges = EDGES.astype(np.float32)
    rows = np.arange(len(EDGES))
    at = partition(edges, rows, len(EDGES)).counts[:, 0].argmax(axis=1)
    under = partition(below, rows, len(EDGES)).counts[:, 0].argmax(axis=1)
    np.testing.assert_array_equal(at, rows + 1)
    np.testing.assert_array_equal(under, rows)
    assert len(QUANTILE_VALUES) == BINS


def heavy(name, rng, n):
    return {
        "normal": lambda: rng.normal(0, 0.05, n),
        "student t2": lambda: 0.1 * rng.standard_t(2, n),
        "cauchy": lambda: rng.standard_cauchy(n),
        "pareto 0.5": lambda: 1e-4 * rng.pareto(0.5, n),
        "log-normal 4": lambda: rng.lognormal(-5, 4, n),
        "mixture": lambda: np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n)),
        "two values": lambda: rng.choice([0.1, 3.0], n),
        "constant": lambda: np.full(n, 0.37),
        "tiny": lambda: rng.uniform(2**-23, 2**-20, n),
        "powers of two": lambda: 2.0 ** rng.integers(-24, 8, n),
        "just below": lambda: np.nextafter(2.0 ** rng.integers(-20, 8, n), 0),
        "uniform wide": lambda: 10 ** rng.uniform(-7, 2, n),
    }[name]()


@pytest.mark.parametrize("n", [1, 2, 10, 1000, 60_000])
@pytest.mark.parametrize(
    "name",
    [
        "normal", "student t2", "cauchy", "pareto 0.5", "log-normal 4", "mixture", "two values", "constant",
        "tiny", "powers of two", "just below", "uniform wide",
    ],
)  # fmt: skip
def test_quantiles_are_within_the_bound_of_the_order_statistic(name, n):
    values = heavy(name, np.random.default_rng(7), n).astype(np.float32)
    got = quantiles(one_row(values).counts[0].sum(axis=0), LEVELS)
    for q, answer in zip(LEVELS, got, strict=True):
        true = order_statistic(values, q)
        if 2**-24 <= true < 2**8:
            assert abs(answer - true) <= BOUND * true
        else:
            assert answer == (256 if true >= 1 else 0)


@pytest.mark.slow
@given(
    hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-300, 300, width=32)),
    st.floats(0, 1),
)
def test_quantiles_of_anything(values, q):
    (answer,) = quantiles(one_row(values).counts[0].sum(axis=0), [q])
    true = order_statistic(values, q)
    if 2**-24 <= true < 2**8:
        assert abs(answer - true) <= BOUND * true


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_type_is_counted(dtype):
    values = np.random.default_rng(0).normal(size=1000).astype(dtype)
    expected = one_row(values.astype(np.float32))
    np.testing.assert_array_equal(one_row(values).counts, expected.counts)


def test_a_bfloat16_value_has_a_bin_of_its_own():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).bfloat16().float().numpy()
    occupied = np.flatnonzero(one_row(values).counts[0].sum(axis=0))
    inside = occupied[(occupied > 0) & (occupied < BINS - 1)]
    np.testing.assert_array_equal(np.sort(np.unique(np.abs(values))), EDGES[inside - 1])


@pytest.mark.slow
@given(hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-200, 200, width=32)), st.floats(0, 1))
def test_a_bin_holds_one_bfloat16_value(values, q):
    rounded = torch.from_numpy(values).bfloat16()
    (result,) = sketch(rounded, [torch.zeros(len(values), dtype=torch.int32)], [1])
    true = order_statistic(rounded.float().numpy(), q)
    total = np.cumsum(result.counts[0].sum(0).numpy())
    bin_ = np.searchsorted(total, int(q * (total[-1] - 1)) + 1)
    assert true == EDGES[bin_ - 1] if bin_ else true < 2**-24


rows_and_values = st.integers(0, 60).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float32, n, elements=st.floats(width=32)),
        hnp.arrays(np.int64, n, elements=st.integers(0, 3)),
    )
)


@pytest.mark.slow
@given(rows_and_values, st.integers(0, 60), st.randoms())
def test_merging_any_split_in_any_order_is_the_whole(data, cut, random):
    values, row = data
    whole = partition(values, row, 3)
    parts = [
        partition(values[:cut], row[:cut], 3),
        partition(values[cut:], row[cut:], 3),
        partition(values[:0], row[:0], 3),
    ]
    random.shuffle(parts)
    merged = parts[0] + parts[1] + parts[2]
    np.testing.assert_array_equal(merged.counts, whole.counts)
    np.testing.assert_array_equal(merged.nonfinite, whole.nonfinite)


@pytest.mark.slow
@given(rows_and_values)
def test_every_value_is_counted_once_and_non_finite_ones_separately(data):
    values, row = data
    whole = partition(values, row, 3)
    for index in range(3):
        mine = values[row == index]
        assert whole.counts[index].sum() == np.isfinite(mine).sum()
        assert whole.counts[index, 1].sum() == np.sum(np.signbit(mine) & np.isfinite(mine))
        assert whole.nonfinite[index] == np.sum(~np.isfinite(mine))


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_more_than_a_chunk_is_counted_as_one(seed):
    rng = np.random.default_rng(seed)
    n = (1 << 19) + 1000
    values, row = rng.normal(size=n).astype(np.float32), rng.integers(0, 3, n)
    whole = partition(values, row, 2)
    halves = partition(values[: n // 3], row[: n // 3], 2) + partition(values[n // 3 :], row[n // 3 :], 2)
    np.testing.assert_array_equal(whole.counts, halves.counts)


def test_values_that_nobody_may_write_to_are_counted_too(rng):
    values, row = rng.normal(size=FEW + 1).astype(np.float32), rng.integers(0, 3, FEW + 1)
    expected = partition(values, row, 3)
    values.flags.writeable = False
    np.testing.assert_array_equal(partition(values, row, 3).counts, expected.counts)


@pytest.mark.slow
@given(rows_and_values)
def test_without_torch_the_counts_are_the_same(data):
    values, row = data
    with_torch = partition(values, row, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        without = partition(values, row, 3)
    np.testing.assert_array_equal(with_torch.counts, without.counts)
    np.testing.assert_array_equal(with_torch.nonfinite, without.nonfinite)


def test_counts_do_not_stop_where_float32_would():
    big = Sketch(np.full((1, 2, BINS), 2**24, np.int64), np.zeros(1, np.int64))
    assert (big + one_row([0.5])).counts.sum() == 2 * BINS * 2**24 + 1


def test_a_value_beyond_float32_is_infinite_and_counted_separately():
    assert one_row(np.array([1e300])).nonfinite.tolist() == [1]


def test_nothing_has_no_quantile():
    assert np.isnan(quantiles(np.zeros(BINS, np.int64), [0.5])[0])


def test_rebinning_moves_counts_and_loses_none():
    values = np.concatenate([np.random.default_rng(0).lognormal(-2, 2, 5000), [0.0, 1e4]]).astype(np.float32)
    edges = np.array([0.0, 2**-10, 2**-5, 1.0, 1.5, 256.0])
    got = rebin(one_row(values).counts[0].sum(axis=0), first_bins(edges))
    expected, _ = np.histogram(np.minimum(values, 255), edges)
    np.testing.assert_array_equal(got, expected)


partitions = st.integers(0, 60).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float32, n, elements=st.floats(width=32)),
        st.lists(hnp.arrays(np.int32, n, elements=st.integers(0, 3)), min_size=1, max_size=4),
    )
)


@pytest.mark.slow
@given(partitions)
def test_several_partitions_in_one_pass_are_what_each_alone_is(data):
    values, labels = data
    together = sketch(values, labels, [3] * len(labels))
    for label, result in zip(labels, together, strict=True):
        alone = partition(values, label, 3)
        np.testing.assert_array_equal(result.counts, alone.counts)
        np.testing.assert_array_equal(result.nonfinite, alone.nonfinite)


@pytest.mark.slow
@given(partitions)
def test_the_devices_path_counts_the_same(data):
    values, labels = data
    host, device = (path(values, labels, [3] * len(labels)) for path in (sketch, on_device))
    for item, other in zip(host, device, strict=True):
        np.testing.assert_array_equal(item.counts, other.counts.numpy())
        np.testing.assert_array_equal(item.nonfinite, other.nonfinite.numpy())


@pytest.mark.slow
def test_a_bin_that_all_values_share_counts_beyond_float32():
    """2^24 + 8 equal values: a float32 counter would have stopped."""
    n = (1 << 24) + 8
    values, row = np.broadcast_to(np.float32(0.5), n), np.broadcast_to(np.int32(0), n)
    assert partition(values, row, 1).counts.max() == n
