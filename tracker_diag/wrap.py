"""wrap: the tracker that you use already, with `.diag` added and every call of yours left as it is."""

from collections.abc import Sequence
from typing import Any

from tracker_diag.backends.base import Backend
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import DiagError
from tracker_diag.monitor import Monitor
from tracker_diag.reduce import Ranks
from tracker_diag.rules.model import Rule


class Wrapped:
    """Stands in for the wrapped tracker: everything it can do, plus `diag`, a `Monitor`."""

    diag: Monitor

    def __init__(self, target: Any, monitor: Monitor) -> None:
        self.__dict__.update(_target=target, diag=monitor)

    def __getattr__(self, name: str) -> Any:
        if name == "_target":  # a copy in the making, which has none yet
            raise AttributeError(name)
        return getattr(self._target, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target, name, value)

    def __repr__(self) -> str:
        return f"tracker_diag.wrap({self._target!r})"


def wrap(
    target: Any,
    *,
    run_id: str | None = None,
    also: Sequence[Backend] = (),
    rules: Sequence[Rule] | None = None,
    window: int = 8,
    settings: GrowthSettings | None = None,
    clip: tuple[float, float] = (0.2, 0.2),
    ranks: Ranks | None = None,
) -> Any:
    """Wrap the tracker that the training loop logs to.

    Args:
        target: a `wandb.Run`, the `mlflow` module or an `mlflow.ActiveRun`, or an `MlflowClient`
            together with `run_id`. The run must be underway; it is never started or ended here.
        also: further backends that get the same records.
        rules, window, settings, clip, ranks: see `Monitor`.

    Returns:
        An object that takes the same calls as `target`, with `diag.observe(...)` added. The step of
        your next `log` is the step that an observation belongs to.

    Raises:
        DiagError: if `target` is none of these, or has no run that is underway.
    """

    def monitor(backend: Backend) -> Monitor:
        return Monitor((backend, *also), rules=rules, window=window, settings=settings, clip=clip, ranks=ranks)

    kind = type(target)
    home = kind.__module__.partition(".")[0]
    if home == "wandb" and kind.__name__ == "Run":
        from tracker_diag.backends.wandb import WandbBackend

        return _WandbRun(target, monitor(WandbBackend(target)))
    if home == "mlflow" or getattr(target, "__name__", "") == "mlflow":
        import mlflow

        from tracker_diag.backends.mlflow import MlflowBackend

        if target is mlflow:
            active = mlflow.active_run()
            if active is None:
                raise DiagError("mlflow: no active run, expected one; call mlflow.start_run() before wrap(mlflow)")
            backend = MlflowBackend(mlflow.MlflowClient(), active.info.run_id)
            return _MlflowModule(target, monitor(backend), active.info.run_id)
        if isinstance(target, mlflow.ActiveRun):
            return _MlflowRun(
                target, monitor(MlflowBackend(mlflow.MlflowClient(), target.info.run_id)), target.info.run_id
            )
        if isinstance(target, mlflow.MlflowClient):
            if run_id is None:
                raise DiagError("run_id: nothing given, expected the id of the run that the client logs to")
            return _MlflowClient(target, monitor(MlflowBackend(target, run_id)), run_id)
    raise DiagError(
        f"target: {kind.__module__}.{kind.__qualname__} given, expected a wandb Run, the mlflow module, "
        "an mlflow ActiveRun, or an MlflowClient with run_id"
    )


class _ContextManaged(Wrapped):
    """A run that is a context manager, which ends it: the diagnostics are to be written before."""

    def __enter__(self) -> "_ContextManaged":
        self._target.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        self.diag.close()
        return self._target.__exit__(*error)


class _WandbRun(_ContextManaged):
    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        """`Run.log`, unchanged; the diagnostics go into the same row, before it is committed."""
        commits = step is None if commit is None else commit
        self.diag.log(data, self._row() if step is None else step, last=commits)
        self._target.log(data, step=step, commit=commit)

    def _row(self) -> int | None:
        """The step of the row that the next log goes into; None in shared mode, where W&B has none."""
        try:
            step: int = self._target.step
        except Exception:  # noqa: BLE001  # whatever it is, your own log is to say it, not we
            return None
        return step

    def finish(self, *args: Any, **kwargs: Any) -> None:
        self.diag.close()
        self._target.finish(*args, **kwargs)


class _Mlflow(Wrapped):
    def __init__(self, target: Any, monitor: Monitor, run_id: str) -> None:
        super().__init__(target, monitor)
        self.__dict__["_run_id"] = run_id

    def _tell(self, metrics: dict[str, Any], step: int | None) -> None:
        """What MLflow takes without a step belongs to the step that is underway."""
        if step is None and not self.diag.observed:
            step = self.diag.step or 0
        self.diag.log(metrics, step)


class _MlflowModule(_Mlflow):
    def log_metric(self, key: str, value: float, step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """`mlflow.log_metric`, unchanged."""
        done = self._target.log_metric(key, value, step, *args, **kwargs)
        self._hear({key: value}, step, kwargs)
        return done

    def log_metrics(self, metrics: dict[str, float], step: int | None = None, *args: Any, **kwargs: Any) -> Any:
        """`mlflow.log_metrics`, unchanged."""
        done = self._target.log_metrics(metrics, step, *args, **kwargs)
        self._hear(metrics, step, kwargs)
        return done

    def end_run(self, *args: Any, **kwargs: Any) -> None:
        if self._is_ours(None):
            self.diag.close()
        self._target.end_run(*args, **kwargs)

    def _hear(self, metrics: dict[str, float], step: int | None, kwargs: dict[str, Any]) -> None:
        if self._is_ours(kwargs.get("run_id")):
            self._tell(metrics, step)

    def _is_ours(self, run_id: str | None) -> bool:
        """Whether a call goes to our run, and not to one that is nested in it, say."""
        if run_id is None:
            active = self._target.active_run()
            run_id = active.info.run_id if active else None
        return bool(run_id == self._run_id)


class _MlflowRun(_Mlflow, _ContextManaged):
    """An active run has no methods to log with; it gets those of the module, for itself."""

    def log_metric(self, key: str, value: float, step: int | None = None) -> None:
        self.log_metrics({key: value}, step)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        import mlflow

        mlflow.log_metrics(metrics, step, run_id=self._run_id)
        self._tell(metrics, step)


class _MlflowClient(_Mlflow):
    def log_metric(self, run_id: str, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """`MlflowClient.log_metric`, unchanged."""
        done = self._target.log_metric(run_id, key, value, *args, **kwargs)
        if run_id == self._run_id:
            self._tell({key: value}, kwargs.get("step", args[1] if len(args) > 1 else None))
        return done

    def log_batch(self, run_id: str, metrics: Sequence[Any] = (), *args: Any, **kwargs: Any) -> Any:
        """`MlflowClient.log_batch`, unchanged."""
        done = self._target.log_batch(run_id, metrics, *args, **kwargs)
        if run_id == self._run_id:
            for step in sorted({metric.step for metric in metrics}):
                self.diag.log({metric.key: metric.value for metric in metrics if metric.step == step}, step)
        return done

    def set_terminated(self, run_id: str, *args: Any, **kwargs: Any) -> None:
        if run_id == self._run_id:
            self.diag.close()
        self._target.set_terminated(run_id, *args, **kwargs)
