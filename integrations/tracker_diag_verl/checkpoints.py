"""The state of the diagnostics, next to verl's checkpoints: in `global_step_N` of `trainer.default_local_dir`.

A trainer may load its checkpoint before it makes the `Tracking` that diagnostics attach to, as that of v1 does: so its
class is looked at as soon as it is there, and what was loaded is kept until then.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracker_diag import Monitor
from tracker_diag.attach.kit import Hooks
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag.hooks import after

TRAINERS = {
    "verl.trainer.ppo.ray_trainer": "RayPPOTrainer",
    "verl.trainer.ppo.v1.trainer_base": "PPOTrainer",
}
"""By module: the class that saves and loads. The fully asynchronous trainer, an actor of Ray, has its own ways."""


class Checkpoints:
    """Of the process: which trainer has loaded a checkpoint, and the state that goes with the run that is watched."""

    def __init__(self) -> None:
        self._looked_at: set[str] = set()
        self._loaded: Any = None
        self._monitor: Monitor | None = None
        self._saved: Saved | None = None
        self._health = Monitor(catalog=False)  # only for failures of a hook, which are logged

    def hook_trainers(self, tested: str) -> None:
        """Put hooks on the trainers that this process has loaded, once on each."""
        for name, kind in TRAINERS.items():
            if name not in sys.modules or name in self._looked_at:
                continue
            self._looked_at.add(name)
            with Hooks("verl", tested).part(UNSAVED) as on:
                trainer = getattr(sys.modules[name], kind)
                on.callback(after(trainer, "_save_checkpoint", ("self",), self._on_saved, self._health))
                on.callback(after(trainer, "_load_checkpoint", ("self",), self._on_loaded, self._health))

    def follow(self, monitor: Monitor) -> None:
        """From now on keep the state of `monitor`; of a checkpoint that was loaded before, take it now."""
        self._monitor, self._saved = monitor, Saved(monitor)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._resume(loaded)

    def logged(self) -> None:
        if self._saved is not None:
            self._saved.logged()

    def leave(self) -> None:
        self._monitor = self._saved = None

    def _on_saved(self, _: Any, given: Mapping[str, Any]) -> None:
        if self._saved is not None:
            trainer = given["self"]
            root = Path(trainer.config.trainer.default_local_dir).absolute()
            self._saved.put(root / f"global_step_{trainer.global_steps}", row=int(trainer.global_steps))

    def _on_loaded(self, _: Any, given: Mapping[str, Any]) -> None:
        if self._saved is None or self._monitor is None or self._monitor.step is not None:  # it is of the next run
            self._loaded = given["self"]
        else:
            self._resume(given["self"])

    def _resume(self, trainer: Any) -> None:
        """`trainer` is about to begin, or to continue."""
        settings, done = trainer.config.trainer, int(trainer.global_steps)
        if self._monitor is not None and self._saved is not None:
            self._monitor.expect(int(trainer.total_training_steps) - done)
            if done:
                given = settings.resume_from_path if settings.resume_mode == "resume_path" else None
                folder = given or Path(settings.default_local_dir) / f"global_step_{done}"
                self._saved.find(Path(folder).absolute())


CHECKPOINTS = Checkpoints()
