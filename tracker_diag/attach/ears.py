"""Ears: what a tracker is given is heard wherever it comes from, the wrapped tracker, the raw one or a framework.

Each puts hooks on the calls of one kind of tracker, until its monitor is closed. What goes to the tracker is never
changed, and what a tracker of ours writes is not heard.
"""

import atexit
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

from tracker_diag.health import Health
from tracker_diag.hooks import OnObject, Unlocked, after, before, replace
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.trackers.tracker import writing_of_ours
from tracker_diag.trackers.wandb.write import WandbTracker, before_finish

LOGGING = ("log", "log_metrics")
ENDING = ("finish", "finalize")
STEPS = ("step", "global_step")

NOT_OF_THE_RUN = "system/"
"""Beginning of the names that MLflow gives to what it measures of the machine, on a clock of its own."""


def hear(monitor: Monitor, metrics: Mapping[str, object], step: object = None) -> None:
    """Give the monitor what was logged; without a step it belongs to the step that is underway."""
    if step is None and not monitor.observed:
        step = monitor.step or 0
    monitor.log(metrics, step)  # type: ignore[arg-type]  # of whatever type it came


def on_wandb(tracker: WandbTracker, monitor: Monitor) -> None:
    """Hear `Run.log` and `wandb.log`; the step of the diagnostics is the number of W&B's row."""

    def heard(data: Mapping[str, Any], step: int | None, row: int | None) -> None:
        with monitor.guard("internal_errors"):
            if step is None and (row is None or monitor.tensors_say_step):
                hear(monitor, data)
            else:
                monitor.log(data, row if step is None else step)

    def end() -> None:
        atexit.unregister(end)
        monitor.close()

    tracker.heard = heard
    before_finish(tracker.run, end)
    atexit.register(end)
    monitor.at_close(before(tracker.run, "finish", (), lambda _: end(), Unlocked(monitor.record)))


class MlflowEars:
    """Hears every `MlflowClient` for all runs that are watched: the module's functions and autologging use one."""

    def __init__(self) -> None:
        self._monitors: dict[str, Monitor] = {}
        self.newcomer: Callable[[Any, str], Monitor | None] | None = None
        """Is asked for a monitor of a run that has none, with a client and the run's id."""
        self._off: list[Callable[[], None]] = []

    def listen(self, run_id: str, monitor: Monitor) -> None:
        """Hear what is logged to `run_id`, until the monitor is closed or the run is ended."""
        self.open()
        self._monitors[run_id] = monitor
        monitor.at_close(lambda: self._leave(run_id, monitor))

    def open(self) -> None:
        """Put the hooks on, if they are not."""
        from mlflow import MlflowClient

        if not self._off:
            own = Unlocked(Health().record)  # for several monitors at once; each one counts its own failures itself
            metric, batch = ("run_id", "key", "value", "step"), ("run_id", "metrics")
            self._off = [
                after(MlflowClient, "log_metric", metric, self._metric, own),
                after(MlflowClient, "log_batch", batch, self._batch, own),
                before(MlflowClient, "set_terminated", ("run_id",), self._ended, own),
            ]

    def close_if_idle(self) -> None:
        """Take the hooks off once nobody listens."""
        if not self._monitors and self.newcomer is None:
            while self._off:
                self._off.pop()()

    def _leave(self, run_id: str, monitor: Monitor) -> None:
        if self._monitors.get(run_id) is monitor:
            del self._monitors[run_id]
        self.close_if_idle()

    def _metric(self, _: Any, given: Mapping[str, Any]) -> None:
        self._heard(given, {given.get("step") or 0: {given["key"]: given["value"]}})

    def _batch(self, _: Any, given: Mapping[str, Any]) -> None:
        by_step: dict[int, dict[str, float]] = {}
        for metric in given.get("metrics", ()):
            by_step.setdefault(metric.step, {})[metric.key] = metric.value
        self._heard(given, by_step)

    def _heard(self, given: Mapping[str, Any], by_step: Mapping[int, Mapping[str, float]]) -> None:
        if writing_of_ours():
            return
        monitor, of_run = self._monitors.get(given["run_id"]), {}
        for step, metrics in by_step.items():
            of_run[step] = {key: value for key, value in metrics.items() if not key.startswith(NOT_OF_THE_RUN)}
        if monitor is None and self.newcomer is not None and any(of_run.values()):
            monitor = self.newcomer(given["self"], given["run_id"])
        if monitor is not None:
            for step, metrics in sorted(of_run.items()):
                if metrics:
                    hear(monitor, metrics, _unless_none_was_given(step, monitor))

    def _ended(self, given: Mapping[str, Any]) -> None:
        if monitor := self._monitors.get(given["run_id"]):
            monitor.close()


