"""The noise of a series whose level nobody knows, held against processes whose noise is known, and against numpy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.detect.noise import (
    DOUBT,
    centred,
    dependence,
    deviation_of,
    error_of_difference,
    medians_of,
    noise_of,
    quantile_of,
    ranks_of,
)


def standard_error(y, width, doubt=DOUBT):
    """Of the difference of two means of `width` values of `y`."""
    return error_of_difference(*dependence(y, doubt), width)


@pytest.mark.parametrize("course", [0.0, 0.05])
def test_noise_is_that_about_a_level_that_changes_steadily(rng, course):
    result = [noise_of(rng.normal(0, 2, 400) + course * np.arange(400)) for _ in range(20)]
    assert np.mean(result) == pytest.approx(2, rel=0.1)


def test_a_fall_adds_no_noise(rng):
    y = rng.normal(0, 1, 200)
    fallen = y - 50 * (np.arange(200) >= 100)
    assert noise_of(fallen) == pytest.approx(noise_of(y), rel=0.1)
    assert standard_error(fallen, 20) == pytest.approx(standard_error(y, 20), rel=0.1)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_standard_error_is_that_of_two_distant_means(rng, phi):
    """Of an AR(1) with deviation 1; without doubt about the share of turns."""

    def series():
        y = [rng.normal()]
        for step in rng.normal(0, math.sqrt(1 - phi * phi), 999):
            y.append(phi * y[-1] + step)
        return np.array(y)

    runs = [series() for _ in range(200)]
    differences = [y[:40].mean() - y[-40:].mean() for y in runs]
    messages = np.median([standard_error(y, 40, doubt=0.0) for y in runs])
    assert messages == pytest.approx(np.std(differences), rel=0.2)


def test_doubt_makes_it_larger(rng):
    y = rng.normal(0, 1, 40)
    assert standard_error(y, 4, 1.0) > standard_error(y, 4) > standard_error(y, 4, 0.0)


@pytest.mark.slow
@given(st.lists(st.floats(0, 1e100), min_size=1, max_size=300), st.floats(0, 1))
def test_quantile_and_medians_are_those_of_numpy_to_the_bit(values, level):
    y = np.array(values)
    assert quantile_of(y, level) == np.quantile(y, level)
    for width in {1, 2, 3, len(y)}:
        rows = np.lib.stride_tricks.sliding_window_view(y, min(width, len(y)))
        np.testing.assert_array_equal(medians_of(rows), np.median(rows, axis=1))


@given(st.lists(st.floats(-1e100, 1e100), min_size=2, max_size=300))
def test_deviation_is_that_of_numpy_to_the_bit(values):
    y = np.array(values)
    assert deviation_of(centred(y)) == y.std(ddof=1)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=100))
def test_ranks_are_scipys_counted_from_the_middle(values):
    from scipy.stats import rankdata

    np.testing.assert_array_equal(ranks_of(np.array(values, float)), rankdata(values) - 0.5)
