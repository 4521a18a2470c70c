"""Stable-Baselines3 as a person runs it, with the findings read from a real MLflow run."""

import inspect

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv
from tracker_diag_sb3 import DiagnosticsCallback
from tracker_diag_sb3.callback import clip_of, settings, tensors

import tracker_diag as td
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow

SMALL = {"n_steps": 64, "batch_size": 64, "n_epochs": 4, "device": "cpu"}

UNCLIPPED = {
    "n_steps": 32,
    "batch_size": 32,
    "n_epochs": 10,
    "clip_range": 1e6,
    "learning_rate": 2e-3,
    "ent_coef": 0.02,
}


def ppo(seed=0, envs=4, **changes):
    return PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=envs, seed=seed), seed=seed, **(SMALL | changes))


def learn(steps=1024, **changes):
    """A short run; gives the model, and what the backend was given."""
    backend = CapturingTracker()
    model = ppo(**changes)
    model.learn(steps, callback=DiagnosticsCallback(monitor=td.Monitor([backend], window=1)))
    return model, backend


@pytest.mark.nightly
def test_a_ppo_without_clipping_loses_its_samples_while_its_clip_fraction_says_zero():
    for seed in range(4):  # which of them loses its samples for long differs from machine to machine
        backend = CapturingTracker()
        model = ppo(**UNCLIPPED | {"seed": seed})
        model.learn(5_120, callback=DiagnosticsCallback(monitor=td.Monitor([backend])))
        few = [
            finding
            for finding in backend.summary.findings
            if finding.rule.id in {"POL004", "POL005"} and finding.fired is not None
        ]
        if few:
            break
    assert {(finding.slice, finding.pair, finding.severity) for finding in few} == {("text_only", "policy", "warn")}
    assert backend.summary.first_break.rule.id in {"POL004", "POL005", "POL010"}  # its KL leaps as well
    assert max(row.get("train/clip_fraction", 0) for row in backend.own.values()) == 0


@pytest.mark.nightly
@pytest.mark.matrix("stable-baselines3", "run for real")
def test_without_any_tracker_it_is_reported_in_files(alerted):
    callback = DiagnosticsCallback()
    ppo(learning_rate=0.1).learn(2048, callback=callback)
    assert callback.monitor.failures == []
    assert alerted("POL010") == {"jsonl", "webhook"}


@pytest.mark.matrix("stable-baselines3", "run for real")
def test_a_learning_rate_that_is_too_high_is_reported_in_every_tracker_and_to_people(
    tmp_path, underway, alerted, receive
):
    """Of the runs that were started before, and of `tensorboard_log`, nothing is said to the callback."""
    with underway("mlflow", "trackio", "wandb"):
        callback = DiagnosticsCallback()
        ppo(learning_rate=0.1, tensorboard_log=str(tmp_path)).learn(2048, callback=callback)
    assert callback.monitor.failures == []
    assert alerted("POL010") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    first = receive.state.got[0]
    assert (first["level"], "(POL010" in first["title"]) == ("warn", True)
    assert first["step"] <= 5 * 256


@pytest.mark.nightly
def test_the_ratios_are_those_of_the_loss():
    """With one epoch and one mini-batch the policy has not moved yet; with more it has."""
    _, still = learn(n_epochs=1, batch_size=256)
    step = max(still.records)
    assert all("p95" not in name for name in still.scalars(step) if name.startswith("diag/policy"))

    _, backend = learn(n_epochs=4)
    before = backend.scalars(512)
    assert before["diag/policy/text_only/count"] == 256
    # SB3's own estimate is the mean over the last epoch of the mini-batches' k3: the same ratios, the same number.
    logged = backend.own[512]["train/approx_kl"]
    assert before["diag/policy/all/k3"] == pytest.approx(logged, rel=1e-3)


def test_each_update_belongs_to_the_dump_after_it():
    _, backend = learn(1024)
    assert sorted(backend.own) == [256, 512, 768, 1024]
    assert "train/approx_kl" not in backend.own[256]
    assert [backend.scalars(step).get("diag/policy/all/k3") is None for step in (256, 512)] == [True, False]
    # The update after the last dump is not lost.
    assert backend.scalars(1024)["diag/policy/text_only/count"] == 512


@pytest.mark.nightly
def test_environments_are_reported_separately_by_id_or_by_number():
    backend = CapturingTracker()
    monitor = td.Monitor([backend], window=1)
    ppo(envs=2).learn(256, callback=DiagnosticsCallback(monitor=monitor))
    slices = {row[1] for row in monitor.slices_table().rows}
    assert {"env:0", "env:1", "text_only", "advantage:positive", "advantage:negative"} <= slices

    monitor = td.Monitor([backend], window=1)
    envs = DummyVecEnv([lambda name=name: gymnasium.make(name) for name in ("CartPole-v0", "CartPole-v1")])
    model = PPO("MlpPolicy", envs, seed=0, **SMALL)
    model.learn(256, callback=DiagnosticsCallback(monitor=monitor))
    assert {"env:CartPole-v0", "env:CartPole-v1"} <= {row[1] for row in monitor.slices_table().rows}


