"""MLflow: every `MlflowClient` is heard, as the module's functions and autologging use one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracker_diag.health import Health
from tracker_diag.hooks import Unlocked, after, before
from tracker_diag.trackers.tracker import Listener, Off, writing_of_ours

SYSTEM = "system/"
"""Of the machine: MLflow samples these by the clock and counts the samples, so their steps are not the run's."""


class Ears:
    """The hooks on `MlflowClient`, which are there while there is a listener."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._begun: list[Callable[[Any, str], None]] = []
        """Called for a run that has no listener, with a client and the run's id."""
        self._off: list[Off] = []

    def listen(self, run_id: str, listener: Listener) -> Off:
        """Hear what is logged to `run_id`, and its end."""
        off = self._open(lambda: self._listeners.get(run_id) is listener and self._listeners.pop(run_id))
        self._listeners[run_id] = listener
        return off

    def watch(self, begun: Callable[[Any, str], None]) -> Off:
        """Have `begun` called before what is logged to a run without a listener is heard."""
        off = self._open(lambda: self._begun.remove(begun))
        self._begun.append(begun)
        return off

    def _open(self, forget: Callable[[], object]) -> Off:
        from mlflow import MlflowClient

        if not self._off:
            own = Unlocked(Health().record)  # for several runs at once; each listener counts its own failures itself
            metric, batch = ("run_id", "key", "value", "step"), ("run_id", "metrics")
            self._off = [
                after(MlflowClient, "log_metric", metric, self._metric, own),
                after(MlflowClient, "log_batch", batch, self._batch, own),
                before(MlflowClient, "set_terminated", ("run_id",), self._ended, own),
            ]

        def off() -> None:
            forget()
            if not self._listeners and not self._begun:
                while self._off:
                    self._off.pop()()

        return off

    def _metric(self, _: Any, given: Mapping[str, Any]) -> None:
        self._hear(given, [(given.get("step") or 0, given["key"], given["value"])])

    def _batch(self, _: Any, given: Mapping[str, Any]) -> None:
        self._hear(given, [(metric.step, metric.key, metric.value) for metric in given.get("metrics", ())])

    def _hear(self, given: Mapping[str, Any], metrics: Sequence[tuple[int, str, float]]) -> None:
        if writing_of_ours():
            return
        by_step: dict[int, dict[str, float]] = {}
        for step, key, value in metrics:
            if not key.startswith(SYSTEM):
                by_step.setdefault(step, {})[key] = value
        run_id = given["run_id"]
        if run_id not in self._listeners and by_step:
            for begun in tuple(self._begun):
                begun(given["self"], run_id)
        if listener := self._listeners.get(run_id):
            for step, of_step in sorted(by_step.items()):
                listener.hear(of_step, step or None, None)  # to MLflow a call without a step is one of step 0

    def _ended(self, given: Mapping[str, Any]) -> None:
        if listener := self._listeners.get(given["run_id"]):
            listener.end()


EARS = Ears()
