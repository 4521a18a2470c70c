"""Lightning: what a module logs, and the tensors that it hands over, into the diagnostics.

    trainer = Trainer(callbacks=[DiagnosticsCallback()], logger=MLFlowLogger(...))

    def training_step(self, batch, batch_idx):
        ...
        self.trainer.diag.observe(logprobs=new, old_logprobs=old, model_mask=mask)
        self.log("reward", reward)

Findings go to the Trainer's MLflow and W&B loggers, and next to the event files of its TensorBoardLogger. They also go
to every other run that is underway. The state of the diagnostics is in Lightning's checkpoints.
"""

from typing import TYPE_CHECKING, Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import on_demand
from tracker_diag.errors import DiagError, require
from tracker_diag.guards.policy import Guarded

if TYPE_CHECKING:
    from tracker_diag_lightning.callback import DiagnosticsCallback as DiagnosticsCallback

__all__ = ["INSTALLED_AS", "SEES", "TESTED", "DiagnosticsCallback", "attach"]

INSTALLED_AS = ("lightning", "pytorch-lightning")
TESTED = "2.6, as lightning and as pytorch_lightning"
SEES: dict[str, str] = {
    "policy, mismatch, reference": "what the module hands to self.trainer.diag.observe; all batches up to the "
    "next row of log_every_n_steps add up",
    "metrics": "every row that Lightning's loggers are given, with its step; for a Trainer with logger=False too",
    "not": "no tensor by itself: Lightning does not know which of a module's tensors are log-probabilities",
}


def attach(trainer: Any, *, monitor: Monitor | None = None, guards: Guarded = ()) -> Monitor:
    """Add a `DiagnosticsCallback` to a `Trainer` that exists already; the same as `Trainer(callbacks=[...])`.

    A trainer that has one already keeps it: the monitor is that of its next `fit`.

    Raises:
        DiagError: it has one already, with another monitor.
    """
    require("lightning", "lightning")
    from tracker_diag_lightning.callback import DiagnosticsCallback

    for present in trainer.callbacks:
        if isinstance(present, DiagnosticsCallback):
            if monitor is not None and monitor is not present.monitor:
                raise DiagError("monitor: another one given, expected that which watches this trainer already, or none")
            return present.ready()
    callback = DiagnosticsCallback(monitor=monitor, guards=guards)
    trainer.callbacks.append(callback)
    return callback.monitor


__getattr__ = on_demand("tracker_diag_lightning.callback", "DiagnosticsCallback", "lightning", "lightning")
