"""Runs of Stable-Baselines3 on small control tasks, with a fault planted in the environment or in the settings."""

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor as Recorded
from stable_baselines3.common.vec_env import DummyVecEnv
from tasks import TASKS
from tracker_diag_sb3 import DiagnosticsCallback

from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

Fault = Mapping[str, Any]
"""What is planted, those of `ENVIRONMENT` and `RUN`; all else is a setting of the algorithm."""

WIDE = {"policy_kwargs": {"net_arch": [64, 64]}}
ALGORITHMS: dict[str, tuple[Any, int, Any, dict[str, Any]]] = {
    "PPO": (PPO, 4, 1, {"n_steps": 128, "batch_size": 128, "learning_rate": 1e-3}),
    "A2C": (A2C, 8, 10, {"learning_rate": lambda left: 1.2e-3 * left, "n_steps": 16, "gae_lambda": 0.95,
                         "normalize_advantage": True, "ent_coef": 0.01}),
    "DQN": (DQN, 1, 8, WIDE | {"learning_rate": 2e-3, "learning_starts": 500, "target_update_interval": 250,
                               "exploration_fraction": 0.2, "exploration_final_eps": 0.04, "buffer_size": 20_000,
                               "train_freq": 8, "gradient_steps": 6, "batch_size": 64}),
    "SAC": (SAC, 1, 3, WIDE | {"learning_rate": 1e-3, "learning_starts": 200, "train_freq": 2, "batch_size": 64,
                               "stats_window_size": 20}),
}  # fmt: skip
"""Class, environments, how often a row is logged (rollouts or episodes), and settings with which the task is learnt."""
STEPS = {
    ("PPO", "CartPole"): 41_000, ("PPO", "Reach"): 61_000, ("A2C", "CartPole"): 80_000,
    ("A2C", "Reach"): 80_000, ("DQN", "CartPole"): 24_000, ("SAC", "Reach"): 8_000,
    ("PPO", "Brake"): 41_000, ("A2C", "Brake"): 80_000, ("DQN", "Catch"): 12_000,
    ("DQN", "Balance"): 24_000, ("PPO", "Follow"): 61_000, ("A2C", "Follow"): 80_000,
    ("PPO", "Land"): 61_000, ("PPO", "Maze"): 41_000, ("PPO", "Stock"): 61_000, ("PPO", "Guess"): 41_000,
    ("A2C", "Land"): 80_000, ("A2C", "Maze"): 80_000, ("A2C", "Stock"): 80_000, ("A2C", "Guess"): 80_000,
    ("DQN", "Maze"): 12_000, ("DQN", "Stock"): 12_000, ("DQN", "Guess"): 12_000,
    ("SAC", "Land"): 8_000, ("SAC", "Follow"): 8_000, ("SAC", "Brake"): 8_000,
}  # fmt: skip
ENVIRONMENT = {
    "reward", "action", "observation", "reward_zero_from", "blind_from", "never_ends", "drift_from", "slow_from",
    "overflow_from", "outlier_from", "random_actions",
}  # fmt: skip
RUN = {"freeze", "bootstrap", "rate_from", "evaluate"}


