"""Whether a series has lost what it had gained: whatever its scale and sign, from ten rows on."""

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.detect.course import FEWEST, Course
from tracker_diag.detect.means import MOST
from tracker_diag.errors import SourceError

simulated = runpy.run_path(str(Path(__file__).parents[1] / "rules" / "simulated.py"))


def course(values, rising=True):
    result = Course(rising)
    for step, value in enumerate(values):
        result.append(10 * step, value)
    return result


def healthy(algorithm, seed):
    """The reward of a run of tests/rules/simulated.py."""
    run = simulated["healthy"](algorithm, np.random.default_rng([seed, *algorithm.encode()]))
    reward = run.series["reward"]
    return reward[np.isfinite(reward)]


def ever(values, rising=True):
    """The row at which it was first lost; None if it never was."""
    result = Course(rising)
    for step, value in enumerate(values):
        result.append(step, value)
        fall = result.fall()
        if fall and fall.lost:
            return step
    return None


def learnt(rng, rows=80):
    """A reward that rises from 0.2 to 0.7, with noise of 0.03."""
    return 0.2 + 0.5 / (1 + np.exp(-(np.arange(rows) - rows / 4) / 5)) + 0.03 * rng.normal(size=rows)


def test_a_fall_is_reported_with_its_best_level_and_its_onset(rng):
    values = learnt(rng)
    values[50:] -= np.clip((np.arange(30) + 1) / 5, 0, 1) * 0.4
    fall = course(values).fall()
    assert fall.lost
    assert fall.best == pytest.approx(0.7, abs=0.05)
    assert 0 <= fall.best_step < 500
    assert 500 <= fall.onset <= 540
    assert fall.now == pytest.approx(0.3, abs=0.05)


def test_ten_rows_are_enough_and_nine_are_not(rng):
    values = 0.7 + 0.01 * rng.normal(size=14)
    values[7:] = 0.01
    assert course(values[: FEWEST - 1]).fall() is None
    assert FEWEST <= ever(values) <= 12  # seen at the tenth row, and still there at the next


def test_it_sinks_after_three_low_rows_which_are_no_fall_yet(rng):
    values = learnt(rng)
    values[50:] -= 0.6
    assert [course(values[:rows]).sinks() for rows in (50, 51, 52)] == [None] * 3
    since, level = course(values[:53]).sinks()
    assert since == 500
    assert level == pytest.approx(0.1, abs=0.05)
    assert not course(values[:53]).fall().lost
    assert course(-values[:53], rising=False).sinks() == (since, -level)
    assert course(np.full(30, 0.7)).sinks() is None


@pytest.mark.by_day("grpo")
@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_healthy_reward_hardly_ever_sinks(algorithm):
    result = [course(healthy(algorithm, seed)[:rows]).sinks() for seed in range(10) for rows in range(20, 200, 5)]
    assert sum(item is not None for item in result) <= 0.005 * len(result)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shift", [-1000.0, 0.0, 3.0])
def test_scale_and_shift_change_nothing(rng, scale, shift):
    values = learnt(rng)
    values[50:] -= 0.4
    assert ever(scale * (values + shift)) == ever(values)


def test_what_is_better_lower_is_turned_round(rng):
    values = learnt(rng)
    values[50:] -= 0.4
    assert ever(-values, rising=False) == ever(values) is not None
    assert ever(-values) != ever(values)


@pytest.mark.parametrize("lost", [0.1, 0.9])
def test_half_of_what_was_gained_decides(rng, lost):
    values = learnt(rng, 200)
    values[150:] -= lost * 0.5
    assert course(values).fall().lost is (lost > 0.5)


def test_what_comes_back_is_not_lost(rng):
    values = learnt(rng, 120)
    values[50:70] -= 0.4
    assert ever(values) is not None
    assert not course(values).fall().lost


