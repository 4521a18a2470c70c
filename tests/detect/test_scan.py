"""The scan over pairs of windows: its table against the process it was made from, and what no window may mistake."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.detect.scan import LIMITS, drops, limit_of, noise, without_odd

table = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "falls.py"))


def fallen(y):
    return bool(drops(y, *noise(y[None])))


def level(rng, rows, phi=0.0):
    """An AR(1) about one level, of deviation 1."""
    y = rng.normal(size=rows + 50) * math.sqrt(1 - phi * phi)
    for at in range(1, len(y)):
        y[at] += phi * y[at - 1]
    return y[50:]


@given(st.integers(0, 2**32 - 1), st.integers(10, 255))
def test_a_drop_is_what_the_maker_of_the_table_scores(seed, rows):
    y = np.random.default_rng(seed).normal(size=rows).cumsum()
    (score,), (rho,) = table["scores"](y[None])
    assert fallen(y) == (score > limit_of(rows, rho))


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
def test_a_level_hardly_ever_drops_at_any_row(phi):
    """One series in 1,000 may, at any of its rows; of 150 more than two would be chance of 1 in 1,000."""
    rng = np.random.default_rng(7)
    seen = sum(any(fallen(y[:rows]) for rows in range(10, 120, 2)) for y in (level(rng, 120, phi) for _ in range(150)))
    assert seen <= 2


@pytest.mark.nightly
def test_the_table_is_what_its_command_prints():
    np.testing.assert_allclose(table["limits"](), LIMITS, atol=0.06)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scale_and_shift_change_nothing(rng, scale):
    y = np.concatenate([level(rng, 40), level(rng, 15) - 8])
    assert fallen(y)
    assert fallen(scale * (y - 3))


def test_one_odd_value_makes_no_drop_and_rare_successes_are_noise(rng):
    y = level(rng, 60)
    y[0], y[-1] = 40.0, -40.0
    assert not fallen(y)
    rare = np.zeros(160)
    rare[[20, 61, 90, 118, 121, 125]] = 1.0
    assert not fallen(rare)
    assert noise(rare[None])[0] == pytest.approx(rare.std(), rel=0.05)


def test_a_constant_does_not_drop_by_rounding():
    assert not fallen(np.full(200, 0.42) + np.linspace(0, -1e-15, 200))


def test_an_odd_value_is_the_median_of_itself_and_its_neighbours():
    y = np.array([[9.0, 0.0, 1.0, 9.0, 1.0, 2.0]])
    np.testing.assert_array_equal(without_odd(y, np.array([1.0])), [[1.0, 0.0, 1.0, 1.0, 1.0, 2.0]])
