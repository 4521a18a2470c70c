"""Robust trend against scipy and brute force."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.detect.robust import mann_kendall, theil_sen

FINITE = st.floats(allow_nan=False, allow_infinity=False)
SERIES = st.lists(st.integers(-5, 5).map(float) | st.floats(-1e6, 1e6), min_size=2, max_size=25)


@pytest.mark.slow
@settings(deadline=None)
@given(SERIES)
def test_theil_sen_is_the_median_slope_of_all_pairs(y):
    from scipy.stats import theilslopes

    assert theil_sen(y) == pytest.approx(float(theilslopes(y)[0]), rel=1e-9, abs=1e-12)


def test_theil_sen_is_unmoved_by_outliers():
    y = 0.5 * np.arange(20)
    y[[3, 7, 15]] = 1e9
    assert theil_sen(y) == 0.5


@pytest.mark.slow
@settings(deadline=None)
@given(SERIES)
def test_mann_kendall_is_its_formula(y):
    s = sum((b > a) - (b < a) for a, b in combinations(y, 2))
    n, ties = len(y), [y.count(value) for value in set(y)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in ties)) / 18
    expected = 0.0 if s == 0 else (s - math.copysign(1, s)) / math.sqrt(variance)
    assert mann_kendall(y) == pytest.approx(expected)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.integers(-4, 4).map(float), min_size=3, max_size=25).filter(lambda y: len(set(y)) > 1))
def test_mann_kendall_agrees_with_kendalls_tau(y):
    """With scipy's asymptotic p, which has the same variance and no correction for continuity."""
    s = sum((b > a) - (b < a) for a, b in combinations(y, 2))
    from scipy.stats import kendalltau, norm

    z = norm.isf(kendalltau(np.arange(len(y)), y, method="asymptotic").pvalue / 2)
    assert abs(mann_kendall(y)) == pytest.approx(z * (abs(s) - 1) / abs(s) if s else 0, abs=1e-6)


def test_a_worked_trend():
    # n = 4, all pairs rise: S = 6, variance 4·3·13/18.
    assert mann_kendall([1, 2, 3, 4]) == pytest.approx(5 / math.sqrt(156 / 18))
    assert mann_kendall([4, 3, 2, 1]) == pytest.approx(-5 / math.sqrt(156 / 18))
    assert mann_kendall([7.0] * 9) == 0
    assert mann_kendall([1, 2]) == 0  # one pair is no trend


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(FINITE, min_size=2, max_size=20))
def test_no_answer_is_infinite(values):
    assert np.isfinite([theil_sen(values), mann_kendall(values)]).all()
