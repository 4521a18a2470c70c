"""DiagnosticsCallback, and one more logger for the Trainer, which hears the rows of the others."""

import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger

from tracker_diag import Monitor
from tracker_diag.attach.kit import add_active, attempt, one_of, plain, resume
from tracker_diag.attach.resume import leave
from tracker_diag.guards.policy import Action, Guarded
from tracker_diag_lightning import SEES

REACH: tuple[Action, ...] = ("stop_training", "rollback")
"""What guards decide that is done here."""
SAVES_NOTHING = {"save_top_k": 0, "save_last": False}
"""Settings of a `ModelCheckpoint` that saves nothing."""


class DiagnosticsCallback(Callback):
    """Watches `fit`. The module hands over tensors with `self.trainer.diag.observe(...)`.

    Args:
        monitor: by default one is made, with the module's hyperparameters, and writes to the runs of the Trainer's
            loggers. In either case it is closed when `fit` ends, just before the loggers are.
        guards: those of the monitor that is made; what they decide is done as far as docs/guards-frameworks.md says.
    """

    def __init__(self, *, monitor: Monitor | None = None, guards: Guarded = ()) -> None:
        one_of(monitor, guards)
        self._given, self._guards = monitor is not None, guards
        self.monitor = monitor or Monitor(guards=guards)
        self._fitting = self._closed = False
        self._suspended: list[tuple[Any, str, Any]] = []
        """Settings of the callbacks that save, as they are without us."""
        self._heard: _Listener | None = None
        self._saved: dict[str, Any] | None = None
        """The state in the checkpoint that `fit` continues from."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._heard is not None and self._heard.news:
            self._heard.news = False
            attempt(self.monitor, lambda: self._decide(trainer))

    def _decide(self, trainer: Any) -> None:
        """Ask the guards, and do what they say; a process that decides without the others would leave them waiting."""
        decision = self.monitor.decide(() if self.monitor.guards.alone and trainer.world_size > 1 else REACH)
        trainer.should_stop |= decision.ends
        if decision.rollback_to is not None:  # what is saved from now on might take the place of that checkpoint
            for saving in trainer.checkpoint_callbacks:
                for name in SAVES_NOTHING.keys() & vars(saving).keys():
                    self._suspended.append((saving, name, getattr(saving, name)))
                    setattr(saving, name, SAVES_NOTHING[name])
        if trainer.is_global_zero:
            leave(decision)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        with self.monitor.guard("integration_errors"):
            if self._heard is not None and trainer.ckpt_path is not None:
                self._heard.saved(trainer.ckpt_path)  # its own state does not know of it

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        monitor = self.ready()
        with monitor.guard("integration_errors"):
            trainer.diag = monitor

    def ready(self) -> Monitor:
        """The monitor of this training, or of the next one."""
        if self._closed and not self._given:
            self.monitor, self._closed = Monitor(guards=self._guards), False
        return self.monitor

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._fitting = True
        first = attempt(self.monitor, lambda: trainer.is_global_zero, True)
        loggers = attempt(self.monitor, lambda: trainer.loggers) or ()
        if not self._given and first:
            add_active(self.monitor, *loggers, sees=SEES)
        attempt(self.monitor, lambda: self.monitor.expect(expected_rows(trainer)))
        path = attempt(self.monitor, lambda: trainer.ckpt_path)
        if path is not None or self._saved is not None:
            resume(self.monitor, self._saved, f"{path} has no state of the diagnostics")
        self._saved = None
        with self.monitor.guard("integration_errors"):
            # Not before: checkpoints take their folder from the loggers that are there at `setup`.
            heard = _Listener(self.monitor, trainer)
            trainer.loggers = [*trainer.loggers, heard]
            self._heard = heard

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints: a resumed run raises the alerts of an unbroken one."""
        return attempt(self.monitor, self.monitor.state_dict) or {}

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
        while self._suspended:
            setattr(*self._suspended.pop())
        self.monitor.close()


def expected_rows(trainer: Any) -> int | None:
    """How many rows of training the Trainer will log; None for a training without an end."""
    steps, every = trainer.estimated_stepping_batches, trainer.log_every_n_steps
    return int(steps) // every if math.isfinite(steps) and every else None


class _Listener(DummyLogger):
    """Hears each row with its step; `callback_metrics` would give old values again and again."""

    def __init__(self, monitor: Monitor, trainer: Any) -> None:
        super().__init__()
        self._monitor, self._trainer = monitor, trainer
        self._folder: str = trainer.default_root_dir
        self._last: int | None = None
        """Step of the last checkpoint."""
        self.news = False
        """Whether a row has come, and guards are to be asked."""

    @property
    def save_dir(self) -> str:
        return self._folder

    def log_metrics(self, metrics: Mapping[str, object], step: int | None = None) -> None:
        self._monitor.log(metrics, step)
        self.news = True

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """A checkpoint is whole; the first process alone is called."""
        with self._monitor.guard("integration_errors"):
            self.saved(checkpoint_callback._last_checkpoint_saved)  # noqa: SLF001  # the best and `last` may be others

    def saved(self, path: Any) -> None:
        """Register it, of several of one step the first: `last.ckpt` is written anew at each."""
        step = self._trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001  # the rows' own
        if step != self._last and self._trainer.is_global_zero:
            self._last = step
            self._monitor.checkpoint(path, step)

    def log_hyperparams(self, params: Any = None, *args: Any, **kwargs: Any) -> None:
        with self._monitor.guard("integration_errors"):
            given = params if isinstance(params, Mapping) else vars(params or {})
            self._monitor.config = plain(given) | dict(self._monitor.config)
