"""A loop with Accelerate: one more tracker, which hears every `accelerator.log`."""

from typing import Any

from accelerate.tracking import GeneralTracker

from tracker_diag import Monitor
from tracker_diag.attach.kit import Hooks, add_active, all_ranks, one_of, same_monitor
from tracker_diag.attach.saved import UNSAVED, Saved
from tracker_diag_transformers import SEES, TESTED
from tracker_diag_transformers.guarded import Guards


class DiagTracker(GeneralTracker):
    """Hears what the other trackers of an Accelerator are given."""

    name = "tracker_diag"
    requires_logging_directory = False

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self._monitor = monitor
        self.hooks, self.over = Hooks("accelerate", TESTED), False

    @property
    def tracker(self) -> Monitor:
        return self._monitor

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self._monitor.log(values, step)

    def finish(self) -> None:
        self.over = True
        self._monitor.close()
        self.hooks.close()


def attach_accelerator(accelerator: Any, monitor: Monitor | None, config: dict[str, Any], guards: Guards) -> Monitor:
    """Add a `DiagTracker` before the other trackers, which end their runs in their turn."""
    one_of(monitor, guards)
    # Those of another run, or of none, are no longer among the trackers.
    present = next((tracker for tracker in accelerator.trackers if isinstance(tracker, DiagTracker)), None)
    if present is not None and not present.over:
        return same_monitor(present.tracker, monitor)
    if monitor is None:
        monitor = Monitor(config=config, guards=guards, ranks=all_ranks() if guards else None)
        if accelerator.is_main_process:
            add_active(monitor, *accelerator.trackers, sees=SEES)
    saved = Saved(monitor, getattr(accelerator, "process_index", 0))
    tracker = DiagTracker(monitor)
    accelerator.trackers.insert(0, tracker)

    def on_save(_: Any, __: Any, folder: Any) -> None:
        saved.put(folder)

    def on_load(_: Any, folder: Any) -> None:
        saved.find(folder)

    # What is registered for checkpointing must be in each that is loaded; next to them a missing state is no error.
    with tracker.hooks.part(UNSAVED) as on:
        on.callback(accelerator.register_save_state_pre_hook(on_save).remove)
        on.callback(accelerator.register_load_state_pre_hook(on_load).remove)
    return monitor