@pytest.mark.nightly
@pytest.mark.parametrize(("steps", "every"), [(1024, 1), (1000, 1), (2048, 3)])
def test_the_monitor_knows_how_many_rows_are_to_come(steps, every):
    backend = CapturingTracker()
    monitor = td.Monitor([backend])
    model = ppo()
    model.learn(steps, callback=DiagnosticsCallback(monitor=monitor), log_interval=every)
    assert monitor.state_dict()["rows"] == len(backend.own) - (every > 1)  # the last updates come without a row
    again = td.Monitor()
    model.learn(steps, callback=DiagnosticsCallback(monitor=again), log_interval=every, reset_num_timesteps=False)
    assert again.state_dict()["rows"] == monitor.state_dict()["rows"]


@pytest.mark.by_day("DQN")
@pytest.mark.parametrize("algorithm", [A2C, DQN])
def test_an_algorithm_without_a_ratio_is_heard_by_its_metrics(algorithm):
    backend = CapturingTracker()
    monitor = td.Monitor([backend])
    model = algorithm("MlpPolicy", "CartPole-v1", seed=0, device="cpu")
    model.learn(600, callback=DiagnosticsCallback(monitor=monitor), log_interval=5)
    assert monitor.failures == []
    assert max(step for step in backend.own) <= 600
    assert any("rollout/ep_rew_mean" in row for row in backend.own.values())
    blind = monitor.summary().blind
    assert "POL004" in blind


@pytest.mark.nightly
def test_a_dqn_that_learns_nothing_is_named_within_its_run():
    """Its rows hang on the length of its episodes: those before the first row say how many there will be."""
    seen = {}
    for rate in (1e-3, 0.1):
        backend = CapturingTracker()
        model = DQN(
            "MlpPolicy", make_vec_env("CartPole-v1", seed=0), seed=0, learning_rate=rate, learning_starts=500,
            train_freq=4, exploration_fraction=0.3, target_update_interval=250, device="cpu",
        )  # fmt: skip
        model.learn(20_000, callback=DiagnosticsCallback(monitor=td.Monitor([backend])))
        seen[rate] = {finding.rule.id for finding in backend.summary.findings if finding.severity != "info"}
    assert seen[1e-3] == set()
    assert {"OUT001", "OUT003"} & seen[0.1]


@pytest.mark.nightly
def test_a_recurrent_policys_padding_is_no_action():
    from sb3_contrib import RecurrentPPO

    backend = CapturingTracker()
    env = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    model = RecurrentPPO("MlpLstmPolicy", env, seed=0, **SMALL)
    monitor = td.Monitor([backend], window=1)
    model.learn(2048, callback=DiagnosticsCallback(monitor=monitor))
    assert monitor.failures == []
    counts = [backend.scalars(step).get("diag/policy/text_only/count") for step in backend.records]
    assert set(counts) - {None} == {256, 512}  # one rollout has fewer than 400 tokens, so a window reaches over two


@pytest.mark.nightly
def test_others_may_evaluate_actions_in_between():
    class Evaluates(DiagnosticsCallback):
        def _on_step(self):
            observations = torch.zeros(7, 4)
            self.model.policy.evaluate_actions(observations, torch.zeros(7, dtype=torch.long))
            return True

    backend = CapturingTracker()
    monitor = td.Monitor([backend], window=1)
    ppo().learn(512, callback=Evaluates(monitor=monitor))
    assert monitor.failures == []
    assert backend.scalars(512)["diag/policy/text_only/count"] == 512


def test_an_update_that_target_kl_ends_early_has_the_actions_that_it_reached():
    rollout = {"old": np.zeros((4, 2), np.float32), "advantages": np.arange(8, dtype=np.float32).reshape(4, 2)}
    given = tensors(rollout, [(np.array([5, 0]), torch.tensor([0.5, 0.1]))], normalised=False)
    assert given["model_mask"].tolist() == [True, False, False, False, False, True, False, False]
    assert given["logprobs"].tolist() == pytest.approx([0.1, 0, 0, 0, 0, 0.5, 0, 0])
    # By environment, each with its four steps in turn, as the buffer numbers them.
    assert given["advantages"].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


class Scored(gymnasium.Wrapper):
    """CartPole with a word on success at the end of an episode; its reward may be lost."""

    def __init__(self, env, pays):
        super().__init__(env)
        self.pays, self.steps = pays, 0

    def reset(self, **given):
        self.steps = 0
        return self.env.reset(**given)

    def step(self, action):
        seen, reward, ended, cut, info = self.env.step(action)
        self.steps += 1
        if ended or cut:
            info["is_success"] = self.steps > 20
        return seen, reward * self.pays, ended, cut, info