class Ill(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with a fault; what is outside is what the learner gets. `clock` counts the steps of all."""

    def __init__(self, env: gym.Env[Any, Any], fault: Fault, clock: list[int], total: int, seed: int) -> None:
        super().__init__(env)
        self._fault, self._clock, self._total = fault, clock, total
        self._luck = np.random.default_rng(seed)
        self._fell = False

    def _since(self, name: str) -> bool:
        return name in self._fault and self._clock[0] >= self._fault[name] * self._total

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._fell = False
        seen, info = self.env.reset(**given)
        return self._observed(seen), info

    def _observed(self, seen: Any) -> Any:
        if self._since("blind_from"):
            return np.zeros_like(seen)
        return (seen * self._fault.get("observation", 1.0)).astype(seen.dtype)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._clock[0] += 1
        if self._fault.get("random_actions"):
            action = self.env.action_space.sample()
        elif "action" in self._fault:
            action = np.asarray(action) * self._fault["action"]
        elif self._since("drift_from"):  # the controls are swapped
            action = (
                -action if isinstance(self.env.action_space, gym.spaces.Box) else self.env.action_space.n - 1 - action
            )
        if self._since("slow_from"):
            time.sleep(0.002)
        seen, reward, ended, cut, info = self.env.step(action)
        reward = float(reward) * self._fault.get("reward", 1.0)
        if self._fault.get("never_ends"):
            self._fell |= ended
            reward, ended = (0.0 if self._fell else reward), False
        if self._since("reward_zero_from"):
            reward = 0.0
        if self._since("outlier_from") and self._luck.random() < 0.002:
            reward = 1e4
        if self._since("overflow_from"):
            reward *= 1e12
        return self._observed(seen), reward, ended, cut, info


class Rows(KVWriter):
    """What SB3's loggers are given, by step."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        numbers = {key: float(value) for key, value in key_values.items() if isinstance(value, (int, float, np.number))}
        self.rows.setdefault(step, {}).update(numbers)

    def close(self) -> None:
        """Nothing is open."""


class NeverDone(RolloutBuffer):
    """Takes the value behind the end of an episode for the value of continuing."""

    def add(self, obs: Any, action: Any, reward: Any, episode_start: Any, *rest: Any) -> None:
        super().add(obs, action, reward, np.zeros_like(episode_start), *rest)


class Later(BaseCallback):
    """Multiplies the learning rate from a share of the run on."""

    def __init__(self, share: float, factor: float, total: int) -> None:
        super().__init__()
        self._at, self._factor, self._changed = share * total, factor, False

    def _on_step(self) -> bool:
        if not self._changed and self.num_timesteps >= self._at:
            before = self.model.lr_schedule
            self.model.lr_schedule = lambda left: before(left) * self._factor
            self._changed = True
        return True


def run(trainer: str, task: str, fault: Fault, seed: int) -> dict[int, dict[str, float]]:
    """Rows by step, as SB3 logs them; those of PPO and A2C with what the diagnostics write next to them.

    The wrapper that records episodes is inside the fault where the fault is in what the learner gets, so that
    `rollout/ep_rew_mean` is the true return; where the reward itself goes wrong (a scorer that returns 0, outliers,
    an overflow, an episode that never ends) it is outside.
    """
    kind, many, every, settings = ALGORITHMS[trainer]
    total = STEPS[trainer, task]
    clock, planted = [0], {key: value for key, value in fault.items() if key in ENVIRONMENT}
    logged = bool(fault.keys() & {"reward_zero_from", "outlier_from", "overflow_from", "never_ends"})

    def make(number: int) -> Callable[[], gym.Env[Any, Any]]:
        def wrapped() -> gym.Env[Any, Any]:
            env = TASKS[task]()
            env.action_space.seed(1000 * seed + number)
            ill = Ill(env if logged else Recorded(env), planted, clock, total, seed)
            return Recorded(ill) if logged else ill

        return wrapped

    envs = DummyVecEnv([make(number) for number in range(many)])
    envs.seed(seed)
    others = {key: value for key, value in fault.items() if key not in ENVIRONMENT | RUN}
    buffer = {"rollout_buffer_class": NeverDone} if fault.get("bootstrap") else {}
    # A copy, as SB3 writes into what it is given.
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **copy.deepcopy(settings | buffer | others))
    rows, capture = Rows(), CapturingTracker()
    model.set_logger(Logger(None, [rows]))
    if fault.get("freeze"):
        for name, parameter in model.policy.named_parameters():
            parameter.requires_grad = "value" in name or "vf" in name
    listeners: list[BaseCallback] = []
    if trainer == "PPO":
        listeners.append(DiagnosticsCallback(monitor=Monitor([capture], algorithm="ppo", config={})))
    if "rate_from" in fault:
        listeners.append(Later(*fault["rate_from"], total))
    if "evaluate" in fault:
        other = Ill(TASKS[task](), fault["evaluate"], clock, total, seed)
        listeners.append(
            EvalCallback(DummyVecEnv([lambda: Recorded(other)]), eval_freq=max(total // 40 // many, 1), verbose=0)
        )
    torch.set_num_threads(1)
    try:
        model.learn(total, callback=CallbackList(listeners), log_interval=every)
    except ValueError as failure:  # torch refuses a distribution of NaN: there the user's run ends too
        if "nan" not in str(failure).lower():
            raise
    return joined(rows.rows, capture)


def joined(rows: dict[int, dict[str, float]], capture: CapturingTracker) -> dict[int, dict[str, float]]:
    """The trainer's rows, with the scalars that the diagnostics give for the same steps."""
    for step in capture.records:
        if step in rows:
            rows[step].update(capture.scalars(step))
    return rows