@pytest.mark.parametrize(("deviations", "lost"), [(2, False), (8, True)])
def test_a_fall_within_the_noise_of_a_row_is_none(rng, deviations, lost):
    """However sure many rows make it: a run that began near its best has little to lose half of."""
    values = 0.97 + 0.01 * rng.normal(size=400)
    values[200:] -= deviations * 0.01
    assert course(values).fall().lost is lost


@pytest.mark.slow
def test_a_fall_is_seen_through_noise_of_nearly_its_own_size():
    """The reward of a public run: 0.28 to 0.38 and back to 0.29 in 511 noisy rows."""
    shape = np.interp(np.arange(511), [0, 200, 300, 400, 510], [0.28, 0.38, 0.38, 0.29, 0.29])
    lost = [course(shape + 0.06 * np.random.default_rng(seed).normal(size=511)).fall().lost for seed in range(20)]
    assert sum(lost) >= 18


def test_a_bad_batch_is_no_fall_and_a_good_one_no_best(rng):
    values = learnt(rng)
    values[[30, 45, 60]] = 0.0
    assert ever(values) is None
    values[0] = 10.0
    assert ever(values) is None


@pytest.mark.slow
def test_what_was_learnt_in_40_rows_and_lost_is_reported():
    result = 0
    for seed in range(40):
        values = learnt(np.random.default_rng(seed), 40)
        values[25:] -= 0.5
        result += course(values).fall().lost
    assert result >= 30  # in the others the rows of the rise look as if they hung together


def walk(rng, phi, rows):
    """AR(1) of standard deviation 1; with φ = 1 a walk."""
    noise = rng.normal(size=rows + 100) * math.sqrt(1 - phi**2 if phi < 1 else 1)
    values = np.zeros(rows + 100)
    for t in range(1, rows + 100):
        values[t] = phi * values[t - 1] + noise[t]
    return values[100:]


@pytest.mark.by_day("grpo")
@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "gspo"])
def test_the_reward_of_a_healthy_simulated_run_is_hardly_ever_lost(algorithm):
    """Of seeds that nothing was tuned on."""
    lost = [seed for seed in range(60_000, 60_040) if ever(healthy(algorithm, seed)) is not None]
    assert len(lost) <= 1, lost


@pytest.mark.nightly
@pytest.mark.parametrize(("phi", "most"), [(0.0, 1), (0.5, 5), (0.8, 8), (1.0, 15)])
def test_noise_alone_is_rarely_a_fall(phi, most):
    """100 runs of 40 rows each, looked at in each row: independent, dependent, a walk as means over episodes are."""
    assert sum(ever(walk(np.random.default_rng(seed), phi, 40)) is not None for seed in range(100)) <= most


@pytest.mark.by_day("0.5")
@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_noise_on_a_reward_that_rises_is_no_fall(phi):
    rising = 8 / (1 + np.exp(-(np.arange(120) - 40) / 8))
    assert sum(ever(rising + walk(np.random.default_rng(seed), phi, 120)) is not None for seed in range(30)) == 0


def test_a_constant_has_not_fallen():
    assert not course([0.5] * 100).fall().lost
    assert not course([0.0] * 50 + [1.0] * 50).fall().lost


@pytest.mark.slow
def test_a_long_run_is_kept_in_few_blocks(rng):
    values = np.repeat(learnt(rng, 400), 50)
    values[15_000:] -= 0.4
    result = course(values)
    assert result.rows == 20_000
    assert len(result.state_dict()["blocks"]["means"]) < 2 * MOST
    assert result.fall().lost
    assert abs(result.fall().onset - 150_000) < 6_000  # a level is the mean of a tenth of the run


@pytest.mark.slow
@given(st.lists(st.floats(allow_nan=False), max_size=60), st.integers(0, 60))
def test_saved_at_any_row_it_continues_the_same(values, cut):
    before, whole = course(values[:cut]), course(values)
    after = Course()
    after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
    for step, value in enumerate(values[cut:], min(cut, len(values))):
        after.append(10 * step, value)
    assert after == whole
    fall = whole.fall()
    assert fall is None or fall.lost in (True, False)


