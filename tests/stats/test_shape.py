"""Shape of one window against another: references computed in another way, and what it can see."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tracker_diag.stats.histogram import BINS, EDGES, QUANTILE_VALUES
from tracker_diag.stats.tails import tail_stretch

magnitudes = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(2**-10, 2**2))


def counts(values):
    return np.bincount(np.searchsorted(EDGES, np.abs(values), side="right"), minlength=BINS)


def log_ratio(values):
    p50, p99 = np.quantile(np.abs(values), [0.5, 0.99], method="lower")
    return np.log(p99 / p50)


def mixture(rng, n):
    return np.abs(np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n)))


def stretched(values):
    return np.where(values > 0.0875, 0.0875 + 1.15 * (values - 0.0875), values)


def test_against_a_reference_on_the_values_of_the_bins_and_on_the_values_themselves(rng):
    x, y = mixture(rng, 81_920), 1.3 * mixture(rng, 50_000) ** 1.2
    result = tail_stretch(counts(x), counts(y))
    of_bins = (np.repeat(QUANTILE_VALUES, counts(values)) for values in (x, y))
    assert result == pytest.approx(log_ratio(next(of_bins)) - log_ratio(next(of_bins)), abs=1e-12)
    assert result == pytest.approx(log_ratio(x) - log_ratio(y), abs=4 / 257)


def test_stretch_is_seen_and_bulk_scaling_is_not(rng):
    values = mixture(rng, 80_000)
    then, p99 = counts(values), np.quantile(values, 0.99, method="lower")
    longer = tail_stretch(counts(stretched(values)), then)
    assert longer == pytest.approx(np.log(stretched(p99) / p99), abs=4 / 257)
    assert longer > 0.06
    assert abs(tail_stretch(counts(1.1 * values), then)) <= 4 / 257


@pytest.mark.slow
@given(magnitudes, magnitudes, st.integers(-10, 5), st.integers(-10, 5))
def test_a_power_of_two_changes_no_bit_and_swapping_turns_it_around(x, y, i, j):
    plain = tail_stretch(counts(x), counts(y))
    assert tail_stretch(counts(x * 2.0**i), counts(y * 2.0**j)) == plain == -tail_stretch(counts(y), counts(x))


@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        ([], [], math.nan),
        ([], [1.0], math.nan),
        ([1.0], [], math.nan),
        ([2.0] * 50, [1.0] * 50, 0),
        ([0.0] * 50, [1.0] * 50, math.nan),
        ([300.0] * 50, [300.0] * 50, math.nan),
        ([1e30] * 50, [1.0] * 50, math.nan),
    ],
    ids=["none", "none now", "none then", "all equal", "zero now", "beyond", "beyond now"],
)
def test_bad_input_has_a_defined_answer(now, then, expected):
    result = tail_stretch(counts(np.array(now)), counts(np.array(then)))
    assert result == pytest.approx(expected, nan_ok=True)
