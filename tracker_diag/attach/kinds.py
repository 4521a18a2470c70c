"""What `wrap` gives, as type checkers and editors see it: the class of your tracker, with `diag` added.

There are no intersections of types in Python, so there is a class for each tracker that we know; at run time none of
them exists. What comes in is told by one method of its own and not by its class: of a library that is not
installed no class is known, and anything would pass for it.
"""

from typing import TYPE_CHECKING, Any, Protocol

from tracker_diag.monitor.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import mlflow
    import wandb
    from torch.utils.tensorboard import SummaryWriter
    from trackio.run import Run

    class HasDiag(Protocol):
        """What is wrapped already, and a logger of your own whose class declares `diag: td.Monitor`."""

        diag: Monitor

    class IsWandbRun(Protocol):
        """Told by what no other tracker has."""

        @property
        def define_metric(self) -> Callable[..., object]: ...

    class WandbRun(wandb.Run):
        """A run of W&B, and its `Monitor`."""

        diag: Monitor

        def __enter__(self) -> "WandbRun": ...

    class IsMlflow(Protocol):
        """The module alone starts runs."""

        @property
        def start_run(self) -> Callable[..., object]: ...

    class Mlflow(ModuleType):
        """The functions of the module that a training loop calls; of any other only the name is not known."""

        diag: Monitor
        active_run = staticmethod(mlflow.active_run)
        end_run = staticmethod(mlflow.end_run)
        log_artifact = staticmethod(mlflow.log_artifact)
        log_artifacts = staticmethod(mlflow.log_artifacts)
        log_dict = staticmethod(mlflow.log_dict)
        log_figure = staticmethod(mlflow.log_figure)
        log_image = staticmethod(mlflow.log_image)
        log_input = staticmethod(mlflow.log_input)
        log_metric = staticmethod(mlflow.log_metric)
        log_metrics = staticmethod(mlflow.log_metrics)
        log_param = staticmethod(mlflow.log_param)
        log_params = staticmethod(mlflow.log_params)
        log_table = staticmethod(mlflow.log_table)
        log_text = staticmethod(mlflow.log_text)
        set_tag = staticmethod(mlflow.set_tag)
        set_tags = staticmethod(mlflow.set_tags)
        start_run = staticmethod(mlflow.start_run)

    class IsMlflowRun(Protocol):
        """A run of MLflow has it, as all entities have."""

        @property
        def to_dictionary(self) -> Callable[..., object]: ...

    class MlflowRun(mlflow.ActiveRun):
        """An active run of MLflow, which can log here, and its `Monitor`."""

        diag: Monitor

        def log_metric(self, key: str, value: float, step: int | None = None) -> None: ...
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None: ...

    class IsMlflowClient(Protocol):
        """A client alone ends runs that are not its own."""

        @property
        def set_terminated(self) -> Callable[..., object]: ...

    class MlflowClient(mlflow.MlflowClient):
        """A client of MLflow, and the `Monitor` of one run."""

        diag: Monitor

    class IsTrackioRun(Protocol):
        """Told by what no other tracker has."""

        @property
        def log_system(self) -> Callable[..., object]: ...

    class TrackioRun(Run):
        """A run of Trackio, and its `Monitor`."""

        diag: Monitor

    class IsWriter(Protocol):
        """A writer of torch or tensorboardX."""

        @property
        def add_scalar(self) -> Callable[..., object]: ...

    class Writer(SummaryWriter):
        """A writer for TensorBoard, and its `Monitor`."""

        diag: Monitor

        def __enter__(self) -> "Writer": ...

    class Wrapped(Any):
        """Any other logger: what it can do besides `diag` is not known, and nothing is an error."""

        diag: Monitor
