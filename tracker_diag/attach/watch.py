"""watch: diagnostics for whatever run begins, for code that one does not own; in the manner of `mlflow.autolog()`."""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tracker_diag.attach.wrap import Baseline, Key, Settings, begin, key_of, read_baseline
from tracker_diag.errors import disabled
from tracker_diag.health import Health
from tracker_diag.hooks import when_imported
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.tensors.batch import Tensors
from tracker_diag.trackers.discovery import active_trackers, watchable
from tracker_diag.trackers.tracker import Tracker

if TYPE_CHECKING:
    from typing_extensions import Unpack

_log = logging.getLogger("tracker_diag")


class Watch:
    """Has a monitor for each run that is underway, and gives all of them the tensors that it is given."""

    def __init__(self, settings: Settings, baseline: Baseline) -> None:
        self._on, self._warned = not disabled(), disabled()
        self._settings, self._baseline = settings, read_baseline(baseline) if self._on else ()
        self._state = Health()
        self._open: list[Monitor] = []
        self._hooks: list[Callable[[], None]] = []
        self._seen: set[Key] = set()
        self._kinds = watchable() if self._on else ()
        for kind in self._kinds:
            when_imported(kind.library, partial(self._arrived, kind))
        self._look()

    @property
    def diag(self) -> Monitor | None:
        """The monitor of the run that began last; None while none is underway."""
        return self._open[-1] if self._open else None

    def observe(self, *, step: int | None = None, seconds: float | None = None, **tensors: "Unpack[Tensors]") -> None:
        """`Monitor.observe`, for each run that is underway; one warning says that there is none."""
        self._look()
        if not self._open and not self._warned:
            self._warned = True
            _log.warning(
                "tensors were observed while no run of %s is underway, and are left out; "
                "start the run before, or wrap your own logger", " or ".join(kind.name for kind in self._kinds),
            )  # fmt: skip
        for monitor in tuple(self._open):
            monitor.observe(step=step, seconds=seconds, **tensors)

    def close(self) -> None:
        """Close the monitors of all runs, and let go of the trackers."""
        self._on = False
        while self._hooks:
            self._hooks.pop()()
        for monitor in tuple(self._open):
            monitor.close()

    def _arrived(self, kind: type[Tracker], _: object) -> None:
        """A tracker is there now: hear of the runs that it begins."""
        if self._on:
            try:
                self._hooks.append(kind.watch(self._begun))
            except Exception as error:  # noqa: BLE001  # whatever a tracker raises
                _log.warning("runs of %s are not watched: %s", kind.name, error)

    def _look(self) -> None:
        for tracker in active_trackers() if self._on else ():
            self._begun(tracker)

    def _begun(self, tracker: Tracker) -> None:
        """Watch the run of `tracker`, unless that was done before; it may be closed since."""
        key = key_of(tracker)
        if key in self._seen or not self._on:
            return
        self._seen.add(key)
        try:
            monitor = begin(tracker, self._baseline, **self._settings)
        except Exception as error:  # noqa: BLE001  # the code that starts the run is not ours to stop
            self._state.record("integration_errors", error)
            return
        self._open.append(monitor)
        monitor.at_close(lambda: self._open.remove(monitor))


def watch(*, baseline: Baseline = (), **settings: "Unpack[Settings]") -> Watch:
    """Watch every run that is underway or begins, of any tracker that is installed, until `close`.

        watcher = td.watch()
        train()                          # code of somebody else, which starts a run and logs to it
        watcher.observe(logprobs=...)    # from a callback, where the tensors are

    What is logged is heard; tensors are taken by `observe`. Each run has a monitor of its own, which ends with it.

    Args:
        baseline, settings: of each monitor, as `wrap` takes them.

    Raises:
        DiagError: a run of `baseline` cannot be read, or holds nothing to judge by.
    """
    return Watch(settings, baseline)