def test_a_state_that_is_none_is_reported():
    with pytest.raises(SourceError, match="2 means with 1 ends"):
        Course().load_state_dict({"rows": 2, "blocks": {"size": 1, "means": [1.0, 2.0], "ends": [1], "open": []}})


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.sampled_from([60, 120, 200]), st.sampled_from([1e-6, 1.0, 1e6]))
def test_what_was_learnt_has_risen_and_is_kept_whatever_its_scale(seed, rows, scale):
    values = learnt(np.random.default_rng(seed), rows)
    gain = course(scale * (values - 3)).gain()
    assert gain.rose
    assert gain.kept
    assert gain.first < gain.now


def test_what_is_lost_again_is_not_kept(rng):
    values = learnt(rng, 120)
    values[80:] -= 0.4
    gain = course(values).gain()
    assert gain.rose
    assert not gain.kept


@pytest.mark.parametrize("rows", [20, 30, 60, 120])
def test_what_is_learnt_within_the_first_tenth_of_a_run_is_a_gain_that_is_kept(rows):
    """As a small maze is: every episode succeeds from then on, and no level is higher than another."""
    rise = [0.1, 0.1, 0.15, 0.3, 0.5, 0.7, 0.9][: 2 + rows // 20]
    assert course(rise + [1.0] * (rows - len(rise))).gain().kept


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "least"), [(12, 150), (20, 150), (30, 150), (60, 180), (120, 195)])
def test_what_is_learnt_under_noise_is_seen_in_a_few_rows(rows, least):
    """The noise of a row is a fifth of what is gained; by levels alone 30 of 200 are seen at 20 rows."""

    def kept(seed):
        noise = np.random.default_rng(seed).normal(size=rows) * 0.2
        return course(1 - np.exp(-np.arange(rows) * 5 / rows) + noise).gain().kept

    assert sum(kept(seed) for seed in range(200)) >= least


def test_a_reward_that_dips_before_it_is_learnt_thrives_before_it_is_done():
    """A mean over many episodes, which falls by a quarter at first: a rise of two such falls is none by chance."""
    dip = [-500.0, -530, -560, -590, -620, -640, -640, -600, -560, -520, -480, -440, -390, -320, -250, -190, -150, -120]
    assert course(dip).gain().kept
    assert not course(dip[:12]).gain().rose


@pytest.mark.nightly
@pytest.mark.parametrize(("episodes", "most"), [(1, 4), (10, 30), (30, 50)])
@pytest.mark.parametrize("rows", [20, 60])
def test_a_mean_over_the_last_rows_is_seldom_taken_for_a_gain_where_nothing_is_learnt(rows, episodes, most):
    """`rollout/ep_rew_mean` is one over the last hundred episodes. At most so many of 200; by levels alone 12."""

    def gain(seed):
        noise = np.random.default_rng(seed).normal(size=rows + episodes - 1)
        return course(np.convolve(noise, np.ones(episodes) / episodes, "valid"))

    result = [item for seed in range(200) if (item := gain(seed)).gain().keeps]
    assert sum(item.gain().rose for item in result) <= most
    assert sum(item.rose_surely() for item in result) <= 12


@pytest.mark.nightly
def test_noise_about_one_level_hardly_ever_rose():
    result = [course(np.random.default_rng(seed).normal(size=60)) for seed in range(200)]
    assert sum(item.gain().rose for item in result) <= 2
    assert sum(item.rose_surely() for item in result) <= 1
    assert sum(nothing_gained(np.random.default_rng(seed).normal(size=60)) for seed in range(200)) >= 190


