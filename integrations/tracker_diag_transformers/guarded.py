"""What guards decide, done by a Trainer as far as its callbacks reach; for TRL too."""

from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import attempt
from tracker_diag.attach.resume import leave
from tracker_diag.guards.policy import Action
from tracker_diag.guards.policy import Guarded as Guards
from tracker_diag.guards.steps import Steps

__all__ = ["Guarded", "Guards"]

PENALISED = {"GRPOTrainer", "RLOOTrainer"}
"""TRL's trainers whose `beta` is the weight of the KL, at each use of it."""


class Guarded:
    """Of one training.

    Args:
        trainer: None for a callback that does not know it: what needs it is out of reach then.
        optimizer: the trainer's own.
    """

    def __init__(self, monitor: Monitor, trainer: Any, optimizer: Any) -> None:
        self._monitor, self._trainer = monitor, trainer
        self._steps = attempt(monitor, lambda: _steps(trainer, optimizer))
        self._beta = attempt(monitor, lambda: _penalty(trainer))
        self._evaluates = attempt(monitor, lambda: getattr(trainer, "eval_dataset", None)) is not None
        self._saved: tuple[Any, int] | None = None
        self._limited: tuple[Any, int] | None = None
        """The Trainer's arguments and how many checkpoints they keep, where that is suspended."""

    @property
    def can(self) -> tuple[Action, ...]:
        given: dict[Action, bool] = {
            "stop_training": True,
            "save_state": True,
            "rollback": True,
            "skip_batch": self._steps is not None,
            "stop_update": self._steps is not None,
            "scale_lr": self._steps is not None,
            "kl_cap": self._beta is not None,
            "reevaluate": self._evaluates,
        }
        return tuple(action for action, within in given.items() if within)

    def decide(self, args: Any, state: Any, control: Any) -> None:
        """After a log: ask, and do it. What the Trainer does at its next occasion is asked for by `control`.

        A rollback stops the training; the first process leaves word of the checkpoint for a launcher. No checkpoint
        is deleted then: it might be that one.
        """
        decision = self._monitor.decide(self.can)
        wanted = {
            "should_save": decision.save, "should_evaluate": decision.reevaluate, "should_training_stop": decision.ends
        }  # fmt: skip
        for name, now in wanted.items():
            with self._monitor.guard("integration_errors"):
                setattr(control, name, getattr(control, name) or now)
        with self._monitor.guard("integration_errors"):
            if decision.rollback_to is not None and args.save_total_limit:
                self._limited, args.save_total_limit = (args, args.save_total_limit), None
        attempt(self._monitor, lambda: leave(decision) if state.is_world_process_zero else None)
        if self._steps:
            self._steps.follow(decision)
        if self._beta is not None:  # never below what the user has set
            self._trainer.beta = max(self._beta, decision.kl_coef or 0.0)

    def saved(self, folder: Any, step: int) -> None:
        """A checkpoint is there, or this process's part of it."""
        self._saved = folder, step

    def stepped(self) -> None:
        """A step is over, in which all processes have come together: what was saved before it is whole."""
        if self._saved is not None:
            self._monitor.checkpoint(*self._saved)
            self._saved = None

    def close(self) -> None:
        self.stepped()
        if self._steps:
            self._steps.close()
        if self._beta is not None:
            self._trainer.beta = self._beta
        if self._limited is not None:
            self._limited[0].save_total_limit = self._limited[1]


def _steps(trainer: Any, optimizer: Any) -> Steps | None:
    deepspeed = bool(getattr(trainer, "is_deepspeed_enabled", False))  # its engine makes the steps
    hooked = hasattr(getattr(optimizer, "optimizer", optimizer), "register_step_pre_hook")
    return Steps(optimizer) if hooked and not deepspeed else None


def _penalty(trainer: Any) -> float | None:
    classes = {kind.__name__ for kind in type(trainer).__mro__}
    return trainer.beta if classes & PENALISED and trainer.beta > 0 else None