def _unless_none_was_given(step: int, monitor: Monitor) -> int | None:
    """To MLflow a call without a step is one of step 0: it is taken for that where the run is past it."""
    past = monitor.step is not None and (monitor.step > 0 or monitor.observed)
    return None if step == 0 and past else step


MLFLOW = MlflowEars()


def on_trackio(run: Any, monitor: Monitor, upcoming: Callable[[], int]) -> None:
    """Hear `Run.log`, which `trackio.log` calls too."""

    def heard(given: Mapping[str, Any]) -> None:
        if not writing_of_ours():
            step = given.get("step")
            said = step is None and monitor.tensors_say_step
            hear(monitor, given["metrics"], upcoming() if step is None and not said else step)

    own = Unlocked(monitor.record)
    monitor.at_close(before(run, "log", ("metrics", "step"), heard, own))
    monitor.at_close(before(run, "finish", (), lambda _: monitor.close(), own))


def on_writer(writer: Any, monitor: Monitor) -> None:
    """Hear a `SummaryWriter`."""

    def one(given: Mapping[str, Any]) -> None:
        hear(monitor, {given["tag"]: given["scalar_value"]}, given.get("global_step"))

    def several(given: Mapping[str, Any]) -> None:
        metrics = {f"{given['main_tag']}/{tag}": value for tag, value in given["tag_scalar_dict"].items()}
        hear(monitor, metrics, given.get("global_step"))

    own = Unlocked(monitor.record)
    monitor.at_close(before(writer, "add_scalar", ("tag", "scalar_value", "global_step"), one, own))
    monitor.at_close(before(writer, "add_scalars", ("main_tag", "tag_scalar_dict", "global_step"), several, own))
    monitor.at_close(before(writer, "close", (), lambda _: monitor.close(), own))


def on_logger(target: Any, monitor: Monitor) -> None:
    """Hear any object with `log(data, step)` or `log_metrics(metrics, step)`, as far as it takes attributes."""
    for name, ear in _ears(target):
        call = getattr(target, name)
        monitor.at_close(replace(target, name, call, ear(call, monitor)))


def _ears(target: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    if not hasattr(target, "__dict__") or inspect.isclass(target) or inspect.isroutine(target):
        return
    for names, ear in ((LOGGING, heard), (ENDING, ended)):
        for name in names:
            # One that answers to any name has none of these.
            if callable(inspect.getattr_static(target, name, None)):
                yield name, ear


def heard(call: Callable[..., Any], monitor: Monitor) -> Callable[..., Any]:
    """`call`, of metrics and a step, with the monitor told first: what it writes of a step comes before this."""

    @wraps(call)
    def log(*args: Any, **kwargs: Any) -> Any:
        if not writing_of_ours():
            with monitor.guard("internal_errors"):
                signature = inspect.signature(call)
                given = signature.bind(*args, **kwargs).arguments
                given |= given.pop("kwargs", {})
                step = next((given[name] for name in STEPS if given.get(name) is not None), None)
                monitor.log(given[next(iter(signature.parameters))], step)
        return call(*args, **kwargs)

    return log


def ended(call: Callable[..., Any], monitor: Monitor) -> Callable[..., Any]:
    """`call`, which ends the tracker, with the diagnostics ended first."""

    @wraps(call)
    def end(*args: Any, **kwargs: Any) -> Any:
        monitor.close()
        return call(*args, **kwargs)

    return end


def is_heard(call: object) -> bool:
    """Whether a hook of ours is on `call` already."""
    return isinstance(call, OnObject)
