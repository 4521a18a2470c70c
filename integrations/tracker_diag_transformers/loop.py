"""A loop with Accelerate: one more tracker, which hears every `accelerator.log`."""

from typing import Any

from accelerate.tracking import GeneralTracker

from tracker_diag import Monitor
from tracker_diag.attach.kit import add_active
from tracker_diag_transformers import SEES
from tracker_diag_transformers.guarded import Guards, one_of, ranks


class DiagTracker(GeneralTracker):
    """Hears what the other trackers of an Accelerator are given."""

    name = "tracker_diag"
    requires_logging_directory = False

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self._monitor = monitor

    @property
    def tracker(self) -> Monitor:
        return self._monitor

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self._monitor.log(values, step)

    def finish(self) -> None:
        self._monitor.close()


def attach_accelerator(accelerator: Any, monitor: Monitor | None, config: dict[str, Any], guards: Guards) -> Monitor:
    """Add a `DiagTracker` before the other trackers, which end their runs in their turn."""
    one_of(monitor, guards)
    if monitor is None:
        monitor = Monitor(config=config, guards=guards, ranks=ranks() if guards else None)
        if accelerator.is_main_process:
            add_active(monitor, *accelerator.trackers, sees=SEES)
    accelerator.trackers.insert(0, DiagTracker(monitor))
    return monitor