@pytest.mark.by_day("PPO")
@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_episodes_are_reported_with_return_success_and_environment(algorithm):
    class Counting(DiagnosticsCallback):
        """Counts by itself."""

        def _on_step(self):
            seen.extend(info for info in self.locals["infos"] if "episode" in info)
            return super()._on_step()

    seen, backend = [], CapturingTracker()
    given = SMALL if algorithm is PPO else {"device": "cpu"}
    env = make_vec_env(lambda: Scored(gymnasium.make("CartPole-v1"), pays=1.0), n_envs=2, seed=0)
    model = algorithm("MlpPolicy", env, seed=0, **given)
    model.learn(2048, callback=Counting(monitor=td.Monitor([backend])))
    rows = [backend.scalars(step) for step in backend.records]
    reported = {name: [row[f"diag/samples/{name}"] for row in rows if f"diag/samples/{name}" in row]
            for name in ("reward", "success_rate", "truncated_share")}  # fmt: skip
    assert min(reported["reward"]) >= min(item["episode"]["r"] for item in seen)
    assert max(reported["reward"]) <= max(item["episode"]["r"] for item in seen)
    assert {0.0 < item < 1.0 for item in reported["success_rate"]} >= {True}
    assert set(reported["truncated_share"]) == {0.0}
    (table,) = [item for item in backend.tables if item.name == "diag/samples"][-1:]
    assert {row[table.columns.index("env")] for row in table.rows} <= {"0", "1"}


def test_settings_and_clip_range_are_those_of_the_model():
    model = ppo(seed=3, clip_range=lambda left: 0.3 * left, target_kl=0.02)
    assert settings(model) | {"target_kl": 0.02, "n_epochs": 4, "seed": 3, "trainer": "PPO"} == settings(model)
    assert clip_of(model) == (0.3, 0.3)
    assert clip_of(ppo(clip_range=1e6)) == (0.2, 0.2)
    assert clip_of(A2C("MlpPolicy", "CartPole-v1", device="cpu")) == (0.2, 0.2)


def test_contract_what_is_looked_at_is_there():
    for buffer in (RolloutBuffer, DictRolloutBuffer):
        assert "batch_inds" in inspect.signature(buffer._get_samples).parameters
    assert list(inspect.signature(ActorCriticPolicy.evaluate_actions).parameters) == ["self", "obs", "actions"]
    model = ppo()
    values, log_prob, _ = model.policy.evaluate_actions(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))
    assert (len(values), log_prob.shape) == (3, (3,))
    # reset and get make new arrays, so that those of a rollout are still there after its update.
    buffer = model.rollout_buffer
    before = buffer.log_probs
    assert before.shape == (64, 4)
    buffer.full = True
    next(iter(buffer.get(16)))
    assert buffer.log_probs is not before
    buffer.reset()
    assert buffer.log_probs is not before


@pytest.mark.nightly
def test_a_reward_that_is_lost_is_named_and_that_of_the_healthy_twin_is_not():
    for pays in (0.0, 1.0):
        env = make_vec_env(lambda pays=pays: Scored(gymnasium.make("CartPole-v1"), pays), n_envs=4, seed=0)
        callback = DiagnosticsCallback()
        PPO("MlpPolicy", env, seed=0, **SMALL | {"n_steps": 32, "n_epochs": 1}).learn(5_120, callback=callback)
        assert callback.monitor.failures == []
        fired = {finding.rule.id for finding in callback.monitor.summary().findings if finding.fired is not None}
        assert ("REW001" in fired) == (not pays)


@pytest.mark.nightly
def test_a_model_that_was_saved_continues_with_the_state_of_then_and_without_one_says_so(tmp_path, caplog):
    class Saves(BaseCallback):
        def _on_rollout_start(self):
            if self.num_timesteps == 768:
                self.model.save(tmp_path / "model.zip")

        def _on_step(self):
            return True

    ppo().learn(1024, callback=[DiagnosticsCallback(), Saves()])
    for state, first, messages in ((None, 256, 0), ("gone", 1024, 1), ({"version": 0}, 1024, 3)):
        model = PPO.load(tmp_path / "model.zip", env=make_vec_env("CartPole-v1", n_envs=4, seed=0))
        if state is not None:
            model.tracker_diag = None if state == "gone" else state
        callback = DiagnosticsCallback()
        model.learn(256, callback=callback, reset_num_timesteps=False)
        summary = callback.monitor.summary()
        assert (summary.first_step, summary.last_step) == (first, 1024)
        assert callback.monitor.health["integration_errors"] == (state == {"version": 0})  # it cannot be used
        assert sum("start over" in message for message in caplog.messages) == messages
