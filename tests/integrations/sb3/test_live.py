"""What goes wrong in classic control is named while it trains, by the callback; each in a short run of PPO."""

import gymnasium
import pytest
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor as Recorded
from stable_baselines3.common.vec_env import DummyVecEnv
from tracker_diag_sb3 import DiagnosticsCallback
from tracker_diag_sb3.callback import defined

import tracker_diag as td
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
    """The rules above info that a live run has told, and its monitor; `true`: the logged return is CartPole's own."""

    def one():
        made = gymnasium.make("CartPole-v1") if ends else gymnasium.make("CartPole-v1").unwrapped
        if not ends:
            made.spec = gymnasium.spec("CartPole-v1")
        return Paid(Recorded(made) if true else made, pays, ends)

    envs = DummyVecEnv([one] * 4) if true else make_vec_env(one, n_envs=4, seed=0)
    envs.seed(0)
    model = PPO("MlpPolicy", envs, seed=0, **SMALL | settings)
    change(model)
    callback = DiagnosticsCallback(monitor=td.Monitor([kept := CapturingTracker()], algorithm="ppo"))
    model.learn(steps, callback=callback)
    assert callback.monitor.failures == []
    found = callback.monitor.summary().findings
    for finding in found:
        if finding.fired is not None:  # no trend begins before the series that it is seen in, nor after it is told
            assert first_of(finding, kept) <= finding.onset <= finding.fired, finding
    return (
        {one.rule.name for one in found if one.fired is not None and one.full_severity != "info"},
        found,
        callback.monitor,
    )


def first_of(finding, kept):
    """The first step at which what the finding rests on was there."""
    series = {one.series for one in finding.evidence if one.holds}
    known = {step for step, row in kept.own.items() for key in row if key.rpartition("/")[2] in series}
    return min(known or kept.own)


@pytest.mark.nightly
def test_a_reward_with_the_wrong_sign_or_far_too_large_is_named_live_and_the_healthy_twin_is_not():
    """What is logged is the true return, as an evaluation would have it: the reward that is trained on tells nobody."""
    steps = 10_240
    healthy, *_ = fired(steps, true=True)
    assert healthy == set()
    flipped, *_ = fired(steps, true=True, pays=-1.0)
    assert "nothing-learnt" in flipped, flipped
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
def test_an_episode_that_never_ends_is_told_once_and_one_that_does_is_not(caplog):
    *_, monitor = fired(4 * 1_600, ends=False)
    (told,) = [one for one in caplog.messages if "no episode has ended" in one]
    assert "of which one should take 500 at most" in told
    assert told in [event for _, event in monitor.events]
    caplog.clear()
    fired(4 * 1_600)
    assert "no episode has ended" not in caplog.text


@pytest.mark.slow
def test_a_dqn_whose_episodes_never_end_is_named_though_it_logs_no_row(caplog):
    class Endless(gymnasium.Wrapper):
        def step(self, action):
            seen, reward, ended, cut, info = self.env.step(action)
            return (self.env.reset()[0] if ended or cut else seen), reward, False, False, info

    monitor = td.Monitor()
    model = DQN("MlpPolicy", Endless(gymnasium.make("CartPole-v1")), learning_starts=10_000, device="cpu")
    model.learn(1_600, callback=DiagnosticsCallback(monitor=monitor))
    ((step, said),) = monitor.events
    assert (step, said[:28]) == (1_500, "no episode has ended in 1,50")
    assert len([one for one in caplog.messages if "no episode has ended" in one]) == 1


@pytest.mark.nightly
def test_an_explained_variance_that_is_not_defined_is_absent_and_no_fault_of_numerics():
    names, *_ = fired(1_024, pays=0.0, gamma=0.0)
    assert "non-finite-metric" not in names, names
    assert defined({"train/explained_variance": float("nan"), "train/loss": 1.0}) == {"train/loss": 1.0}
    broken = {"train/explained_variance": 0.5, "train/loss": float("nan")}
    assert defined(broken) is broken
