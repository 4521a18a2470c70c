"""wrap: the tracker that you use already, with `.diag` added and every call of yours left as it is."""

from collections.abc import Mapping, Sequence
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, overload

from rich.text import Text

from tracker_diag.attach import ears, proxies
from tracker_diag.attach.kit import dotted
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import DiagError
from tracker_diag.guards.listener import OnIncident
from tracker_diag.guards.policy import Guarded
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.report.console import say, unbroken
from tracker_diag.rules.earlier import Earlier
from tracker_diag.rules.loader import Own
from tracker_diag.runs.postmortem.live import leave_one
from tracker_diag.tensors.decode import Decode
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.trackers.calls import CallTracker
from tracker_diag.trackers.discovery import tracker_of
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.notify import from_environment
from tracker_diag.trackers.open import read_run
from tracker_diag.trackers.tracker import Tracker, is_a

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tracker_diag.attach import kinds

HasDiagT = TypeVar("HasDiagT", bound="kinds.HasDiag")

EXPECTED = (
    "a wandb Run, the mlflow module, an mlflow ActiveRun, an MlflowClient with run_id, trackio or its Run, a "
    "SummaryWriter, a logger of Lightning, a tracker of accelerate, or anything with log(data, step), "
    "log_metrics(metrics, step) or a call of (metrics, step)"
)

Config: TypeAlias = Mapping[str, object]
Baseline: TypeAlias = str | FinishedRun | Sequence[str | FinishedRun]

FRAMEWORKS = {"lightning", "pytorch_lightning", "lightning_fabric", "accelerate"}
"""Their loggers hold a tracker, as `experiment` or `tracker`."""


class Settings(TypedDict, total=False):
    """What wrap hands on to `Monitor`; see there."""

    rules: "Own"
    catalog: bool
    window: int
    settings: "GrowthSettings | None"
    expected_runs_between_false_alarms: float
    clip: tuple[float, float]
    ranks: "Ranks | None"
    algorithm: "Algorithm | None"
    essential_tools: Sequence[str]
    texts: bool
    decode: "Decode | None"
    guards: "Guarded"
    on_incident: "OnIncident | None"


class Options(Settings, total=False):
    """All that wrap takes besides the tracker."""

    run_id: str | None
    also: Sequence[Tracker]
    config: Config | None
    baseline: "Baseline"


# The last one takes what the others do, and gives less; checkers call that an overlap.
@overload
def wrap(  # type: ignore[overload-overlap]  # pyright: ignore[reportOverlappingOverload]
    target: "HasDiagT", **options: "Unpack[Options]"
) -> "HasDiagT": ...
@overload
def wrap(target: "kinds.IsWandbRun", **options: "Unpack[Options]") -> "kinds.WandbRun": ...
@overload
def wrap(target: "kinds.IsMlflow", **options: "Unpack[Options]") -> "kinds.Mlflow": ...  # type: ignore[overload-overlap]
@overload
def wrap(target: "kinds.IsMlflowRun", **options: "Unpack[Options]") -> "kinds.MlflowRun": ...
@overload
def wrap(target: "kinds.IsMlflowClient", **options: "Unpack[Options]") -> "kinds.MlflowClient": ...
@overload
def wrap(target: "kinds.IsTrackioRun", **options: "Unpack[Options]") -> "kinds.TrackioRun": ...
@overload
def wrap(target: "kinds.IsWriter", **options: "Unpack[Options]") -> "kinds.Writer": ...  # type: ignore[overload-overlap]
@overload
def wrap(target: object, **options: "Unpack[Options]") -> "kinds.Wrapped": ...
def wrap(
    target: Any,
    *,
    run_id: str | None = None,
    also: Sequence[Tracker] = (),
    config: Config | None = None,
    baseline: Baseline = (),
    **settings: "Unpack[Settings]",
) -> Any:
    """Wrap the tracker that the training loop logs to.

    Args:
        target: a `wandb.Run`, the `mlflow` module, an `mlflow.ActiveRun`, or an `MlflowClient` together with
            `run_id`; `trackio` or its run; a `SummaryWriter` of torch or tensorboardX; a logger of Lightning or a
            tracker of accelerate; any object with `log(data, step)` or `log_metrics(metrics, step)`, and any
            function of metrics and step. The run must be underway; it is never started or ended here.
        also: further trackers that get the same records, and a `Notifier` that tells people; if the environment
            variable TRACKER_DIAG_NOTIFY holds URLs, there is one without it.
        config: settings of the run by dotted name, beside those that the tracker knows. `seed`, `data_splits` and
            `evaluation_command` complete the context record.
        baseline: runs of the same setting that went well, each as `read_run` takes or gives it, such as
            `mlflow:<run id>`: growth beyond their tails counts from the first step on.
        settings: `rules`, `catalog`, `window`, `settings`, `clip`, `ranks`, `algorithm`, `essential_tools`, `texts`,
            `decode`, `guards` and `on_incident`, see `Monitor`.

    Returns:
        An object that takes the same calls as `target`, with `diag.observe(...)` added. The step of
        your next `log` is the step that an observation belongs to, whether you log through this object, through
        `target`, or a framework does. What is wrapped already comes back as it is, and a run that is wrapped already
        has the same `diag`. `diag.close()` lets go of the tracker.

    Raises:
        DiagError: if `target` is none of these, has no run that is underway, or has a `diag` of its own; or if a run of
            `baseline` cannot be read, or holds nothing to judge by.
    """
    given = {"run_id": run_id, "also": also, "config": config, "baseline": baseline, **settings}
    if isinstance(target, proxies.Wrapped):
        _nothing_more(given)
        return target
    earlier = read_baseline(baseline)
    tracker, around = _find(target, run_id)
    key = _key(target, tracker)
    if key in _underway:
        _nothing_more(given, but="run_id")
        return _stand_in(target, None if around else tracker, _underway[key])
    people = from_environment(tracker.address.get("run"))
    known = dotted(tracker.config) | dotted(config or {})
    monitor = Monitor((tracker, *also, *people), config=known, baseline=earlier, **settings)
    _underway[key] = monitor
    monitor.at_close(lambda: _underway.pop(key))
    leave_one(monitor)
    _listen(target, None if around else tracker, monitor)
    if page := tracker.page:
        say(unbroken(Text.assemble(("tracker_diag: ", "dim"), "watching this run; see it with  ", page)))
    return _stand_in(target, None if around else tracker, monitor)


