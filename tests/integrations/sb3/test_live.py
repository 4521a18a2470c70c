"""What goes wrong in classic control is named while it trains, by the callback; each in a short run."""

import copy

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor as Recorded
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv
from tracker_diag_sb3 import DiagnosticsCallback
from tracker_diag_sb3.callback import defined

import tracker_diag as td
from tests.faults.tasks import TASKS
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow

SMALL = {"n_steps": 64, "batch_size": 64, "n_epochs": 4, "device": "cpu"}


class Paid(gymnasium.Wrapper):
    """CartPole that pays something else, or that never ends."""

    def __init__(self, env, pays=1.0, ends=True):
        super().__init__(env)
        self.pays, self.ends = pays, ends

    def step(self, action):
        seen, reward, ended, cut, info = self.env.step(action)
        if not self.ends and ended:
            seen, _ = self.env.reset()
        return seen, reward * self.pays, ended and self.ends, cut, info


def fired(steps, *, ends=True, pays=1.0, change=lambda model: None, true=False, **settings):
    """The rules above info that a live run reported, and its monitor; `true`: the logged return is CartPole's own."""

    def make_env():
        made = gymnasium.make("CartPole-v1") if ends else gymnasium.make("CartPole-v1").unwrapped
        if not ends:
            made.spec = gymnasium.spec("CartPole-v1")
        return Paid(Recorded(made) if true else made, pays, ends)

    envs = DummyVecEnv([make_env] * 4) if true else make_vec_env(make_env, n_envs=4, seed=0)
    envs.seed(0)
    model = PPO("MlpPolicy", envs, seed=0, **SMALL | settings)
    change(model)
    callback = DiagnosticsCallback(monitor=td.Monitor([kept := CapturingTracker()], algorithm="ppo"))
    model.learn(steps, callback=callback)
    assert callback.monitor.failures == []
    result = callback.monitor.summary().findings
    for finding in result:
        if finding.fired is not None:  # no trend begins before the series that it is seen in, nor after it is reported
            assert first_of(finding, kept) <= finding.onset <= finding.fired, finding
    return (
        {make_env.rule.name for make_env in result if make_env.fired is not None and make_env.full_severity != "info"},
        result,
        callback.monitor,
    )


def first_of(finding, kept):
    """The first step at which what the finding rests on was there."""
    series = {item.series for item in finding.evidence if item.holds}
    rows = {step: [*row, *kept.scalars(step)] for step, row in kept.own.items()}
    known = {step for step, row in rows.items() for key in row if key.rpartition("/")[2] in series}
    return min(known or kept.own)


@pytest.mark.nightly
def test_a_reward_with_the_wrong_sign_or_far_too_large_is_named_live_and_the_healthy_twin_is_not():
    """What is logged is the true return, as an evaluation would have it: the reward that is trained on tells nobody."""
    steps = 10_240
    healthy, *_ = fired(steps, true=True)
    assert healthy == set()
    flipped, *_ = fired(steps, true=True, pays=-1.0)
    assert {"reward-sign-confusion", "reward-collapse"} <= flipped, flipped
    huge, *_ = fired(steps, true=True, pays=1e4)
    assert "critic-not-learning" in huge, huge


@pytest.mark.nightly
def test_a_sound_run_is_silent_though_its_updates_grow_and_vary():
    """Its return rises from 22 to 150; single updates move one token in twenty by up to a third."""
    names, *_ = fired(20_480)
    assert names == set()


@pytest.mark.nightly
def test_a_learning_rate_too_high_from_the_start_is_named_live():
    names, *_ = fired(5_120, learning_rate=0.1)
    assert "kl-spike" in names or {"ess-collapse", "entropy-collapse"} & names, names


@pytest.mark.nightly
def test_a_policy_that_is_frozen_is_named_live():
    def freeze(model):
        model.policy.optimizer.step = lambda *given, **named: None

    names, *_ = fired(20_480, change=freeze)
    assert "frozen-policy" in names, names


@pytest.mark.nightly
def test_an_episode_that_never_ends_is_reported_once_and_one_that_does_is_not(caplog):
    *_, monitor = fired(4 * 1_600, ends=False)
    (messages,) = [message for message in caplog.messages if "no episode has ended" in message]
    assert "of which one should take 500 at most" in messages
    assert messages in [event for _, event in monitor.events]
    caplog.clear()
    fired(4 * 1_600)
    assert "no episode has ended" not in caplog.text


class Endless(gymnasium.Wrapper):
    def step(self, action):
        seen, reward, ended, cut, info = self.env.step(action)
        return (self.env.reset()[0] if ended or cut else seen), reward, False, False, info


