"""DiagnosticsCallback, and one more logger for the Trainer, which hears the rows of the others."""

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from tracker_diag import Monitor
from tracker_diag.attach.kit import add_active, plain, resume
from tracker_diag.guards.policy import Action
from tracker_diag_lightning import SEES

REACH: tuple[Action, ...] = ("stop_training",)
"""What guards decide that is done here."""


class DiagnosticsCallback(Callback):
    """Watches `fit`. The module hands over tensors with `self.trainer.diag.observe(...)`.

    Args:
        monitor: by default one is made, with the module's hyperparameters, and writes to the runs of the Trainer's
            loggers. In either case it is closed when `fit` ends, just before the loggers are.
    """

    def __init__(self, *, monitor: Monitor | None = None) -> None:
        self._given = monitor is not None
        self.monitor = monitor or Monitor()
        self._fitting = self._closed = False
        self._heard: _Listener | None = None
        self._saved: dict[str, Any] | None = None
        """The state in the checkpoint that `fit` continues from."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._heard is not None and self._heard.news:
            self._heard.news = False
            decision = self.monitor.decide(REACH)
            with self.monitor.guard("integration_errors"):
                trainer.should_stop |= decision.stop == "training"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        monitor = self.ready()
        with monitor.guard("integration_errors"):
            trainer.diag = monitor

    def ready(self) -> Monitor:
        """The monitor of this training, or of the next one."""
        if self._closed and not self._given:
            self.monitor, self._closed = Monitor(), False
        return self.monitor

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._fitting = True
        first, loggers, path = True, list[Any](), None
        with self.monitor.guard("integration_errors"):
            first = trainer.is_global_zero
        with self.monitor.guard("integration_errors"):
            loggers = trainer.loggers
        if not self._given and first:
            add_active(self.monitor, *loggers, sees=SEES)
        with self.monitor.guard("integration_errors"):
            self.monitor.expect(expected_rows(trainer))
        with self.monitor.guard("integration_errors"):
            path = trainer.ckpt_path
        if path is not None or self._saved is not None:
            resume(self.monitor, self._saved, f"{path} has no state of the diagnostics")
        self._saved = None
        with self.monitor.guard("integration_errors"):
            # Not before: checkpoints take their folder from the loggers that are there at `setup`.
            heard = _Listener(self.monitor, trainer.default_root_dir)
            trainer.loggers = [*trainer.loggers, heard]
            self._heard = heard

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints: a resumed run raises the alerts of an unbroken one."""
        with self.monitor.guard("integration_errors"):
            return self.monitor.state_dict()
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict or None

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close(trainer)

    def _close(self, trainer: Any) -> None:
        if not self._fitting:
            return
        heard, self._heard, self._fitting, self._closed = self._heard, None, False, True
        if heard is not None:
            with self.monitor.guard("integration_errors"):
                trainer.loggers = [logger for logger in trainer.loggers if logger is not heard]
        self.monitor.close()


def expected_rows(trainer: Any) -> int | None:
    """How many rows of training the Trainer will log; None for a training without an end."""
    steps, every = trainer.estimated_stepping_batches, trainer.log_every_n_steps
    return int(steps) // every if math.isfinite(steps) and every else None


class _Listener(DummyLogger):
    """Hears each row with its step; `callback_metrics` would give old values again and again."""

    def __init__(self, monitor: Monitor, folder: str) -> None:
        super().__init__()
        self._monitor, self._folder = monitor, folder
        self.news = False
        """Whether a row has come, and guards are to be asked."""

    @property
    def save_dir(self) -> str:
        return self._folder

    def log_metrics(self, metrics: Mapping[str, object], step: int | None = None) -> None:
        self._monitor.log(metrics, step)
        self.news = True

    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        with self._monitor.guard("integration_errors"):
            given = params if isinstance(params, Mapping) else vars(params or {})
            self._monitor.config = plain(given) | dict(self._monitor.config)
