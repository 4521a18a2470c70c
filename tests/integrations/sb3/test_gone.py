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

from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow

STEPS = 256

METRICS, RATIOS = "metrics", "ratios"

TOUCHED = {
    # What is touched, and what is lost without it. Of most it is a setting, the state, or how guards reach the steps.
    (PPO, "policy"): RATIOS,
    (PPO, "rollout_buffer"): RATIOS,
    (PPO, "clip_range"): None,
    (PPO, "learning_rate"): None,
    (PPO, "normalize_advantage"): None,
    (PPO, "n_steps"): None,
    (PPO, "n_envs"): None,
    (PPO, "_total_timesteps"): None,
    (PPO, "tracker_diag"): None,
    (RolloutBuffer, "_get_samples"): RATIOS,
    (RolloutBuffer, "log_probs"): RATIOS,
    (RolloutBuffer, "advantages"): RATIOS,
    (ActorCriticPolicy, "evaluate_actions"): RATIOS,
    (ActorCriticPolicy, "optimizer"): None,
    (Logger, "output_formats"): METRICS,
    (Logger, "name_to_value"): None,
    (DummyVecEnv, "get_attr"): None,
    (DummyVecEnv, "num_envs"): None,
    (torch.optim.Adam, "register_step_pre_hook"): None,
}

OPTIONAL = {"clip_range", "learning_rate", "normalize_advantage", "n_steps", "optimizer"}
"""What not each algorithm of SB3 has: where it is not there, nothing is said. That it raises is said."""

UNREAD = {"clip_range", "normalize_advantage"}
"""Of these, what the ratios are not seen without where it is there and cannot be read."""


def learn(watched):
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2, seed=0), seed=0, n_steps=32, batch_size=32,
                n_epochs=2, device="cpu")  # fmt: skip
    model.learn(STEPS, callback=watched)
    return model


@cache
def plain():
    return learn(None)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.policy.parameters(), other.policy.parameters(), strict=True))


@pytest.mark.parametrize("error", [AttributeError("gone"), RuntimeError("not in this release")], ids=["gone", "raises"])
@pytest.mark.parametrize("touched", TOUCHED, ids=lambda one: f"{one[0].__name__}.{one[1]}")
def test_whatever_is_gone_costs_its_own_part(without, caplog, touched, error):
    (kind, name), gone = touched, isinstance(error, AttributeError)
    ours = DiagnosticsCallback()
    without.during([DiagnosticsCallback, callback._Writer], kind, name, error)
    model = learn(ours)
    assert model.num_timesteps == STEPS
    assert same(model, plain())
    if gone and name in OPTIONAL:
        assert not [one for one in caplog.messages if "gone" in one]
    else:
        without.told(caplog.messages)
    seen = {row[0] for row in ours.monitor.slices_table().rows}
    blind = TOUCHED[touched] == RATIOS or (name in UNREAD and not gone)
    assert seen == (set() if blind else {"policy"})
    heard = ours.monitor.summary().steps
    assert heard == 1 if TOUCHED[touched] == METRICS else heard >= 4  # the last row is given at the end


def test_the_same_one_twice_in_a_list_sees_what_it_would_once_and_training_is_as_without():
    twice, once = (DiagnosticsCallback(monitor=Monitor([CapturingTracker()])) for _ in range(2))
    assert same(learn([twice, twice]), plain())
    learn(once)
    seen, expected = twice.monitor.trackers[0], once.monitor.trackers[0]
    assert [seen.scalars(step) for step in seen.records] == [expected.scalars(step) for step in expected.records]
    assert twice.monitor._samples._of_step[1].n == once.monitor._samples._of_step[1].n > 0
    assert not +twice.monitor.health


def test_of_the_same_one_twice_there_is_one_default_monitor(monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path))
    ours = DiagnosticsCallback()
    learn([ours, ours])
    learn([ours, ours])  # and another training has another one
    assert len([*tmp_path.rglob("findings.jsonl")]) == 2


def test_given_twice_each_sees_what_it_would_alone_and_training_is_as_without(caplog):
    def rows(callback):
        return callback.monitor.slices_table()

    one, other, alone = (DiagnosticsCallback() for _ in range(3))
    assert same(learn([one, other]), plain())
    learn(alone)
    assert rows(one) == rows(other) == rows(alone)
    assert one.monitor.failures == other.monitor.failures == []
