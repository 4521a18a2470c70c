"""Rewards and critics: bad input, and distributions that are healthy and must not fail."""

import threading

import numpy as np
import pytest
import torch

import tracker_diag as td
from tracker_diag.errors import BatchError
from tracker_diag.preflight.minimal import critic_check
from tracker_diag.preflight.rewards import group_check, histogram_check, sign_check


def extremes_check(advantage, seconds):
    checks = td.preflight(advantage=advantage, seconds=seconds).checks
    return next(check for check in checks if check.name == "advantage_extremes")


HEALTHY = {
    "normal": lambda rng: rng.normal(0.3, 0.2, 128),
    "negative returns": lambda rng: -100 + rng.normal(0, 10, 128),
    "half of them solved": lambda rng: (rng.random(128) < 0.5) + 0.1 * rng.random(128),
    "a tenth of them solved": lambda rng: (np.arange(128) % 10 == 0) + 0.05 * rng.random(128),
    "one in twelve solved, else 0": lambda rng: (np.arange(128) % 12 == 0).astype(float),
    "steps of episodes": lambda rng: rng.exponential(20, 128),
    "minus one and one": lambda rng: rng.choice([-1.0, 1.0], 128),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_distribution_passes(name):
    statuses = [histogram_check(HEALTHY[name](np.random.default_rng(seed))).status for seed in range(200)]
    assert statuses == ["pass"] * 200


ILL = {
    "all 0": (np.zeros(50), "all 50 rewards are 0"),
    "one value": (np.full(50, 0.7), "all 50 rewards are 0.7"),
    "almost all 0": (np.append(np.zeros(99), 1.0), "99% of them 0"),
    "almost all 1": (np.append(np.ones(99), 0.0), "99% of 100 rewards are the maximum, 1"),
    "NaN everywhere": (np.full(9, np.nan), "9 of 9 rewards are NaN"),
    "an infinite one": (np.array([0.1, np.inf, 0.2]), "1 of 3 rewards"),
    "one that is unknown": ([0.1, None, 0.2], "1 of 3 rewards"),
    "a heavy tail": (np.random.default_rng(0).pareto(0.8, 500), "times as far from the median"),
    "one penalty": (np.append(np.random.default_rng(0).random(99), -1e6), "100 times as far"),
}


@pytest.mark.parametrize("name", ILL)
def test_an_ill_distribution_fails(name):
    rewards, reason = ILL[name]
    check = histogram_check(rewards)
    assert check.status == "fail"
    assert reason in check.reason


def test_rewards_may_be_a_tensor_a_list_or_none_at_all():
    assert histogram_check(torch.tensor([0.1, 0.9, 0.5], dtype=torch.bfloat16)).status == "pass"
    assert histogram_check([]).status == "not checked"
    for wrong in ("high", 3.0, ["a", "b"], np.zeros((2, 2))):
        with pytest.raises(BatchError, match="rewards"):
            td.preflight(rewards=wrong)


def test_a_direction_that_chance_gives_as_well_is_no_failure():
    rng = np.random.default_rng(0)
    drawn = [(rng.random(64), (rng.random(64) < 0.5).astype(float)) for _ in range(300)]
    statuses = [sign_check(*sample).status for sample in drawn]
    assert statuses.count("fail") <= 15  # 2.5 % of 300 are 7 or 8
    assert statuses.count("pass") <= 15
    assert sign_check([0.2, 0.4], [1, 1]).reason == "2 samples are solved, 0 are not"
    assert sign_check(np.full(64, np.nan), np.arange(64) % 2).status == "not checked"


def test_groups_are_judged_by_their_spread():
    rewards = np.tile([0.0, 1.0], 32)
    assert group_check(rewards, np.repeat(np.arange(8), 8)).values["effective_groups"] == 8
    half = np.where(np.repeat(np.arange(8), 8) < 4, 0.0, rewards)
    assert group_check(half, np.repeat(np.arange(8), 8)).status == "pass"
    assert (
        group_check(np.where(np.repeat(np.arange(8), 8) < 5, 0.0, rewards), np.repeat(np.arange(8), 8)).status == "fail"
    )
    assert group_check(rewards, ["a"] * 32 + [None] * 32).status == "pass"
    assert group_check(np.full(64, np.nan), np.repeat(np.arange(8), 8)).status == "not checked"
    assert group_check([1.0, None], ["a", "a"]).reason == "no group has two known rewards"
    for wrong in ([1, 2], "ab", [[1]] * 64):
        with pytest.raises(BatchError, match="group"):
            group_check(rewards, wrong)
    with pytest.raises(BatchError, match=r"success: 2 values given, expected 64"):
        sign_check(rewards, [1, 0])


def test_an_advantage_function_is_tried_with_extremes():
    def of_the_batch(rewards, groups):
        return (rewards - rewards.mean()) / (rewards.std() + 1e-8)

    assert extremes_check(of_the_batch, 5).status == "pass"
    assert (
        "an advantage of 8.75e+05" in extremes_check(lambda r, g: r - np.repeat(r.reshape(4, 8).mean(1), 8), 5).reason
    )
    assert "gave shape (4,)" in extremes_check(lambda rewards, groups: rewards[:4], 5).reason
    assert "raised KeyError" in extremes_check(lambda rewards, groups: {}["x"], 5).reason
    over = threading.Event()
    assert "did not return in time" in extremes_check(lambda rewards, groups: over.wait(), 0.1).reason
    over.set()


def test_a_critic_is_judged_by_what_it_explains(rng):
    returns = 3 + rng.normal(size=200)
    values = returns + rng.normal(size=200)
    good = critic_check(returns, values=0.5 * values)
    assert good.values["explained_variance"] == pytest.approx(1 - np.var(returns - 0.5 * values) / np.var(returns))
    assert critic_check(returns, returns + 0.1).status == "pass"
    assert "the sign" in critic_check(returns, -returns).do
    assert "the scale" in critic_check(returns * 1000, returns).do
    assert "terminal masks" in critic_check(returns, np.roll(returns, 7)).do


def test_a_rollout_that_tells_nothing_is_not_judged(rng):
    returns = rng.normal(size=200)
    assert critic_check(np.full(50, 2.0), np.zeros(50)).status == "not checked"
    assert critic_check([], []).status == "not checked"
    assert critic_check(returns[:5], returns[:5]).status == "not checked"
    assert critic_check(returns, np.full(200, np.nan)).reason == "200 of 200 rows are NaN or infinite"
    assert critic_check(returns, torch.tensor(returns)).status == "pass"
    for wrong in (returns[:7], "x", returns[:, None]):
        with pytest.raises(BatchError, match="values"):
            critic_check(returns, wrong)
