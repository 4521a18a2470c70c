"""watch: diagnostics for whatever run begins, for code that one does not own; in the manner of `mlflow.autolog()`."""

import logging
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import wrapt

from tracker_diag.attach.ears import MLFLOW
from tracker_diag.attach.wrap import Baseline, Settings, read_baseline, underway, wrap
from tracker_diag.errors import DiagError
from tracker_diag.health import Health
from tracker_diag.hooks import HookError, Seen, after
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.tensors.batch import Tensors
from tracker_diag.trackers.tracker import writing_of_ours

if TYPE_CHECKING:
    from typing_extensions import Unpack

TRACKERS = ("mlflow", "wandb", "trackio")

_log = logging.getLogger("tracker_diag")


class Watch:
    """Has a monitor for each run that is underway, and gives all of them the tensors that it is given."""

    def __init__(self, settings: Settings, baseline: Baseline) -> None:
        self._settings, self._baseline = settings, baseline
        self._state = Health()
        self._open: list[Monitor] = []
        self._last: list[Monitor] = []
        """The one that began last."""
        self._hooks: list[Callable[[], None]] = []
        self._on, self._told = True, False
        self._seen: set[str] = set()
        MLFLOW.newcomer = self._logged
        for name in TRACKERS:
            if name in sys.modules:
                self._arrived(sys.modules[name])
            else:
                wrapt.register_post_import_hook(self._arrived, name)
        self._look()

    @property
    def diag(self) -> Monitor | None:
        """The monitor of the run that began last; None while none is underway."""
        return self._open[-1] if self._open else None

    def observe(self, *, step: int | None = None, seconds: float | None = None, **tensors: "Unpack[Tensors]") -> None:
        """`Monitor.observe`, for each run that is underway; that there is none is told once."""
        self._look()
        if not self._open and not self._told:
            self._told = True
            _log.warning(
                "tensors were observed while no run of %s is underway, and are left out; "
                "start the run before, or wrap your own logger", " or ".join(TRACKERS),
            )  # fmt: skip
        for monitor in tuple(self._open):
            monitor.observe(step=step, seconds=seconds, **tensors)

    def log(self, metrics: Mapping[str, object], step: int | None = None) -> None:
        """`Monitor.log`, for each run that is underway."""
        self._look()
        for monitor in tuple(self._open):
            monitor.log(metrics, step)

    def explain(self) -> None:
        """`Monitor.explain`, for each run that is underway; for the last one that was, if none is."""
        for monitor in self._open or self._last:
            monitor.explain()

    def close(self) -> None:
        """Close the monitors of all runs, and let go of the trackers."""
        self._on = False
        if MLFLOW.newcomer is not None:
            MLFLOW.newcomer = None
            MLFLOW.close_if_idle()
        while self._hooks:
            self._hooks.pop()()
        for monitor in tuple(self._open):
            monitor.close()

    def _arrived(self, module: ModuleType) -> None:
        """A tracker is there now: hear of the runs that it begins."""
        if not self._on:
            return
        name = module.__name__
        try:
            if name == "mlflow":
                MLFLOW.open()
            else:
                begun = after(module, "init", ("project",), self._begun(name), self._state)
                self._hooks.append(begun)
        except (HookError, ImportError) as error:
            _log.warning("runs of %s are not watched: %s", name, error)

    def _begun(self, name: str) -> Seen:
        def begun(run: Any, _: Mapping[str, Any]) -> None:
            if not writing_of_ours():
                self._attach(name, run)

        return begun

    def _look(self) -> None:
        """Attach to the runs that are underway."""
        for name in TRACKERS:
            module = sys.modules.get(name)
            run = None if module is None else current_run(name, module)
            if run is not None:
                self._attach(name, run)

    def _attach(self, name: str, run: Any) -> None:
        """Watch `run`, unless that was done before; it may be closed since."""
        run_id = run.info.run_id if name == "mlflow" else run.id
        if run_id in self._seen:
            return
        self._seen.add(run_id)
        try:
            monitor = underway(name, run_id) or wrap(run, baseline=self._baseline, **self._settings).diag
        except DiagError as error:
            self._state.record("integration_errors", error)
            return
        self._take(monitor)

    def _take(self, monitor: Monitor) -> None:
        self._open.append(monitor)
        self._last = [monitor]
        monitor.at_close(lambda: self._open.remove(monitor))

    def _logged(self, client: Any, run_id: str) -> Monitor | None:
        """Something was logged to a run of MLflow that nobody has wrapped."""
        if run_id in self._seen:
            return None
        self._seen.add(run_id)
        monitor: Monitor = wrap(client, run_id=run_id, baseline=self._baseline, **self._settings).diag
        self._take(monitor)
        return monitor


def current_run(name: str, module: Any) -> Any:
    """The run that is underway; None if none is. Nothing is started to find out, nor asked of a server."""
    if name == "mlflow":
        return module.active_run() if hasattr(module, "active_run") else None
    if name == "wandb":
        return getattr(module, "run", None)
    return module.context_vars.current_run.get() if hasattr(module, "context_vars") else None


def watch(*, baseline: Baseline = (), **settings: "Unpack[Settings]") -> Watch:
    """Watch every run of MLflow, W&B and Trackio that is underway or begins, until `close`.

        watcher = td.watch()
        train()                          # code of somebody else, which starts a run and logs to it
        watcher.observe(logprobs=...)    # from a callback, where the tensors are

    What is logged is heard; tensors are taken by `observe`. Each run has a monitor of its own, which ends with it.

    Args:
        baseline, settings: of each monitor, as `wrap` takes them.

    Raises:
        DiagError: a run of `baseline` cannot be read, or holds nothing to judge by.
    """
    return Watch(settings, read_baseline(baseline))
