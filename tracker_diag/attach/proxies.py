"""Proxies: a tracker with `.diag` added, whose logging calls are heard and forwarded as they are.

They know trackers by their calls alone; what a tracker has to do with one, `wrap` hands in.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import wrapt

from tracker_diag.attach import ears
from tracker_diag.monitor.monitor import Monitor

if TYPE_CHECKING:
    Proxy = wrapt.AutoObjectProxy[Any]
else:  # generic for type checkers alone, in the oldest version that is enough
    Proxy = wrapt.AutoObjectProxy


class Wrapped(Proxy):
    """Stands in for the wrapped tracker: everything it can do, plus `diag`, a `Monitor`.

    It passes for the tracker where a library asks `isinstance`, and a copy of it is itself: a run cannot be copied.
    What is the proxy's own is called `_self_...`, so that it hides nothing of the tracker's.
    """

    def __new__(cls, target: Any, *args: Any, **kwargs: Any) -> "Wrapped":  # noqa: ARG004
        return super().__new__(cls, target)

    def __init__(self, target: Any, monitor: Monitor) -> None:
        super().__init__(target)
        self._self_monitor = monitor

    @property
    def diag(self) -> Monitor:
        return self._self_monitor

    def __setattr__(self, name: str, value: Any) -> None:
        # Of our methods, too, the tracker's are meant: a `log` that you put there is called, and still heard.
        if name.startswith("_self_") or name in ("__wrapped__", "diag"):
            super().__setattr__(name, value)
        else:
            setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__wrapped__, name)

    def __enter__(self) -> Any:
        entered = self.__wrapped__.__enter__()
        return self if entered is self.__wrapped__ else entered

    def __exit__(self, *error: Any) -> Any:
        self.diag.close()  # the tracker ends here, and the diagnostics are to be written before
        return self.__wrapped__.__exit__(*error)

    def __copy__(self) -> "Wrapped":
        return self

    def __deepcopy__(self, memo: object) -> "Wrapped":
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled: a run that is underway lives in one process; "
            "wrap the tracker in the process that logs to it"
        )

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __dir__(self) -> Iterable[str]:
        return sorted({*dir(self.__wrapped__), "diag"})


class MlflowRun(Wrapped):
    """An active run has no methods to log with; it gets those of the module, for itself."""

    def log_metric(self, key: str, value: float, step: int | None = None) -> None:
        self.log_metrics({key: value}, step)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        import mlflow

        mlflow.log_metrics(metrics, step, run_id=self.__wrapped__.info.run_id)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), "log_metric", "log_metrics"]


class Logger(Wrapped):
    """Any object with `log(data, step)` or `log_metrics(metrics, step)`, of Lightning, accelerate or your own.

    It hears what is called on it, also where the object itself takes no hooks.
    """

    def __getattr__(self, name: str) -> Any:
        there = super().__getattr__(name)
        if ears.is_heard(there):
            return there
        if name in ears.LOGGING:
            return ears.heard(there, self.diag)
        return ears.ended(there, self.diag) if name in ears.ENDING else there


class CallableLogger(Logger):
    """The same, of an object that is called with metrics and step itself, such as a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The target itself, unchanged."""
        return ears.heard(self.__wrapped__, self.diag)(*args, **kwargs)
