"""The callback for SkyRL's synchronous trainer."""

import logging
from typing import Any

# Untyped where SkyRL is not installed.
from skyrl.train.utils.callbacks import TrainingCallback  # pyright: ignore[reportMissingImports]

from tracker_diag import Monitor
from tracker_diag.attach.kit import Hooks, watch_once, watching
from tracker_diag.attach.saved import Saved
from tracker_diag.attach.workers import Workers
from tracker_diag_skyrl import LOST, TESTED, Batches, monitor_of, save_beside, workers_of

_log = logging.getLogger("tracker_diag")


class DiagnosticsCallback(TrainingCallback):  # pyright: ignore[reportUntypedBaseClass]
    """Gives `monitor` the batch and the metrics of each step; nothing of it reaches the trainer.

    Args:
        monitor: one with settings, rules or trackers of your own; see `attach`. The default one is made when
            training starts.
    """

    def __init__(self, *, monitor: Monitor | None = None) -> None:
        self.monitor = monitor
        self._batches: Batches | None = None
        self._workers: Workers | None = None
        self._saved: Saved | None = None
        self._hooks = Hooks("SkyRL", TESTED)

    def look_at(self, trainer: Any) -> None:
        """See what `trainer` takes out of its batches before the step ends; once, however often this is called."""
        if self.monitor is None:
            self.monitor = monitor_of(trainer)
        if self._batches is None:
            self._batches, self._saved = Batches(self.monitor), Saved(self.monitor, "skyrl")
            self._workers = workers_of(self.monitor)
            with self._hooks.part(LOST) as on:
                self._batches.look_at(trainer, on)
            save_beside(trainer, self.monitor, self._saved, self._hooks)

    def on_train_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        there = watching(trainer, None)
        if there is not None and there is not self.monitor:
            self.monitor = None
            _log.warning("this trainer is watched already: of two diagnostics the first one goes on alone")
            return
        self.look_at(trainer)
        if there is None and self.monitor is not None:
            watch_once(trainer, self.monitor, "SkyRL")

    def on_step_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        if self.monitor and self._batches:
            with self.monitor.guard("integration_errors"):
                self._batches.observe(callback_input.batch)

    def on_log(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Before the trainer's own row is written, which it commits."""
        if self.monitor:
            with self.monitor.guard("integration_errors"):
                if self._workers:
                    self._workers.take_in()
                self.monitor.log(callback_input.logs, callback_input.global_step)
                if self._saved:
                    self._saved.logged()

    def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Before the trainer ends the tracker's run."""
        self._hooks.close()
        if self.monitor:
            with self.monitor.guard("integration_errors"):
                self.monitor.close()
