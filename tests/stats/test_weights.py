import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracker_diag.stats.weights import WeightSums

log_weights = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(-30, 30))


def brute_force(log_w):
    """The definitions, in the widest float there is."""
    r = np.asarray(log_w, np.longdouble)
    w = np.exp(r)
    return float(w.sum() ** 2 / (w**2).sum() / len(w)), float(w.max() / w.sum()), float(np.mean(np.expm1(r) - r))


def test_known_numbers():
    found = WeightSums.of(np.array([0.0, 1.0, 2.0, 3.0]))
    assert found.ess * 4 == pytest.approx(2.08611, abs=1e-5)
    assert found.max_weight_share == pytest.approx(0.643914, abs=1e-6)
    assert WeightSums.of(np.array([-0.5, -0.1, 0.0, 0.1, 0.5])).kl_k3 == pytest.approx(0.05305205, abs=1e-8)


@given(log_weights)
def test_against_the_definitions(log_w):
    found, (ess, share, k3) = WeightSums.of(log_w), brute_force(log_w)
    assert found.ess == pytest.approx(ess, rel=1e-9)
    assert found.max_weight_share == pytest.approx(share, rel=1e-9)
    assert found.kl_k3 == pytest.approx(k3, rel=1e-9, abs=1e-12)
    assert 1 / len(log_w) - 1e-12 <= found.ess <= 1 + 1e-12


@given(log_weights, st.floats(-500, 500))
def test_a_common_factor_changes_nothing(log_w, shift):
    moved, found = WeightSums.of(log_w + shift), WeightSums.of(log_w)
    assert moved.ess == pytest.approx(found.ess, rel=1e-6)
    assert moved.max_weight_share == pytest.approx(found.max_weight_share, rel=1e-6)


@given(log_weights, st.integers(0, 60), st.integers(0, 60), st.randoms())
def test_merging_any_split_in_any_order_is_the_whole(log_w, i, j, random):
    cuts = sorted((i, j))
    parts = [WeightSums.of(part) for part in np.split(log_w, cuts)]
    random.shuffle(parts)
    merged, whole = parts[0] + parts[1] + parts[2], WeightSums.of(log_w)
    assert merged.n == whole.n
    assert merged.largest == whole.largest
    assert merged.ess == pytest.approx(whole.ess, rel=1e-9)
    assert merged.kl_k3 == pytest.approx(whole.kl_k3, rel=1e-9, abs=1e-12)


def test_weights_beyond_float64_do_not_overflow():
    found = WeightSums.of(np.array([5000.0, 4000.0, -5000.0])) + WeightSums.of(np.array([4999.0]))
    assert found.ess == pytest.approx((1 + math.exp(-1)) ** 2 / (1 + math.exp(-2)) / 4)
    assert found.max_weight_share == pytest.approx(1 / (1 + math.exp(-1)))
    assert found.kl_k3 == math.inf


def test_equal_weights_and_none():
    assert WeightSums.of(np.zeros(7)).ess == pytest.approx(1)
    none = WeightSums.of(np.empty(0))
    assert none == WeightSums()
    assert math.isnan(none.ess)
    assert math.isnan(none.max_weight_share)
    assert math.isnan(none.kl_k3)


def test_non_finite_log_weights_are_left_out():
    assert WeightSums.of(np.array([0.0, np.nan, np.inf, -np.inf, 0.0])) == WeightSums.of(np.zeros(2))


def test_float32_is_summed_in_float64():
    r = np.full(1_000_000, 0.1, np.float32)
    assert WeightSums.of(r).kl_k3 == pytest.approx(math.expm1(float(r[0])) - float(r[0]), rel=1e-9)
