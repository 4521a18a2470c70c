import math
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracker_diag.stats.histogram import BINS, sketch
from tracker_diag.stats.weights import WeightSums, applied_sums, clip_fraction

log_weights = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-30, 30))


def brute_force(log_w):
    """The definitions, in the widest float there is."""
    r = np.asarray(log_w, np.longdouble)
    w = np.exp(r)
    p = w / w.sum()
    return {
        "ess": float(w.sum() ** 2 / (w**2).sum() / len(w)),
        "max_weight_share": float(p.max()),
        "chi2": float(np.mean(w**2) / np.mean(w) ** 2 - 1),
        "mean": float(r.mean()),
        "variance": float(r.var()),
        "kl_k3": float(np.mean(np.expm1(r) - r)),
    }


def test_known_numbers():
    result = WeightSums.summed(np.array([0.0, 1.0, 2.0, 3.0]))
    assert result.ess * 4 == pytest.approx(2.08611, abs=1e-5)
    assert result.max_weight_share == pytest.approx(0.643914, abs=1e-6)
    around = np.array([-0.5, -0.1, 0.0, 0.1, 0.5])
    sums = WeightSums.summed(around)
    assert (sums.mean, sums.variance, sums.chi2) == pytest.approx((0, 0.104, 0.10491331), abs=1e-8)
    assert sums.kl_k3 == pytest.approx(0.05305205, abs=1e-8)


@pytest.mark.slow
@given(log_weights)
def test_against_the_definitions(log_w):
    result = WeightSums.summed(log_w)
    for name, expected in brute_force(log_w).items():
        assert getattr(result, name) == pytest.approx(expected, rel=1e-9, abs=1e-12), name
    assert 1 / len(log_w) - 1e-12 <= result.ess <= 1 + 1e-12


@pytest.mark.slow
@given(log_weights, st.floats(-500, 500))
def test_a_common_factor_changes_nothing(log_w, shift):
    moved, result = WeightSums.summed(log_w + shift), WeightSums.summed(log_w)
    assert moved.ess == pytest.approx(result.ess, rel=1e-6)
    assert moved.max_weight_share == pytest.approx(result.max_weight_share, rel=1e-6)


@pytest.mark.slow
@given(log_weights, st.integers(0, 60), st.integers(0, 60), st.randoms())
def test_merging_any_split_in_any_order_is_the_whole(log_w, i, j, random):
    cuts = sorted((i, j))
    parts = [WeightSums.summed(part) for part in np.split(log_w, cuts)]
    random.shuffle(parts)
    merged, whole = parts[0] + parts[1] + parts[2], WeightSums.summed(log_w)
    assert merged.n == whole.n
    assert merged.largest == whole.largest
    for name in ("ess", "chi2", "mean", "kl_k3"):
        assert getattr(merged, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-11, nan_ok=True), name


def test_weights_beyond_float64_do_not_overflow():
    result = WeightSums.summed(np.array([5000.0, 4000.0, -5000.0])) + WeightSums.summed(np.array([4999.0]))
    assert result.ess == pytest.approx((1 + math.exp(-1)) ** 2 / (1 + math.exp(-2)) / 4)
    assert result.max_weight_share == pytest.approx(1 / (1 + math.exp(-1)))
    assert result.kl_k3 == math.inf


def test_equal_weights_and_none():
    assert WeightSums.summed(np.zeros(7)).ess == pytest.approx(1)
    none = WeightSums.summed(np.empty(0))
    assert float(none.n) == 0
    assert math.isnan(none.ess)
    assert math.isnan(none.max_weight_share)
    assert math.isnan(none.kl_k3)


def test_non_finite_log_weights_are_left_out():
    given, finite = WeightSums.summed(np.array([0.0, np.nan, np.inf, -np.inf, 0.0])), WeightSums.summed(np.zeros(2))
    np.testing.assert_array_equal(given.array(), finite.array())


def test_float32_is_summed_in_float64():
    r = np.full(1_000_000, 0.1, np.float32)
    assert WeightSums.summed(r).kl_k3 == pytest.approx(math.expm1(float(r[0])) - float(r[0]), rel=1e-9)


@pytest.mark.slow
@given(log_weights, st.data())
def test_a_mask_is_a_selection(log_w, data):
    member = data.draw(hnp.arrays(np.bool_, len(log_w)))
    result, expected = WeightSums.summed(log_w, member), WeightSums.summed(log_w[member])
    np.testing.assert_allclose(result.array(), expected.array(), rtol=1e-12, atol=1e-9)


@pytest.mark.slow
@given(log_weights)
def test_the_devices_path_sums_the_same(log_w):
    host, device = WeightSums.summed(log_w), WeightSums.summed(torch.from_numpy(log_w))
    np.testing.assert_allclose(device.array().numpy(), host.array(), rtol=1e-12, atol=1e-12)
    both = device + device
    np.testing.assert_allclose(both.array().numpy(), (host + host).array(), rtol=1e-12, atol=1e-12)


def test_sets_side_by_side_merge_set_by_set():
    parts = [WeightSums.summed(np.array(values)) for values in ([0.0, 1.0], [2.0], [3.0, -1.0, 0.5])]
    first = WeightSums.summed(np.array([0.0, 1.0, 2.0]), np.array([[True, True, False], [False, False, True]]))
    second = WeightSums.summed(
        np.array([[3.0, -1.0, 0.5], [np.nan, np.inf, 7.0]]), np.array([[True] * 3, [True, True, False]])
    )
    for stacked in (first + second, WeightSums.merged(np.stack([first.array(), second.array()]))):
        np.testing.assert_allclose(stacked[0].array(), (parts[0] + parts[2]).array())
        np.testing.assert_allclose(stacked[1].array(), parts[1].array())
        np.testing.assert_array_equal(WeightSums(*stacked.array()).array(), stacked.array())


