"""Proxies: a tracker with `.diag` added, whose logging calls are heard and forwarded as they are.

They know trackers by their calls alone; what a backend has to do with one, `wrap` hands in.
"""

import atexit
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn

import wrapt

from tracker_diag.monitor import Monitor

LOGGING = ("log", "log_metrics")
ENDING = ("finish", "finalize")
STEPS = ("step", "global_step")


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
        self._self_end()  # the tracker ends here, and the diagnostics are to be written before
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

    def _self_end(self) -> None:
        self.diag.close()

    def _self_hear(self, metrics: Mapping[str, object], step: int | None) -> None:
        """What is logged without a step belongs to the step that is underway."""
        if step is None and not self.diag.observed:
            step = self.diag.step or 0
        self.diag.log(metrics, step)


class WandbRun(Wrapped):
    """A `wandb.Run`; the step of the diagnostics is the number of W&B's row.

    Args:
        row: number of the row that is open; None where W&B has none.
        until_finish: has what it is given called just before the run is finished, by whoever.
        append: writes what still waits for a row of yours.
    """

    def __init__(
        self,
        target: Any,
        monitor: Monitor,
        row: int | None,
        until_finish: Callable[[Callable[[], None]], None],
        append: Callable[[], None],
    ) -> None:
        super().__init__(target, monitor)
        self._self_row, self._self_append = row, append
        # You may finish the run that you wrapped, or leave that to the end of the process.
        until_finish(self._self_end)
        atexit.register(self._self_end)

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """`Run.log`, unchanged."""
        commits = step is None if commit is None else commit
        with self.diag.guard("internal_errors"):  # one thread at a time
            row = self._self_row  # counted here, since asking W&B takes a message to another process
            if row is not None and step is not None:
                row = max(row, step)
            self.diag.log(data, row if step is None else step, last=commits)
            self._self_row = row + commits if row is not None else None
        self.__wrapped__.log(data, step=step, commit=commit)

    def finish(self, *args: Any, **kwargs: Any) -> None:
        self._self_end()
        self.__wrapped__.finish(*args, **kwargs)

    def _self_end(self) -> None:
        """The run ends now: what waited for a row of yours gets rows of its own."""
        atexit.unregister(self._self_end)
        super()._self_end()
        with self.diag.guard("backend_errors"):
            self._self_append()


class _Mlflow(Wrapped):
    def __init__(self, target: Any, monitor: Monitor, run_id: str) -> None:
        super().__init__(target, monitor)
        self._self_run_id = run_id


class MlflowModule(_Mlflow):
    """The `mlflow` module; calls to other runs than the one that was active are none of ours."""

    def log_metric(self, key: str, value: float, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """`mlflow.log_metric`, unchanged."""
        done = self.__wrapped__.log_metric(key, value, step, *args, **kwargs)
        self._self_hear_ours({key: value}, step, kwargs)
        return done

    def log_metrics(self, metrics: dict[str, float], step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """`mlflow.log_metrics`, unchanged."""
        done = self.__wrapped__.log_metrics(metrics, step, *args, **kwargs)
        self._self_hear_ours(metrics, step, kwargs)
        return done

    def end_run(self, *args: Any, **kwargs: Any) -> None:
        if self._self_is_ours(None):
            self.diag.close()
        self.__wrapped__.end_run(*args, **kwargs)

    def _self_hear_ours(self, metrics: dict[str, float], step: int | None, kwargs: dict[str, Any]) -> None:
        if self._self_is_ours(kwargs.get("run_id")):
            self._self_hear(metrics, step)

    def _self_is_ours(self, run_id: str | None) -> bool:
        """Whether a call goes to our run, and not to one that is nested in it, say."""
        if run_id is None:
            active = self.__wrapped__.active_run()
            run_id = active.info.run_id if active else None
        return bool(run_id == self._self_run_id)


class MlflowRun(_Mlflow):
    """An active run has no methods to log with; it gets those of the module, for itself."""

    def log_metric(self, key: str, value: float, step: int | None = None) -> None:
        self.log_metrics({key: value}, step)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        import mlflow

        mlflow.log_metrics(metrics, step, run_id=self._self_run_id)
        self._self_hear(metrics, step)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), "log_metric", "log_metrics"]