SMALL_NETS = {"policy_kwargs": {"net_arch": [64, 64]}, "batch_size": 64, "train_freq": 2, "learning_starts": 200}
WITHOUT_RATIO = {
    "DQN": (DQN, "CartPole-v1", "Catch", 12_000, 1, SMALL_NETS | {
        "learning_rate": 2e-3, "learning_starts": 500, "train_freq": 8, "gradient_steps": 6,
        "target_update_interval": 250, "exploration_fraction": 0.2, "exploration_final_eps": 0.04,
        "buffer_size": 20_000}),
    "SAC": (SAC, "Pendulum-v1", "Reach", 12_000, 1, SMALL_NETS | {"learning_rate": 1e-3}),
    "TD3": (TD3, "Pendulum-v1", "Reach", 8_000, 1, SMALL_NETS | {
        "learning_rate": 1e-3, "gradient_steps": 2, "action_noise": NormalActionNoise(np.zeros(2), np.full(2, 0.1))}),
    "A2C": (A2C, "CartPole-v1", "Brake", 80_000, 8, {
        "learning_rate": 1e-3, "n_steps": 16, "gae_lambda": 0.95, "normalize_advantage": True}),
}  # fmt: skip
"""Class, a task with a time limit, one that is learnt in so many steps, environments, and settings with which it is."""


def found_in(trainer, *, seed=1, share=1.0, pays=1.0, **changes):
    """Findings of a short training whose recorded return is the task's own: all, and those of an incident above info.

    A2C logs a row in 12,800 steps, the others one in four episodes.
    """
    kind, _, task, steps, many, settings = WITHOUT_RATIO[trainer]
    envs = DummyVecEnv([lambda: Paid(Recorded(TASKS[task]()), pays)] * many)
    envs.seed(seed)
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **copy.deepcopy(settings | changes))
    callback = DiagnosticsCallback(monitor=td.Monitor([], algorithm="ppo"))
    model.learn(int(share * steps), callback=callback)
    assert callback.monitor.failures == []
    summary = callback.monitor.summary()
    fired = {finding.rule.id for finding in summary.findings if finding.fired is not None}
    loud = [incident for incident in summary.incidents if incident.severity != "info"]
    return fired, {finding.rule.id for incident in loud for finding in incident.findings}


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", WITHOUT_RATIO)
def test_faults_of_an_algorithm_without_a_ratio_are_named_in_the_run_and_its_healthy_twin_is_silent(trainer):
    faults = {"REW004", "CRI003", "OUT001", "OUT003"}
    assert not faults & found_in(trainer)[0]
    flipped, alerted = found_in(trainer, pays=-1.0)
    assert "REW004" in flipped
    assert {"OUT001", "OUT003"} & alerted
    named = [{"OUT001", "OUT003"} & found_in(trainer, seed=seed, learning_rate=0.1)[1] for seed in (1, 2, 3)]
    assert sum(map(bool, named)) >= 2
    assert "CRI003" in found_in(trainer, pays=1e4)[0]


def test_a_sign_that_is_flipped_is_named_in_the_first_fifth_though_the_trainer_has_logged_one_row():
    assert "REW004" in found_in("A2C", share=0.2, pays=-1.0)[0]


@pytest.mark.parametrize("trainer", ["A2C", "DQN"])
def test_episodes_that_never_end_are_named_though_dqn_logs_no_row(trainer, caplog):
    kind, task, *_ = WITHOUT_RATIO[trainer]
    monitor = td.Monitor()
    more = {"learning_starts": 10_000} if kind is DQN else {}
    model = kind("MlpPolicy", Endless(gymnasium.make(task)), device="cpu", **more)
    model.learn(1_700, callback=DiagnosticsCallback(monitor=monitor))
    ((step, text),) = monitor.events
    assert (step, text[:28]) == (1_500, "no episode has ended in 1,50")
    assert len([message for message in caplog.messages if "no episode has ended" in message]) == 1
    assert [finding.rule.id for finding in monitor.summary().findings] == ["ENV007"]


@pytest.mark.nightly
def test_an_explained_variance_that_is_not_defined_is_absent_and_no_fault_of_numerics():
    names, *_ = fired(1_024, pays=0.0, gamma=0.0)
    assert "non-finite-metric" not in names, names
    assert defined({"train/explained_variance": float("nan"), "train/loss": 1.0}) == {"train/loss": 1.0}
    broken = {"train/explained_variance": 0.5, "train/loss": float("nan")}
    assert defined(broken) is broken