members = hnp.arrays(np.bool_, st.tuples(st.integers(1, 3), st.integers(0, 60)))
any_weights = st.floats(-700, 700) | st.sampled_from([0.0, math.nan, math.inf, -math.inf])


@pytest.mark.slow
@given(members, st.data(), st.booleans())
def test_sets_in_one_pass_are_each_on_its_own(member, data, from_numerator):
    log_w = data.draw(hnp.arrays(np.float64, member.shape[1], elements=any_weights))
    result = WeightSums.summed(log_w, member, from_numerator=from_numerator)
    device = WeightSums.summed(torch.from_numpy(log_w), torch.from_numpy(member), from_numerator=from_numerator)
    for i, item in enumerate(member):
        kept = log_w[item & np.isfinite(log_w)]
        alone = WeightSums.summed(kept, from_numerator=from_numerator) if kept.size else WeightSums.none()
        np.testing.assert_allclose(result[i].array(), alone.array(), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(device[i].array().numpy(), alone.array(), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@given(st.lists(hnp.arrays(np.float64, st.integers(0, 20), elements=any_weights), min_size=1, max_size=9))
def test_merging_in_one_go_is_adding_up(parts):
    """Also of steps in which a slice has no tokens."""
    sums = [WeightSums.summed(part) for part in parts]
    merged = WeightSums.merged(np.stack([item.array() for item in sums]))
    np.testing.assert_allclose(merged.array(), reduce(add, sums).array(), rtol=1e-12, atol=1e-12)


def heavy(n=1_000_000):
    rng = np.random.default_rng(3)
    return np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n))


def test_the_sketch_alone_gives_them_too():
    """Statistics of slices that get no exact sums, on a million heavy-tailed values; k1, a mean near 0, is worst."""
    r = heavy().clip(-2, 2) + np.random.default_rng(0).normal(0, 0.01, 1_000_000)
    (result,) = sketch(r, [np.zeros(len(r), np.int32)], [1])
    of_sketch, exact = WeightSums.of_counts(result.counts[0]), WeightSums.summed(r.astype(np.float32))
    for name, bound in {"ess": 1e-3, "chi2": 1e-3, "kl_k3": 1e-3, "max_weight_share": 0.05}.items():
        assert getattr(of_sketch, name) == pytest.approx(getattr(exact, name), rel=bound), name
    assert of_sketch.mean == pytest.approx(exact.mean, abs=1e-6)
    outside = np.mean((np.exp(r) > 1.2) | (np.exp(r) < 0.8))
    assert clip_fraction(result.counts[0], 0.2, 0.2) == pytest.approx(outside, rel=0.01)


def test_a_sum_that_one_huge_weight_carries_is_off_by_the_width_of_its_bin():
    r = np.append(np.zeros(999), 20.0)
    (result,) = sketch(r, [np.zeros(len(r), np.int32)], [1])
    ratio = WeightSums.of_counts(result.counts[0]).kl_k3 / WeightSums.summed(r).kl_k3
    assert ratio == pytest.approx(math.exp(0.0625), rel=1e-4)


def test_the_clip_range_has_two_sides():
    (result,) = sketch(np.array([-0.5, -0.1, 0.0, 0.1, 0.5]), [np.zeros(5, np.int32)], [1])
    assert clip_fraction(result.counts[0], 0.2, 0.2) == 0.4
    assert clip_fraction(result.counts[0], 0.2, 1.0) == 0.2
    assert clip_fraction(result.counts[0], 0.9, 0.2) == 0.2
    assert math.isnan(clip_fraction(np.zeros((2, BINS), np.int64), 0.2, 0.2))


def test_what_truncation_hides_is_shown_next_to_it():
    """Weights clamped to [0.5, 2] look healthy; the raw ones, of which one in two was changed, do not."""
    r = np.random.default_rng(0).normal(0, 8, 4096)
    applied = np.exp(r).clip(0.5, 2)
    n, total, squares, modified, _ = applied_sums(applied, r, np.ones(4096, bool))
    assert total**2 / squares / n > 0.7
    assert WeightSums.summed(r).ess < 0.01
    assert modified / n == pytest.approx(np.mean(abs(r) > np.log(2)), abs=0.01)
    on_device = applied_sums(torch.from_numpy(applied), torch.from_numpy(r), torch.ones(4096, dtype=torch.bool))
    np.testing.assert_allclose(on_device.numpy(), [n, total, squares, modified, 0])


def test_applied_weights_that_are_the_raw_ones_are_unmodified_in_bfloat16_too():
    r = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 0.3
    applied = r.exp().bfloat16().float()
    assert applied_sums(applied, r, torch.ones(1000, dtype=torch.bool))[3] == 0
    masked = applied_sums(torch.zeros(1000), r, torch.ones(1000, dtype=torch.bool))
    assert masked.tolist() == [1000, 0, 0, 1000, 0]
    broken = applied_sums(torch.full((1000,), torch.nan), r, torch.ones(1000, dtype=torch.bool))
    assert broken.tolist() == [0, 0, 0, 0, 1000]