@pytest.mark.nightly
def test_a_series_that_rises_by_little_more_than_its_noise_is_hardly_ever_said_to_have_gained_nothing():
    rise = np.linspace(0, 2, 60)
    assert sum(nothing_gained(np.random.default_rng(seed).normal(size=60) + rise) for seed in range(200)) <= 20


def nothing_gained(values):
    """Whether that is said of it at any row of its last fifth."""
    text, at = Course(), []
    for step, value in enumerate(values):
        text.append(step, value)
        if step >= 0.8 * len(values):
            at.append(text.never_rose() or text.ends_as_it_began())
    return any(at)


@pytest.mark.slow
def test_a_gain_is_no_case_of_never_however_small_it_is_next_to_what_the_reward_swings_later(rng):
    for seed in range(50):
        values = np.random.default_rng(seed).normal(size=100) * np.linspace(0.1, 1.5, 100) + np.linspace(0, 4, 100)
        assert not course(values).never_rose()


def test_a_constant_never_rose_and_a_fall_is_another_thing():
    assert course([0.5] * 40).never_rose()
    assert not course([0.5] * 30 + [0.1] * 10).never_rose()


def test_what_only_goes_up_and_down_ends_as_it_began(rng):
    walks = -np.cos(np.arange(80) * math.pi / 20)  # up and back twice
    assert course(walks + rng.normal(size=80) * 0.1).ends_as_it_began()
    assert course([0.5] * 12).ends_as_it_began()


@pytest.mark.nightly
def test_what_is_learnt_at_once_does_not_end_as_it_began():
    """All of it in the first rows of a level, which is a tenth of the run, and a noise that wanders after that."""

    def ends_as_it_began(seed, size):
        rng, noise = np.random.default_rng(seed), 0.0
        values = []
        for row in range(200):
            noise = 0.9 * noise + math.sqrt(1 - 0.9**2) * rng.normal()
            values.append(size * (1 - math.exp(-row / 3)) + 0.25 * noise)
        return course(values).ends_as_it_began()

    assert sum(ends_as_it_began(seed, size=1) for seed in range(50)) <= 12  # 29 by the levels alone
    assert sum(ends_as_it_began(seed, size=0) for seed in range(50)) >= 25


def test_two_thirds_of_a_gain_are_most_of_it(rng):
    noise = 0.01 * rng.normal(size=80)
    rises = np.concatenate([np.linspace(0, 1, 40), np.linspace(1, 1, 20)])
    assert course(np.append(rises, np.full(20, 0.75)) + noise).gain().kept
    assert not course(np.append(rises, np.full(20, 0.6)) + noise).gain().kept


@pytest.mark.slow
def test_a_gain_that_is_kept_does_not_end_as_it_began(rng):
    for seed in range(50):
        noise = np.random.default_rng(seed).normal(size=60) * 0.3
        assert not course(np.linspace(0, 2, 60) + noise).ends_as_it_began()


def test_a_fall_below_the_first_level_does_not_end_as_it_began():
    assert not course([0.5, 0.51] * 15 + [0.1] * 4).ends_as_it_began()


def test_a_fall_lasts_until_most_of_it_is_made_good(rng):
    values = learnt(rng, 200)
    values[60:] -= 0.5
    values[110:] += np.clip(np.arange(90) / 60, 0, 1) * 0.5
    result = Course()
    fallen = []
    for step, value in enumerate(values):
        result.append(step, value)
        fallen.append(result.has_fallen)
    first = fallen.index(True)
    over = fallen.index(False, first)
    assert 60 < first < 80
    assert 140 <= over <= 190  # two thirds are back at 150, and a level is the mean of a tenth of the run
    assert all(fallen[first:over])
    assert not any(fallen[over:])


@pytest.mark.parametrize("rows", [60, 200])
def test_a_fall_at_once_is_dated_to_its_first_low_row(rng, rows):
    values = learnt(rng, rows)
    values[rows // 2 :] -= 0.5
    assert course(values).fall().onset == 10 * (rows // 2)
