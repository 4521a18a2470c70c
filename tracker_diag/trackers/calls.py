"""Calls: a logger of one's own, any function of metrics and a step, or an object with such a method."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from tracker_diag.hooks import all_off, replace
from tracker_diag.records import Scalar
from tracker_diag.trackers.tracker import Entry, Listener, Off, Tracker, writing_of_ours

LOGGING = ("log", "log_metrics")
ENDING = ("finish", "finalize")
STEPS = ("step", "global_step")


class CallTracker(Tracker):
    """Gives each step's scalars to `call(metrics, step)`, in the training thread: it may bear no other."""

    name = "calls"
    takes = (Scalar,)
    local = True

    def __init__(self, call: Callable[[Mapping[str, float], int], object], logger: object = None) -> None:
        self._call = call
        self._logger = call if logger is None else logger

    @classmethod
    def find(cls, target: object = None, *, run_id: str | None = None) -> Tracker | None:
        """For anything with `log_metrics` or `log`, or that can be called itself; a class can not."""
        calls = (getattr(target, name, None) for name in ("log_metrics", "log", "__call__"))
        call = next((call for call in calls if callable(call)), None)
        return None if call is None or inspect.isclass(target) else cls(call, target)

    @property
    def key(self) -> tuple[str, object]:
        return self.name, id(self._logger)

    def listen(self, listener: Listener | None) -> Off:
        return super().listen(None) if listener is None else listen_to(self._logger, listener)

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        scalars = {entry.name: entry.value for entry in entries if isinstance(entry, Scalar)}
        if scalars:
            self._call(scalars, step)


def is_function(target: object) -> bool:
    """Whether it has no method to log with, and what is called is `target` itself."""
    return inspect.isroutine(target) or not any(callable(getattr(target, name, None)) for name in LOGGING)


def listen_to(logger: Any, listener: Listener) -> Off:
    """Have the methods of `logger` heard by which it is logged to and ended."""
    if not hasattr(logger, "__dict__") or inspect.isclass(logger) or inspect.isroutine(logger):
        return all_off()
    ears = {name: heard for name in LOGGING if callable(getattr(logger, name, None))}
    # A logger that answers to any name has none of these.
    ears |= {name: _ended for name in ENDING if callable(inspect.getattr_static(logger, name, None))}
    calls = {name: getattr(logger, name) for name in ears}
    return all_off(*(replace(logger, name, call, ears[name](call, listener)) for name, call in calls.items()))


def heard(call: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
    """`call`, of metrics and a step, heard first: what we write of a step comes before this."""

    @wraps(call)
    def log(*args: Any, **kwargs: Any) -> Any:
        if not writing_of_ours():
            try:
                signature = inspect.signature(call)
                given = signature.bind(*args, **kwargs).arguments
                given |= given.pop("kwargs", {})
                step = next((given[name] for name in STEPS if given.get(name) is not None), None)
                listener.log(given[next(iter(signature.parameters))], step)
            except Exception as error:  # noqa: BLE001  # such as wrong arguments, which the call itself reports
                listener.record("internal_errors", error)
        return call(*args, **kwargs)

    return log


def _ended(call: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
    """`call`, which ends the logger, with the diagnostics ended first."""

    @wraps(call)
    def end(*args: Any, **kwargs: Any) -> Any:
        listener.end()
        return call(*args, **kwargs)

    return end
