"""Hugging Face: the metrics and settings of a plain Trainer, or of a loop with Accelerate, into the diagnostics.

    attach(trainer)                 # before trainer.train()

    accelerator.init_trackers("project", config)
    monitor = attach(accelerator)   # after init_trackers

Findings go to the run of W&B, MLflow or Trackio that the framework logs to. They also go next to the event files of its
TensorBoard callback. Reinforcement learning with TRL has an integration of its own, `tracker_diag_trl`, which sees the
tensors too.
"""

from typing import TYPE_CHECKING, Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import on_demand
from tracker_diag.errors import require
from tracker_diag.guards.policy import Guarded

if TYPE_CHECKING:
    from tracker_diag_transformers.trainer import DiagnosticsCallback as DiagnosticsCallback

__all__ = ["INSTALLED_AS", "SEES", "TESTED", "DiagnosticsCallback", "attach"]

INSTALLED_AS = ("transformers", "accelerate")
TESTED = "transformers 5.24, accelerate 1.15"
SEES: dict[str, str] = {
    "metrics": "all that Trainer.log or Accelerator.log is given, under its step",
    "settings": "Trainer: its arguments and the model's; Accelerate: what init_trackers was given, through config=",
    "state": "in the Trainer's checkpoints; in the folders of Accelerator.save_state, found again by load_state",
    "not": "no ratio pair: a plain Trainer has one log-probability. A loop, or a compute_loss, that has two calls "
    "monitor.observe itself",
}


def attach(
    target: Any, *, monitor: Monitor | None = None, config: dict[str, Any] | None = None, guards: Guarded = ()
) -> Monitor:
    """Watch a `transformers.Trainer`, or an `accelerate.Accelerator` whose trackers are underway.

    Args:
        monitor: by default one is made, with the settings that are known and the trackers that are underway. In
            either case it is closed when training ends, just before the trackers are.
        config: settings of a loop with Accelerate, as given to `init_trackers`.
        guards: those of the monitor that is made. A Trainer does what they decide, as far as
            docs/guards-frameworks.md says. A loop with Accelerate asks for it, by `monitor.decide()`.
    """
    if hasattr(target, "init_trackers"):
        require("accelerate", "accelerate")
        from tracker_diag_transformers.loop import attach_accelerator

        return attach_accelerator(target, monitor, config or {}, guards)
    require("transformers", "transformers")
    from tracker_diag_transformers.trainer import attach_trainer

    return attach_trainer(target, monitor, guards)


__getattr__ = on_demand("tracker_diag_transformers.trainer", "DiagnosticsCallback", "transformers", "transformers")