class MlflowClient(_Mlflow):
    """An `mlflow.MlflowClient`; calls for other runs are none of ours."""

    def log_metric(self, run_id: str, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """`MlflowClient.log_metric`, unchanged."""
        done = self.__wrapped__.log_metric(run_id, key, value, *args, **kwargs)
        if run_id == self._self_run_id:
            self._self_hear({key: value}, kwargs.get("step", args[1] if len(args) > 1 else None))
        return done

    def log_batch(self, run_id: str, metrics: Sequence[Any] = (), *args: Any, **kwargs: Any) -> Any:
        """`MlflowClient.log_batch`, unchanged."""
        done = self.__wrapped__.log_batch(run_id, metrics, *args, **kwargs)
        if run_id == self._self_run_id:
            for step in sorted({metric.step for metric in metrics}):
                self.diag.log({metric.key: metric.value for metric in metrics if metric.step == step}, step)
        return done

    def set_terminated(self, run_id: str, *args: Any, **kwargs: Any) -> None:
        if run_id == self._self_run_id:
            self.diag.close()
        self.__wrapped__.set_terminated(run_id, *args, **kwargs)


class SummaryWriter(Wrapped):
    """A `SummaryWriter` of torch or tensorboardX."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None, *args: Any, **kw: Any) -> Any:
        """`SummaryWriter.add_scalar`, unchanged."""
        self._self_hear({tag: scalar_value}, global_step)
        return self.__wrapped__.add_scalar(tag, scalar_value, global_step, *args, **kw)

    def add_scalars(
        self, main_tag: str, tag_scalar_dict: dict[str, Any], global_step: int | None = None, *args: Any, **kw: Any
    ) -> Any:
        """`SummaryWriter.add_scalars`, unchanged."""
        self._self_hear({f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}, global_step)
        return self.__wrapped__.add_scalars(main_tag, tag_scalar_dict, global_step, *args, **kw)

    def close(self) -> None:
        self.diag.close()
        self.__wrapped__.close()


class Logger(Wrapped):
    """Any object with `log(data, step)` or `log_metrics(metrics, step)`, of Lightning, accelerate or your own.

    The diagnostics are told first: what they write of the step before is to come before this one.

    Args:
        upcoming: gives the step that a call without one gets, where the target counts.
    """

    def __init__(self, target: Any, monitor: Monitor, upcoming: Callable[[], int | None] = lambda: None) -> None:
        super().__init__(target, monitor)
        self._self_upcoming = upcoming

    def __getattr__(self, name: str) -> Any:
        there = super().__getattr__(name)
        if name in LOGGING:
            return self._self_heard(there)
        if name in ENDING:
            return self._self_ended(there)
        return there

    def _self_heard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def log(*args: Any, **kwargs: Any) -> Any:
            with self.diag.guard("internal_errors"):
                signature = inspect.signature(call)
                given = signature.bind(*args, **kwargs).arguments
                given |= given.pop("kwargs", {})
                step = next((given[name] for name in STEPS if given.get(name) is not None), None)
                step, last = (step, False) if step is not None else (self._self_upcoming(), True)
                self.diag.log(given[next(iter(signature.parameters))], step, last=last)
            return call(*args, **kwargs)

        return log

    def _self_ended(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def end(*args: Any, **kwargs: Any) -> Any:
            self.diag.close()
            return call(*args, **kwargs)

        return end


class CallableLogger(Logger):
    """The same, of an object that is called with metrics and step itself, such as a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The target itself, unchanged."""
        return self._self_heard(self.__wrapped__)(*args, **kwargs)
