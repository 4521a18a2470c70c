"""Shape of one window against another: references computed in another way, and what each metric can see."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import ks_2samp, linregress, wasserstein_distance

from tracker_diag.stats.histogram import BINS, EDGES, QUANTILE_VALUES
from tracker_diag.stats.shape import (
    QQ_LEVELS,
    ecdf_points,
    ks_distance,
    one_sided_quantile,
    qq_slope,
    tail_stretch,
    wasserstein,
)

LEVELS = (0.5, 0.6, 0.7, 0.8, *(1 - 10.0 ** np.linspace(-1, -3.3, 24)))
PAIRS = (tail_stretch, qq_slope, wasserstein, ks_distance)
OF_QUANTILES = (tail_stretch, qq_slope)

magnitudes = hnp.arrays(np.float64, st.integers(1, 60), elements=st.floats(2**-10, 2**2))
a_window = st.dictionaries(st.integers(0, BINS - 1), st.integers(1, 1000), min_size=1, max_size=30)
both = pytest.mark.parametrize("metric", PAIRS)


def counts(values):
    return np.bincount(np.searchsorted(EDGES, np.abs(values), side="right"), minlength=BINS)


def window(filled):
    found = np.zeros(BINS, np.int64)
    found[list(filled)] = list(filled.values())
    return found


def lower(values, levels):
    return np.quantile(np.abs(values), levels, method="lower")


def mixture(rng, n, scale=1.0):
    return np.abs(scale * np.where(rng.random(n) < 0.95, rng.normal(0, 0.05, n), 0.1 * rng.standard_t(2, n)))


def stretched(values):
    return np.where(values > 0.0875, 0.0875 + 1.15 * (values - 0.0875), values)


@pytest.fixture
def pair(rng):
    return mixture(rng, 81_920), 1.3 * mixture(rng, 50_000) ** 1.2


def test_against_references_on_the_values_of_the_bins(pair):
    now, then = (counts(values) for values in pair)
    x, y = (np.repeat(QUANTILE_VALUES, c) for c in (now, then))
    assert wasserstein(now, then) == pytest.approx(wasserstein_distance(x, y), rel=1e-9)
    assert ks_distance(now, then) == pytest.approx(ks_2samp(x, y, method="asymp").statistic, rel=1e-9)
    (x50, x99), (y50, y99) = lower(x, [0.5, 0.99]), lower(y, [0.5, 0.99])
    assert tail_stretch(now, then) == pytest.approx(np.log(x99 / x50) - np.log(y99 / y50), abs=1e-12)
    slope = linregress(np.log(lower(y, LEVELS)), np.log(lower(x, LEVELS))).slope
    assert qq_slope(now, then) == pytest.approx(slope - 1, abs=1e-12)


def test_against_references_on_the_values_themselves(pair):
    x, y = pair
    now, then = counts(x), counts(y)
    assert abs(wasserstein(now, then) - wasserstein_distance(x, y)) <= (x.mean() + y.mean()) / 257
    exact = ks_2samp(x, y, method="asymp").statistic
    fullest = max(now.max() / now.sum(), then.max() / then.sum())
    assert exact - fullest <= ks_distance(now, then) <= exact + 1e-12
    (x50, x99), (y50, y99) = lower(x, [0.5, 0.99]), lower(y, [0.5, 0.99])
    assert abs(tail_stretch(now, then) - np.log(x99 / x50) + np.log(y99 / y50)) <= 4 / 257
    slope = linregress(np.log(lower(y, LEVELS)), np.log(lower(x, LEVELS))).slope
    assert qq_slope(now, then) == pytest.approx(slope - 1, abs=0.005)


def test_levels_run_from_the_median_to_p99_95():
    assert QQ_LEVELS == LEVELS
    assert (len(QQ_LEVELS), QQ_LEVELS[4]) == (28, 0.9)
    assert QQ_LEVELS[-1] == pytest.approx(0.9995, abs=2e-6)


@pytest.mark.parametrize("power", [0.8, 1.0, 1.25])
def test_the_qq_slope_is_the_exponent(rng, power):
    values = mixture(rng, 80_000)
    assert qq_slope(counts(3 * values**power), counts(values)) == pytest.approx(power - 1, abs=0.005)


def test_stretch_is_seen_and_bulk_scaling_is_not(rng):
    values = mixture(rng, 80_000)
    then, longer, larger = counts(values), counts(stretched(values)), counts(1.1 * values)
    p99 = lower(values, 0.99)
    assert tail_stretch(longer, then) == pytest.approx(np.log(stretched(p99) / p99), abs=4 / 257)
    assert tail_stretch(longer, then) > 0.06
    assert qq_slope(longer, then) > 0.02
    assert abs(tail_stretch(larger, then)) <= 4 / 257
    assert abs(qq_slope(larger, then)) <= 0.005
    assert wasserstein(larger, then) == pytest.approx(0.1 * values.mean(), rel=0.1)
    assert ks_distance(larger, then) > 3 * ks_distance(longer, then)


@pytest.mark.slow
def test_what_each_metric_can_tell_from_the_noise_of_the_scale():
    """The power study in small: d′ is the shift of the mean in standard deviations of windows that are healthy."""
    rng = np.random.default_rng(4)

    def steps(n):
        """Of 4,096 tokens each; log-scale AR(0.7) with a standard deviation of 5 %."""
        level, found = 0.05 * rng.normal(), []
        for _ in range(n):
            found.append(mixture(rng, 4096, math.exp(level)))
            level = 0.7 * level + 0.05 * math.sqrt(1 - 0.7**2) * rng.normal()
        return np.concatenate(found)

    changes = (lambda values: values, stretched, lambda values: 1.1 * values)
    found = np.empty((len(changes), 20, len(PAIRS)))
    for row in range(20):
        values, then = steps(20), counts(steps(40))
        found[:, row] = [[metric(counts(change(values)), then) for metric in PAIRS] for change in changes]
    null, *changed = found
    stretch, bulk = (
        dict(zip(PAIRS, (shifted - null).mean(axis=0) / null.std(axis=0), strict=True)) for shifted in changed
    )
    # Far from the figures of many windows: 3.7, 2.3, 0.6, 0.1 for the stretch and 0, 0, 4.7, 4.6 for the bulk.
    assert stretch[tail_stretch] > 2
    assert stretch[qq_slope] > 1
    assert all(abs(bulk[metric]) < 0.2 for metric in OF_QUANTILES)
    assert all(abs(stretch[metric]) < 1.2 for metric in (ks_distance, wasserstein))
    assert all(bulk[metric] > 2.5 for metric in (ks_distance, wasserstein))


@pytest.mark.slow
@pytest.mark.parametrize("metric", OF_QUANTILES)
@given(magnitudes, magnitudes, st.integers(-10, 5), st.integers(-10, 5))
def test_a_power_of_two_changes_no_bit(metric, x, y, i, j):
    plain, scaled = metric(counts(x), counts(y)), metric(counts(x * 2.0**i), counts(y * 2.0**j))
    assert scaled == plain or (math.isnan(scaled) and math.isnan(plain))


@pytest.mark.slow
@given(magnitudes, magnitudes)
def test_swapping_the_windows_turns_the_stretch_around(x, y):
    assert tail_stretch(counts(x), counts(y)) == -tail_stretch(counts(y), counts(x))


@pytest.mark.slow
@given(a_window, a_window, a_window)
def test_distances_are_distances(x, y, z):
    x, y, z = window(x), window(y), window(z)
    for distance, limit in ((ks_distance, 1), (wasserstein, 256)):
        assert distance(x, x) == 0
        assert distance(x, y) == distance(y, x)
        assert 0 <= distance(x, y) <= limit
        assert distance(x, z) <= distance(x, y) + distance(y, z) + 1e-9
        assert distance(x, y) > 0 or (x * y.sum() == y * x.sum()).all()


@pytest.mark.slow
@both
@given(a_window, a_window, st.integers(2, 50))
def test_the_size_of_a_window_does_not_matter_to_the_ecdf(metric, x, y, times):
    x, y = window(x), window(y)
    if metric in OF_QUANTILES:  # the rank floor(q(n − 1)) moves with n, where it is not on a plateau
        x, y = x * 10**6, y * 10**6
    got, expected = metric(times * x, times * y), metric(x, y)
    assert got == expected or (math.isnan(got) and math.isnan(expected))


@both
def test_the_same_window_twice_is_no_change(metric, rng):
    now = counts(mixture(rng, 5000))
    assert metric(now, now) == 0


@pytest.mark.parametrize(
    ("now", "then", "expected"),
    [
        ([], [], [math.nan, math.nan, math.nan, math.nan]),
        ([], [1.0], [math.nan, math.nan, math.nan, math.nan]),
        ([1.0], [], [math.nan, math.nan, math.nan, math.nan]),
        ([1.0], [1.0], [0, math.nan, 0, 0]),
        ([2.0] * 50, [1.0] * 50, [0, math.nan, 1.0039, 1]),
        ([0.0] * 50, [0.0] * 50, [math.nan, math.nan, 0, 0]),
        ([0.0] * 50, [1.0] * 50, [math.nan, math.nan, 1.0039, 1]),
        ([300.0] * 50, [300.0] * 50, [math.nan, math.nan, 0, 0]),
        ([1e30] * 50, [1.0] * 50, [math.nan, math.nan, 254.9961, 1]),
    ],
    ids=["none", "none now", "none then", "one", "all equal", "all zero", "zero now", "beyond", "beyond now"],
)
def test_bad_input_has_a_defined_answer(now, then, expected):
    got = [metric(counts(np.array(now)), counts(np.array(then))) for metric in PAIRS]
    assert got == pytest.approx(expected, abs=1e-4, nan_ok=True)


def test_one_window_that_is_all_equal(rng):
    spread, equal = counts(mixture(rng, 5000)), counts(np.full(5000, 0.1))
    assert qq_slope(equal, spread) == -1
    assert math.isnan(qq_slope(spread, equal))
    assert tail_stretch(spread, equal) == -tail_stretch(equal, spread) > 1


def test_only_a_quantile_that_is_asked_for_has_to_be_in_range(rng):
    values = mixture(rng, 100_000)
    then = counts(values)
    values[:400] = 300.0  # 0.4 %: p99 is known, p99.95 is not
    assert math.isfinite(tail_stretch(counts(values), then))
    assert math.isnan(qq_slope(counts(values), then))
    values[:60_000] = 0.0
    assert math.isnan(tail_stretch(counts(values), then))


@pytest.mark.slow
@given(a_window, st.integers(2, 40))
def test_points_of_the_curve(filled, n_points):
    found = window(filled)
    values, shares = ecdf_points(found, n_points)
    assert len(values) == len(shares) == min(n_points, len(filled))
    assert values[0] == QUANTILE_VALUES[min(filled)]
    assert (values[-1], shares[-1]) == (QUANTILE_VALUES[max(filled)], 1)
    assert (np.diff(values) > 0).all()
    all_values = np.repeat(QUANTILE_VALUES, found)
    np.testing.assert_allclose(shares, [(all_values <= value).mean() for value in values], rtol=1e-12)


@pytest.mark.slow
@given(a_window, st.integers(2, 10))
def test_points_are_spread_evenly_over_the_bins(filled, n_points):
    assume(len(filled) > n_points)
    values, _ = ecdf_points(window(filled), n_points)
    steps = np.diff(np.searchsorted(QUANTILE_VALUES[sorted(filled)], values))
    assert max(steps) - min(steps) <= 1


def test_nothing_to_draw_is_no_points():
    assert [len(part) for part in ecdf_points(np.zeros(BINS, np.int64), 10)] == [0, 0]


def test_one_point_is_no_curve():
    with pytest.raises(ValueError, match="n_points is 1; a curve needs at least 2, for its first and its last value"):
        ecdf_points(window({5: 1}), 1)


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_tails_of_either_sign_are_quantiles_of_what_is_above_and_below_zero(level):
    rng = np.random.default_rng(3)
    r = np.where(rng.random(20_000) < 0.7, rng.normal(0.01, 0.05, 20_000), -rng.gamma(0.3, 0.4, 20_000))
    signed = np.stack([counts(r[r >= 0]), counts(r[r < 0])])
    for side, sign in ((0, 1), (1, -1)):
        expected = np.quantile(np.maximum(sign * r, 0), level, method="lower")
        assert one_sided_quantile(signed, side, level) == pytest.approx(expected, rel=0.004, abs=1e-7)