Key: TypeAlias = tuple[str, object]

_underway: dict[Key, Monitor] = {}
"""The monitors that are not closed, by what they watch: a run that is wrapped twice has one."""


def _key(target: Any, tracker: Tracker) -> Key:
    """What makes two targets the same run: its id, and else that they are one object, which its hooks keep alive."""
    return (
        (tracker.name, tracker.address["run"]) if tracker.name in ("mlflow", "wandb", "trackio") else ("", id(target))
    )


def underway(tracker: str, run_id: str) -> Monitor | None:
    """The monitor of a run that is wrapped."""
    return _underway.get((tracker, run_id))


def _nothing_more(given: Mapping[str, object], but: str = "") -> None:
    """Raise DiagError if settings are given for a monitor that is there already."""
    if names := [name for name, value in given.items() if value and name != but]:
        raise DiagError(f"target: wrapped already, and {', '.join(names)} given; give all to the first wrap")


def read_baseline(given: Baseline) -> tuple[FinishedRun, ...]:
    """The runs that `given` names.

    Raises:
        DiagError: one of them cannot be read, or holds nothing to judge by.
    """
    several = (given,) if isinstance(given, str | FinishedRun) else given
    found = tuple(read_run(one) if isinstance(one, str) else one for one in several)
    Earlier(found)
    return found


def _find(target: Any, run_id: str | None) -> tuple[Tracker, bool]:
    """Where the diagnostics go, and whether `target` is but a logger around that."""
    if target is None:
        raise DiagError("target: None given, expected a run; begin it first, by wandb.init() or mlflow.start_run()")
    kind = f"{type(target).__module__}.{type(target).__qualname__}"
    if getattr_static(target, "diag", None) is not None:
        raise DiagError(
            f"target: {kind} with a `diag` of its own given, expected none, as ours would hide it; "
            "rename it, or wrap the function that logs, as in wrap(target.log)"
        )
    tracker = tracker_of(target, run_id=run_id)
    if tracker is not None:
        return tracker, False
    inner = _inside(target)
    if isinstance(inner, proxies.Wrapped):
        raise DiagError(f"target: {kind} around a tracker that is wrapped already given, expected one of the two")
    if inner is not None and (tracker := tracker_of(inner, run_id=getattr(target, "run_id", None))) is not None:
        return tracker, True
    calls = (getattr(target, name, None) for name in ("log_metrics", "log", "__call__"))
    call = next((call for call in calls if callable(call)), None)
    if call is None or isinstance(target, type):
        raise DiagError(f"target: {kind} given, expected {EXPECTED}")
    return CallTracker(call), True


def _inside(target: Any) -> Any:
    """The tracker inside a logger of Lightning or a tracker of accelerate; None if it is neither."""
    homes = {base.__module__.partition(".")[0] for base in type(target).__mro__}
    if not homes & FRAMEWORKS:
        return None
    return getattr(target, "experiment", None) or getattr(target, "tracker", None)


def _listen(target: Any, tracker: Tracker | None, monitor: Monitor) -> None:
    """Hear what is logged. Each tracker is logged to in its own way; None is for any other logger."""
    from tracker_diag.trackers.mlflow.write import MlflowTracker
    from tracker_diag.trackers.tensorboard.write import TensorBoardTracker
    from tracker_diag.trackers.trackio.write import TrackioTracker
    from tracker_diag.trackers.wandb.write import WandbTracker

    if isinstance(tracker, WandbTracker):
        ears.on_wandb(tracker, monitor)
    elif isinstance(tracker, MlflowTracker):
        ears.MLFLOW.listen(tracker.run_id, monitor)
    elif isinstance(tracker, TensorBoardTracker):
        ears.on_writer(target, monitor)
    elif isinstance(tracker, TrackioTracker):
        ears.on_trackio(tracker.run, monitor, tracker.next_step)
    else:
        ears.on_logger(target, monitor)


def _stand_in(target: Any, tracker: Tracker | None, monitor: Monitor) -> proxies.Wrapped:
    """What is given in place of `target`."""
    if is_a(target, "mlflow", "ActiveRun"):
        return proxies.MlflowRun(target, monitor)
    if tracker is not None:
        return proxies.Wrapped(target, monitor)
    return (proxies.CallableLogger if callable(target) else proxies.Logger)(target, monitor)
