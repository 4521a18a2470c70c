"""An evaluation that stays behind its reward, and those that do not."""

import numpy as np
import pytest

from tracker_diag.detect.following import following
from tracker_diag.detect.means import MOST, BlockMeans


def course(reward, evaluation, *, every=10, noise=0.01, seed=0, steps=200):
    """The answer after each evaluation of a run whose levels are `reward(step)` and `evaluation(step)`."""
    rng, first, second, answers = np.random.default_rng(seed), BlockMeans(), BlockMeans(), []
    for step in range(steps):
        first.append(step, reward(step) + rng.normal(0, 0.04))
        if step % every == 0:
            second.append(step, evaluation(step) + rng.normal(0, noise))
            answers.append(following(first, second))
    return answers


def saturating(low, high, pace):
    return lambda step: low + (high - low) * (1 - np.exp(-step / pace))


def hacked(step):
    return 0.2 + 0.002 * step + (0.5 if step >= 100 else 0)


def learns_until_100(step):
    return 0.2 + 0.0008 * min(step, 100)


def test_a_hack_is_seen_and_dated_and_stays():
    last = course(hacked, learns_until_100)[-1]
    assert last.behind
    assert 80 <= last.step <= 110
    assert last.now - last.before < last.expected / 4


@pytest.mark.by_day("100-0.03-1", "250-0.005-10")
@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("noise", [0.005, 0.03])
@pytest.mark.parametrize("pace", [100, 250])
def test_an_evaluation_that_follows_however_slowly_is_not_left_behind(every, noise, pace):
    for seed in range(10):
        answers = course(saturating(0.2, 0.8, 100), saturating(0.25, 0.65, pace), every=every, noise=noise, seed=seed)
        behind = "".join("x" if now and now.behind else " " for now in answers)
        assert max(map(len, behind.split()), default=0) * every < 20  # for as long as the rules ask


@pytest.mark.parametrize("odd", [0.0, 2.8, 3.6])
def test_one_odd_evaluation_at_the_ceiling_of_a_solved_task_is_no_gap(odd):
    def solved(step):
        return odd if step in {320, 360} else -3.6 if step < 40 else 4.0

    assert not any(now and now.behind for now in course(saturating(-3, 3.8, 80), solved, noise=0.0, steps=400))


def test_a_reward_that_climbs_back_after_harder_tasks_asks_nothing_of_the_evaluation():
    def harder(step):
        return (0.45 + 0.003 * step) if step < 100 else 0.45 + 0.0016 * (step - 100)

    assert not any(now and now.behind for now in course(harder, saturating(0.48, 0.72, 120)))


def test_an_evaluation_that_falls_while_the_reward_rises_has_parted_whatever_its_pace():
    assert course(lambda step: 0.2 + 0.004 * step, lambda step: 0.5 - 0.002 * step)[-1].behind


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_scale_of_either_series_changes_nothing(scale):
    plain = course(hacked, learns_until_100)
    scaled = [BlockMeans(), BlockMeans()]
    rng, steps = np.random.default_rng(0), []
    for step in range(200):
        scaled[0].append(step, scale * (hacked(step) + rng.normal(0, 0.04)))
        if step % 10 == 0:
            scaled[1].append(step, (learns_until_100(step) + rng.normal(0, 0.01)) / scale)
            steps.append(following(*scaled))
    assert [now and (now.behind, now.step) for now in steps] == [now and (now.behind, now.step) for now in plain]


def test_too_few_values_say_nothing_and_constant_series_have_not_parted():
    assert course(hacked, learns_until_100, steps=50)[-1] is None
    assert not course(lambda _: 0.0, lambda _: 0.5, noise=0.0)[-1].behind


def test_memory_is_bounded_and_a_mean_is_kept():
    kept = BlockMeans()
    for step in range(100 * MOST):
        kept.append(step, float(step))
    assert MOST <= len(kept.means) <= 2 * MOST
    assert kept.means[0] == np.arange(kept.size).mean()
    assert kept.ends[-1] <= 100 * MOST


def test_an_evaluation_that_falls_began_to_stay_behind_at_its_best():
    def rises_then_falls(step):
        return 0.2 + 0.002 * min(step, 100) - 0.004 * max(step - 100, 0)

    last = course(lambda step: 0.2 + 0.003 * step, rises_then_falls)[-1]
    assert last.behind
    assert 80 <= last.began <= 110
