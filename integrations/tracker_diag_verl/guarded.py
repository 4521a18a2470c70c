"""What guards decide, done by verl's trainer in its next step: by settings that it looks up at every step.

A setting is lent for one step and given back. Trainers with a loop of their own, the fully asynchronous ones, are not
asked to do anything.
"""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.guards.policy import Action
from tracker_diag.hooks import after, before

TRAINERS: dict[str, tuple[str, str, str]] = {
    "verl.trainer.ppo.ray_trainer": ("RayPPOTrainer", "_get_gen_batch", "batch"),
    "verl.trainer.ppo.v1.trainer_base": ("PPOTrainer", "_compute_advantage", "batch"),
}
"""By module: the class whose `fit` is known, and what it calls at each step with what."""

FIXED = "FixedKLController"
"""verl's controller that leaves the weight of the KL as it is; the adaptive one sets it itself."""


class Guarded:
    """Of one training; its trainer becomes known by the calls that it makes of its own methods."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._trainer: Any = None
        self._lent: dict[str, Any] = {}
        """Settings below `trainer` as they are without us, of those that are changed for the step to come."""
        self._to_save = False
        self._kl_coef: float | None = None
        """The trainer's own weight of the KL in the reward, if it is a fixed one."""

    def hook_trainers(self, hooks: ExitStack) -> None:
        """Put hooks on the trainers that this process has loaded."""
        for name, (kind, method, argument) in TRAINERS.items():
            if name in sys.modules:
                trainer = getattr(sys.modules[name], kind)
                hooks.callback(before(trainer, method, ("self", argument), self._on_step, self._monitor))
                hooks.callback(after(trainer, "_save_checkpoint", ("self",), self._on_saved, self._monitor))
        hooks.callback(self._give_back)

    def _on_step(self, given: Mapping[str, Any]) -> None:
        trainer = given["self"]
        known = [getattr(sys.modules[name], kind).fit for name, (kind, *_) in TRAINERS.items() if name in sys.modules]
        if trainer is self._trainer or type(trainer).fit not in known:
            return
        self._trainer = trainer
        if trainer.config.algorithm.use_kl_in_reward and type(trainer.kl_ctrl_in_reward).__name__ == FIXED:
            self._kl_coef = trainer.kl_ctrl_in_reward.value

    def _on_saved(self, result: Any, given: Mapping[str, Any]) -> None:
        trainer = given["self"]
        folder = Path(trainer.config.trainer.default_local_dir) / f"global_step_{trainer.global_steps}"
        asynchronous = trainer.config.actor_rollout_ref.actor.get("checkpoint", {}).get("async_save", False)
        if trainer is self._trainer and not asynchronous and folder.exists():
            self._monitor.checkpoint(folder, trainer.global_steps)

    @property
    def _can(self) -> tuple[Action, ...]:
        """What is within reach. With a critic an update of the actor alone could be left out, so neither is."""
        given: dict[Action, bool] = {
            "stop_training": True,
            "save_state": True,
            "reevaluate": True,
            "skip_batch": not self._trainer.use_critic,
            "stop_update": not self._trainer.use_critic,
            "kl_cap": self._kl_coef is not None,
        }
        return tuple(action for action, within in given.items() if within)

    def decide(self) -> None:
        """After a row: ask, and have the step to come do it."""
        trainer = self._trainer
        if trainer is None:  # before the first step, or a trainer with a loop of its own
            return
        self._give_back()
        decision = self._monitor.decide(self._can)
        coming = trainer.global_steps + 1
        held = decision.stop == "update" or decision.skip_batch
        if decision.stop == "training":  # it is saved and evaluated as verl's last step is
            trainer.total_training_steps = min(trainer.total_training_steps, coming)
        if held:
            self._lend("critic_warmup", coming + 1)
        if decision.reevaluate:
            self._lend("test_freq", 1)
        self._to_save |= decision.save
        if self._to_save and not held:  # verl saves nothing in a step without an update
            self._lend("save_freq", 1)
            self._to_save = False
        if self._kl_coef is not None:  # never below what the user has set
            trainer.kl_ctrl_in_reward.value = max(self._kl_coef, decision.kl_coef or 0.0)

    def _lend(self, name: str, value: int) -> None:
        settings = self._trainer.config.trainer
        self._lent[name] = settings[name]
        settings[name] = value

    def _give_back(self) -> None:
        if self._trainer is not None:
            self._trainer.config.trainer.update(self._lent)
            self._lent.clear()
            if self._kl_coef is not None:
                self._trainer.kl_ctrl_in_reward.value = self._kl_coef
