"""Parting: what differs is found where it begins; noise, other speeds of learning and odd values are not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tracker_diag.detect.parting import FEWEST, PARTS, T95, levels, parting

LEVELS = arrays(np.float64, (2, PARTS), elements=st.floats(-1e6, 1e6) | st.just(math.nan))


def runs(rng, many=1, *, since=PARTS, by=0.0, noise=1.0, seeds=0.0):
    """Levels of `many` runs about 10, with `by` added from part `since` on."""
    base = 10 + noise * rng.normal(size=(many, PARTS)) + seeds * rng.normal(size=(many, 1))
    return base + by * (np.arange(PARTS) >= since)


def test_levels_are_the_means_of_the_parts_as_numpy_bins_them(rng):
    places, values = np.sort(rng.uniform(0, 100, 500)), rng.normal(size=500)
    edges = np.linspace(0, 100, PARTS + 1)
    at = np.clip(np.digitize(places, edges) - 1, 0, PARTS - 1)
    expected = [values[at == part].mean() for part in range(PARTS)]
    assert levels(places, values, 0, 100, PARTS) == pytest.approx(expected)


def test_what_is_outside_is_left_out_and_a_part_without_a_value_is_nan():
    result = levels(np.array([-1.0, 0.0, 1.0, 4.0, 9.0]), np.array([99.0, 1.0, 3.0, 5.0, 99.0]), 0, 4, 4)
    assert result[[0, 1, 3]].tolist() == [1, 3, 5]
    assert math.isnan(result[2])


def test_a_step_is_found_in_its_part_with_its_size_within_the_interval(rng):
    for since in (4, 10, 15):
        result = parting(runs(rng, noise=0.1), runs(rng, noise=0.1, since=since, by=5.0), log=False)
        assert result is not None
        assert result.onset == result.parted == since
        assert result.end == PARTS - 1
        assert result.low < 5.0 < result.high
        assert result.other - result.reference == pytest.approx(5.0, abs=0.3)


def test_of_a_slow_drift_the_onset_is_before_the_part_in_which_it_is_sure(rng):
    drift = runs(rng, noise=0.05) + np.maximum(np.arange(PARTS) - 8, 0) * 0.5
    result = parting(runs(rng, noise=0.05), drift, log=False)
    assert result is not None
    assert 8 <= result.onset < result.parted < 19


def test_what_comes_back_has_an_end(rng):
    there_and_back = runs(rng, noise=0.02) + 5.0 * ((np.arange(PARTS) >= 6) & (np.arange(PARTS) < 12))
    result = parting(runs(rng, noise=0.02), there_and_back, log=False)
    assert result is not None
    assert (result.onset, result.end) == (6, 11)


def test_a_run_that_learns_three_parts_later_has_not_parted(rng):
    curve = 1 / (1 + np.exp(-(np.arange(PARTS) - 8.0) / 2))
    late = 1 / (1 + np.exp(-(np.arange(PARTS) - 11.0) / 2))
    noise = 0.03 * rng.normal(size=(2, PARTS))
    assert parting(curve[None] + noise[0], late[None] + noise[1], log=False) is None
    never = 0.03 * rng.normal(size=(1, PARTS))
    assert parting(curve[None] + noise[0], never, log=False) is not None


@pytest.mark.nightly
def test_noise_alone_does_not_part(rng):
    """White, and autocorrelated as that of a window: of 2,000 pairs at most 2 % each."""
    for phi in (0.0, 0.8):
        parted = 0
        for _ in range(2000):
            z = rng.normal(size=(2, PARTS))
            for at in range(1, PARTS):
                z[:, at] = phi * z[:, at - 1] + math.sqrt(1 - phi**2) * z[:, at]
            parted += parting(z[:1], z[1:], log=False) is not None
        assert parted <= 40


@pytest.mark.slow
def test_more_seeds_find_what_two_runs_cannot_tell(rng):
    few, more = 0, 0
    for _ in range(100):
        slope = np.arange(PARTS)  # a range outside of which one run may be by chance
        arms = [10 * slope + runs(rng, 3, noise=0.5, by=by, since=10) for by in (0.0, 12.0)]
        few += parting(arms[0][:1], arms[1][:1], log=False) is not None
        more += parting(*arms, log=False) is not None
    assert few < 10
    assert more < 10  # other speeds of learning would do that
    flat = [(runs(rng, 3, noise=0.5), runs(rng, 3, noise=0.5, by=12.0, since=10)) for _ in range(100)]
    assert sum(parting(*pair, log=False) is not None for pair in flat) > 95


@pytest.mark.slow
def test_seeds_that_are_far_from_each_other_hide_a_difference_within_their_spread(rng):
    parted = sum(
        parting(runs(rng, 3, noise=0.1, seeds=5.0), runs(rng, 3, noise=0.1, seeds=5.0, by=3.0, since=10), log=False)
        is not None
        for _ in range(100)
    )
    assert parted <= 25


def test_the_interval_is_students_and_the_spread_pooled(rng):
    groups = [runs(rng, 3, noise=0.01, seeds=1.0), runs(rng, 3, noise=0.01, seeds=1.0, since=0, by=30.0)]
    result = parting(*groups, log=False)
    assert result is not None
    means = [group.mean(axis=1) for group in groups]
    pooled = math.sqrt((means[0].var(ddof=1) + means[1].var(ddof=1)) / 2)
    assert result.spread == pytest.approx(pooled)
    assert result.high - result.low == pytest.approx(2 * T95[3] * pooled * math.sqrt(2 / 3))


def test_one_odd_seed_of_four_does_not_hide_what_the_others_show(rng):
    reference, other = runs(rng, 4, noise=0.1), runs(rng, 4, noise=0.1, by=6.0, since=10)
    other[0] = reference[0]
    assert parting(reference, other, log=False) is not None


def test_constants_part_only_where_they_differ():
    same = np.full((1, PARTS), 0.5)
    assert parting(same, same, log=False) is None
    assert parting(same, same + 1e-4, log=False) is None
    assert parting(same, same + 0.1, log=False) is not None
    assert parting(same, same + 0.1, log=False, matters=0.2) is None
    assert parting(np.zeros((1, PARTS)), np.zeros((1, PARTS)), log=False) is None


@pytest.mark.slow
@given(LEVELS, st.integers(-3, 3))
def test_units_and_direction_change_nothing_and_no_input_breaks_it(given_levels, exponent):
    whole = np.isfinite(given_levels).any(axis=1)
    if not whole.all():
        return
    unit = 2.0**exponent  # exact
    a, b = given_levels[:1], given_levels[1:]
    result, scaled = parting(a, b, log=False), parting(a * unit, b * unit, log=False)
    assert (result is None) == (scaled is None)
    negated = parting(-a, -b, log=False)
    assert (result is None) == (negated is None)
    if result is not None and scaled is not None and negated is not None:
        assert (result.onset, result.parted, result.end) == (scaled.onset, scaled.parted, scaled.end)
        assert negated.other - negated.reference == pytest.approx(result.reference - result.other)
        assert result.low <= result.other - result.reference <= result.high


def test_a_part_has_two_values_and_three_parts_are_looked_at():
    assert FEWEST // 2 >= 2 * 3
