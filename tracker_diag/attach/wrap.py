"""wrap: the tracker that you use already, with `.diag` added and every call of yours left as it is."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tracker_diag.attach import proxies
from tracker_diag.backends.base import Backend
from tracker_diag.backends.calls import CallBackend
from tracker_diag.backends.discovery import backend_of
from tracker_diag.backends.notify import NOTIFY, Notifier
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import DiagError
from tracker_diag.monitor import Monitor
from tracker_diag.rules.loader import Own
from tracker_diag.rules.nodes import Algorithm
from tracker_diag.tensors.ranks import Ranks

EXPECTED = (
    "a wandb Run, the mlflow module, an mlflow ActiveRun, an MlflowClient with run_id, trackio or its Run, a "
    "SummaryWriter, a logger of Lightning, a tracker of accelerate, or anything with log(data, step), "
    "log_metrics(metrics, step) or a call of (metrics, step)"
)

Config: TypeAlias = Mapping[str, object]
Found: TypeAlias = tuple[Backend, Callable[[Monitor], Any], Config]
"""Where the diagnostics go, what stands in for the tracker, and what it knows of the run's settings."""


def wrap(
    target: Any,
    *,
    run_id: str | None = None,
    also: Sequence[Backend] = (),
    rules: Own = (),
    catalog: bool = True,
    window: int = 8,
    settings: GrowthSettings | None = None,
    clip: tuple[float, float] = (0.2, 0.2),
    ranks: Ranks | None = None,
    config: Config | None = None,
    algorithm: Algorithm | None = None,
) -> Any:
    """Wrap the tracker that the training loop logs to.

    Args:
        target: a `wandb.Run`, the `mlflow` module, an `mlflow.ActiveRun`, or an `MlflowClient` together with
            `run_id`; `trackio` or its run; a `SummaryWriter` of torch or tensorboardX; a logger of Lightning or a
            tracker of accelerate; any object with `log(data, step)` or `log_metrics(metrics, step)`, and any
            function of metrics and step. The run must be underway; it is never started or ended here.
        also: further backends that get the same records, and a `Notifier` that tells people; if the environment
            variable TRACKER_DIAG_NOTIFY holds URLs, there is one without it.
        config: settings of the run by dotted name; those that the tracker knows by default.
        rules, catalog, window, settings, clip, ranks, algorithm: see `Monitor`.

    Returns:
        An object that takes the same calls as `target`, with `diag.observe(...)` added. The step of
        your next `log` is the step that an observation belongs to.

    Raises:
        DiagError: if `target` is none of these, or has no run that is underway.
    """
    backend, stand_in, known = _find(target, run_id)
    people = [Notifier(run=backend.address.get("run"))] if os.environ.get(NOTIFY, "").strip() else []
    monitor = Monitor(
        (backend, *also, *people), rules=rules, catalog=catalog, window=window, settings=settings, clip=clip,
        ranks=ranks, config=known if config is None else config, algorithm=algorithm,
    )  # fmt: skip
    return stand_in(monitor)


def _find(target: Any, run_id: str | None) -> Found:
    homes = {base.__module__.partition(".")[0] for base in type(target).__mro__}
    home = "mlflow" if getattr(target, "__name__", "") == "mlflow" else getattr(target, "__name__", "")
    if "wandb" in homes and type(target).__name__ == "Run":
        return _wandb(target)
    if home == "mlflow" or (homes & {"mlflow"} and type(target).__name__ in ("ActiveRun", "MlflowClient")):
        return _mlflow(target, run_id)
    if home == "trackio" or "trackio" in homes:
        return _trackio(target)
    if type(target).__name__ == "SummaryWriter":
        return _tensorboard(target)
    return _other(target, homes)


def _other(target: Any, homes: set[str]) -> Found:
    """A logger around a tracker that we know, a tracker of another package, or anything that takes metrics."""
    inner = getattr(target, "experiment", None) or getattr(target, "tracker", None)
    frameworks = {"lightning", "pytorch_lightning", "lightning_fabric", "accelerate"}
    backend = backend_of(target)
    config: Config = {}
    if homes & frameworks and type(inner).__name__ in ("Run", "ActiveRun", "MlflowClient", "SummaryWriter"):
        backend, _, config = _find(inner, getattr(target, "run_id", None))
    if backend is None and not isinstance(target, type):
        calls = (getattr(target, name, None) for name in ("log_metrics", "log", "__call__"))
        backend = next((CallBackend(call) for call in calls if callable(call)), None)
    if backend is None:
        raise DiagError(f"target: {type(target).__module__}.{type(target).__qualname__} given, expected {EXPECTED}")
    return backend, lambda monitor: proxies.Logger(target, monitor), config


def _wandb(run: Any) -> Found:
    from tracker_diag.backends.wandb import WandbBackend, row_of

    row, backend = row_of(run), WandbBackend(run, goes_on=True)
    settings = dotted(run.config.as_dict())
    return backend, lambda monitor: proxies.WandbRun(run, monitor, row, backend), settings


def _mlflow(target: Any, run_id: str | None) -> Found:
    import mlflow

    from tracker_diag.backends.mlflow import MlflowBackend

    client = mlflow.MlflowClient()
    proxy: Callable[[Any, Monitor, str], Any] = proxies.MlflowModule
    if target is mlflow:
        active = mlflow.active_run()
        if active is None:
            raise DiagError("mlflow: no active run, expected one; call mlflow.start_run() before wrap(mlflow)")
        run_id = active.info.run_id
    elif isinstance(target, mlflow.ActiveRun):
        run_id, proxy = target.info.run_id, proxies.MlflowRun
    else:
        if run_id is None:
            raise DiagError("run_id: nothing given, expected the id of the run that the client logs to")
        client, proxy = target, proxies.MlflowClient
    known = str(run_id)
    backend = MlflowBackend(client, known)
    return backend, lambda monitor: proxy(target, monitor, known), dict(client.get_run(known).data.params)


def _trackio(target: Any) -> Found:
    from tracker_diag.backends.trackio import TrackioBackend

    backend = TrackioBackend.of(target)
    return backend, lambda monitor: proxies.Logger(target, monitor, backend.next_step), dotted(backend.config)


def _tensorboard(writer: Any) -> Found:
    from tracker_diag.backends.tensorboard import TensorBoardBackend

    folder = getattr(writer, "log_dir", None) or writer.logdir
    return TensorBoardBackend(folder), lambda monitor: proxies.SummaryWriter(writer, monitor), {}


def dotted(config: Config, prefix: str = "") -> dict[str, object]:
    """Nested settings by dotted name."""
    flat: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
