"""Growth beyond earlier runs: what is normal by them, how wide that is, and how often a healthy run leaves it."""

import math

import numpy as np
import pytest

from tracker_diag.detect.known import KnownCusum


def against(runs, values, **options):
    """The steps at which `values` have grown beyond `runs`."""
    detector = KnownCusum(**options)
    detector.know(runs)
    held = []
    for step, value in enumerate(values):
        detector.update(step, value)
        if detector.holds:
            held.append(step)
    return held


def course(rng, level, steps=150, noise=0.1):
    """A healthy series: `level`, with noise of the logarithm as AR(.8)."""
    y, result = 0.0, []
    for _ in range(steps):
        y = 0.8 * y + noise * math.sqrt(1 - 0.8**2) * rng.normal()
        result.append(level * math.exp(y))
    return result


def test_a_series_is_judged_from_its_first_block_on():
    held = against([[0.1] * 60], [0.2] * 20)
    assert held == list(range(4, 20))
    detector = KnownCusum()
    detector.know([[0.1] * 60])
    assert (detector.ready, detector.holds) == (True, False)
    assert detector.baseline == pytest.approx(0.1)


@pytest.mark.parametrize(("runs", "limit"), [(1, 1.64), (2, 1.45), (5, 1.28), (30, 1.22)])
def test_more_runs_that_agree_tell_smaller_growth(runs, limit):
    same = [[0.1] * 60] * runs
    assert not against(same, [0.1 * (limit - 0.02)] * 100)
    assert against(same, [0.1 * (limit + 0.02)] * 100)


def test_runs_that_are_far_from_each_other_widen_what_is_normal():
    assert against([[0.1] * 60] * 3, [0.22] * 50)
    assert not against([[level] * 60 for level in (0.05, 0.1, 0.2)], [0.22] * 50)


def test_a_run_that_starts_as_high_as_the_earlier_one_did_and_learns_is_normal():
    falling = [0.1 * (1 + 1.5 * math.exp(-step / 40)) for step in range(200)]
    assert not against([falling], falling)
    assert not against([falling], [1.2 * value for value in falling])
    assert against([falling], [3 * value for value in falling])


def test_a_short_earlier_run_counts_with_what_it_has():
    assert against([[0.1] * 23], [0.2] * 10)
    assert not against([[0.1] * 23], [0.1] * 10)


def test_a_run_of_less_than_two_blocks_tells_nothing():
    detector = KnownCusum()
    detector.know([[0.1] * 9])
    assert not detector.ready
    assert against([[0.1] * 60, [5.0] * 9], [0.2] * 10) == against([[0.1] * 60], [0.2] * 10)


def test_what_is_worse_when_it_falls_is_held_against_the_lowest_level():
    assert against([[0.5] * 60], [0.2] * 20, direction="falling")
    assert not against([[0.5] * 60 + [0.2] * 60], [0.2] * 20, direction="falling")
    assert not against([[0.5] * 60], [2.0] * 20, direction="falling")


def test_a_level_that_is_better_for_long_is_not_followed():
    """The run's own detector does; this one tells what the earlier runs say, whatever the run has learnt since."""
    assert not against([[0.1] * 60], [0.01] * 200 + [0.15] * 50)


@pytest.mark.by_day("1")
@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 3])
def test_few_healthy_runs_of_other_seeds_are_alarmed_and_most_ill_ones_are(runs):
    """With the spread between seeds that is presumed; noise of the logarithm 0.10, AR(.8)."""
    rng = np.random.default_rng(runs)

    def level():
        return 0.1 * math.exp(0.15 * rng.normal())

    alarmed = result = 0
    for _ in range(200):
        earlier = [course(rng, level()) for _ in range(runs)]
        alarmed += bool(against(earlier, course(rng, level())))
        result += bool(against(earlier, course(rng, 3 * level(), steps=50)))
    assert alarmed <= 6  # 3 %
    assert result >= 190
