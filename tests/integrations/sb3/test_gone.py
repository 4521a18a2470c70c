"""Whatever the callback touches of SB3 may be gone or raise: training is as without us, and that part alone is off."""

from functools import cache

import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from tracker_diag_sb3 import DiagnosticsCallback, callback

from tests.integrations.conformance import METRICS, RATIOS, SurvivesWhatBreaks, same
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow

STEPS = 256
KINDS = (PPO, RolloutBuffer, Logger, ActorCriticPolicy, DummyVecEnv, torch.optim.Adam)


def learn(watched):
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), seed=0, n_steps=32, batch_size=32,
                n_epochs=2, device="cpu")  # fmt: skip
    model.learn(STEPS, callback=watched)
    return model


@cache
def plain():
    return learn(None)


class TestConformance(SurvivesWhatBreaks):
    # Of most it is a setting, the state, or how guards reach the steps.
    TOUCHED = {
        "PPO.policy": {RATIOS}, "PPO.rollout_buffer": {RATIOS}, "PPO.clip_range": set(), "PPO.learning_rate": set(),
        "PPO.normalize_advantage": set(), "PPO.n_steps": set(), "PPO.n_envs": set(), "PPO._total_timesteps": set(),
        "PPO.tracker_diag": set(), "RolloutBuffer._get_samples": {RATIOS}, "RolloutBuffer.log_probs": {RATIOS},
        "RolloutBuffer.advantages": {RATIOS}, "ActorCriticPolicy.evaluate_actions": {RATIOS},
        "ActorCriticPolicy.optimizer": set(), "Logger.output_formats": {METRICS}, "Logger.name_to_value": set(),
        "DummyVecEnv.get_attr": set(), "DummyVecEnv.num_envs": set(), "Adam.register_step_pre_hook": set(),
    }  # fmt: skip
    LOST_IF_IT_RAISES = {"PPO.clip_range": {RATIOS}, "PPO.normalize_advantage": {RATIOS}}
    OPTIONAL = {"PPO.clip_range", "PPO.learning_rate", "PPO.normalize_advantage", "PPO.n_steps",
                "ActorCriticPolicy.optimizer"}  # fmt: skip
    BY_DAY = {"PPO.policy"}

    def make(self):
        return DiagnosticsCallback()

    def attach(self, training, monitor=None):
        """Nothing: it attaches when training begins."""

    def train(self, training):
        return [*learn(training).policy.parameters()]

    def plain(self):
        return [*plain().policy.parameters()]

    def ours(self):
        return [DiagnosticsCallback, callback._Writer]  # private: its calls are broken one by one

    def owner(self, kind):
        return {known.__name__: known for known in KINDS}[kind]

    def lost(self, training):
        ratios = {row[0] for row in training.monitor.slices_table().rows}
        few = training.monitor.summary().steps < 4  # the last row is given at the end, whatever else is lost
        return ({METRICS} if few else set()) | (set() if ratios else {RATIOS})


@pytest.mark.nightly
def test_the_same_one_twice_in_a_list_sees_what_it_would_once_and_two_what_each_would_alone():
    twice, once, item, other = (DiagnosticsCallback(monitor=Monitor([CapturingTracker()])) for _ in range(4))
    for callbacks in ([twice, twice], [item, other]):
        assert same([*learn(callbacks).policy.parameters()], [*plain().policy.parameters()])
    learn(once)
    expected = once.monitor.trackers[0]
    for ours in (twice, item, other):
        seen = ours.monitor.trackers[0]
        assert [seen.scalars(step) for step in seen.records] == [expected.scalars(step) for step in expected.records]
        assert ours.monitor.slices_table() == once.monitor.slices_table()
        assert not +ours.monitor.health
