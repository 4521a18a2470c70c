"""Guards on a real PPO of Stable-Baselines3: it stops, and its learning rate is scaled; models are saved as ever."""

import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from tracker_diag_sb3 import DiagnosticsCallback

import tracker_diag as td

pytestmark = pytest.mark.slow

FAST = {
    "id": "ACM001", "title": "KL is high", "summary": "KL is {high.value:.3g}", "when": ["high"],
    "signals": {"high": {"kind": "threshold", "series": {"metric": "approx_kl"}, "above": 0.05}},
}  # fmt: skip


def learn(guards, steps=2048, **changes):
    envs = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    model = PPO("MlpPolicy", envs, seed=0, n_steps=64, batch_size=64, n_epochs=4, device="cpu", **changes)
    own = [td.Rule.model_validate(FAST)]
    monitor = td.Monitor(rules=own, catalog=False, guards=[td.Guard(act=True, **guard) for guard in guards])
    model.learn(steps, callback=DiagnosticsCallback(monitor=monitor))
    assert monitor.failures == []
    return model, monitor


def test_training_stops_where_the_policy_moves_too_far(tmp_path):
    model, monitor = learn([{"do": "stop_training"}, {"do": "rollback"}], learning_rate=0.05)
    assert 256 < model.num_timesteps < 2048
    assert [event.partition(":")[0] for _, event in monitor.events] == ["guard stop_training", "guard rollback"]
    assert "gives way to stop_training" in monitor.events[1][1]
    model.save(tmp_path / "policy.zip")
    again = PPO.load(tmp_path / "policy.zip")
    assert all(torch.equal(a, b) for a, b in zip(model.policy.parameters(), again.policy.parameters(), strict=True))


@pytest.mark.nightly
def test_a_healthy_training_continues_to_its_end_and_is_the_same():
    guarded, monitor = learn([{"do": "stop_training"}, {"do": "scale_lr"}])
    plain, _ = learn([])
    assert monitor.events == []
    assert guarded.num_timesteps == 2048
    assert all(torch.equal(a, b) for a, b in zip(plain.policy.parameters(), guarded.policy.parameters(), strict=True))


@pytest.mark.nightly
def test_the_learning_rate_is_scaled_and_put_back():
    model, monitor = learn([{"do": "scale_lr", "bounds": (0.01, 0.01)}, {"do": "kl_cap", "target": 1.0,
                            "bounds": (0.1, 1.0)}], learning_rate=0.05)  # fmt: skip
    messages = [event for _, event in monitor.events]
    assert any("learning rate × 0.01" in event for event in messages)
    assert any("guard kl_cap: not done, not within reach of this trainer" in event for event in messages)
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.05
    assert not model.policy.optimizer._optimizer_step_pre_hooks


def test_an_off_policy_algorithm_stops_too():
    own = td.Rule.model_validate(FAST | {"signals": {"high": {"kind": "threshold", "series": {"metric": "reward"},
                                                              "above": 0.5}}})  # fmt: skip
    monitor = td.Monitor(rules=[own], catalog=False, guards=[td.Guard(do="stop_training", act=True)])
    model = DQN("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    model.learn(2000, callback=DiagnosticsCallback(monitor=monitor), log_interval=4)
    assert monitor.failures == []
    assert model.num_timesteps < 1000
