"""wrap: the tracker that you use already, with `.diag` added and every call of yours left as it is."""

from collections.abc import Mapping, Sequence
from inspect import getattr_static, isroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

from rich.text import Text

from tracker_diag.attach.kit import dotted
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import DiagError, disabled
from tracker_diag.guards.policy import Guarded
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.report.console import announce, unbroken
from tracker_diag.rules.earlier import Earlier
from tracker_diag.rules.loader import Own
from tracker_diag.runs.postmortem.live import leave_one
from tracker_diag.tensors.decode import Decode
from tracker_diag.tensors.ranks import Ranks
from tracker_diag.trackers.calls import CallTracker, heard, is_function, listen_to
from tracker_diag.trackers.discovery import broken, that_can, tracker_of
from tracker_diag.trackers.fan_out import BeforeSend
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.notify import from_environment
from tracker_diag.trackers.open import read_run
from tracker_diag.trackers.tracker import Address, Listener, Tracker, asked

if TYPE_CHECKING:
    from typing_extensions import Unpack

Config: TypeAlias = Mapping[str, object]
Baseline: TypeAlias = str | FinishedRun | Sequence[str | FinishedRun]
Key: TypeAlias = tuple[str, object]

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
    evaluation: str
    essential_tools: Sequence[str]
    texts: bool
    decode: "Decode | None"
    guards: "Guarded"
    before_send: "BeforeSend | None"


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
        target: a `wandb.Run`, the `mlflow` module, an `mlflow.ActiveRun`, or an `MlflowClient` together with `run_id`;
            a `SummaryWriter` of torch or tensorboardX; the module or a run of another tracker that is installed; a
            logger of Lightning or a tracker of accelerate; any object with `log(data, step)` or `log_metrics(metrics,
            step)`; any function of metrics and step. The run must be underway. It is never started or ended here.
        also: further trackers that get the same records, and a `Notifier` that tells people; if the environment
            variable TRACKER_DIAG_NOTIFY holds URLs, there is one without it.
        config: settings of the run by dotted name, in addition to those that the tracker knows. `seed`, `data_splits`
            and `evaluation_command` complete the context record.
        baseline: runs of the same setting that went well, each as `read_run` takes or gives it, such as
            `mlflow:<run id>`: growth beyond their tails counts from the first step on.
        settings: `rules`, `catalog`, `window`, `settings`, `clip`, `ranks`, `algorithm`, `evaluation`,
            `essential_tools`, `texts`, `decode`, `guards` and `before_send`, see `Monitor`.

    Returns:
        `target` itself, with `diag`, a `Monitor`; in place of a function another one that calls it. An observation
            belongs to the step of your next `log`, whether you log through `target` or a framework does. A
        run that is wrapped already has the same `diag`. A module or a client can serve several runs; its `diag` is that
        of the run that was wrapped last and is underway. `diag.close()` releases the tracker.

    Raises:
        DiagError: if `target` is none of these, has no run underway, takes no attribute, or has a `diag` of its own.
            Also if a run of `baseline` cannot be read, or has nothing to judge by.
    """
    if disabled():
        return _unwatched(target)
    given = {"run_id": run_id, "also": also, "config": config, "baseline": baseline, **settings}
    earlier = read_baseline(baseline)
    place = _place_of(target, run_id)
    monitor = _underway.get(key_of(place.tracker))
    if monitor is None:
        if not place.function and not hasattr(target, "__dict__"):
            raise DiagError(
                f"target: {_kind(target)} with slots given, expected an object that takes the attribute `diag`; "
                "wrap the function that logs, as in wrap(target.log)"
            )
        monitor = begin(place.tracker, earlier, logger=place.logger, also=also, config=config, **settings)
    elif names := [name for name, value in given.items() if value and name != "run_id"]:
        raise DiagError(f"target: wrapped already, and {', '.join(names)} given; give all to the first wrap")
    return _with_diag(target, monitor, function=place.function)


class _Unwatched:
    """A target that takes no `diag`, with one that does nothing."""

    def __init__(self, target: Any) -> None:
        self._target, self.diag = target, Monitor()

    def __getattr__(self, name: str) -> Any:
        if "_target" not in vars(self):  # a copy that is being made
            raise AttributeError(name)
        return getattr(self._target, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target(*args, **kwargs)


def _unwatched(target: Any) -> Any:
    """`target` as it is, with a `diag` that does nothing; nothing of it is asked for."""
    attributes: Any = getattr(target, "__dict__", None)
    takes = isinstance(attributes, dict) and not isroutine(target)
    return target if takes and isinstance(attributes.setdefault("diag", Monitor()), Monitor) else _Unwatched(target)


_underway: dict[Key, Monitor] = {}
"""The monitors that are not closed, by the run that they watch: one that is wrapped twice has one."""


def key_of(tracker: Tracker) -> Key:
    """What makes two trackers those of one run; a tracker that does not say it is of a run of its own."""
    return asked(tracker, "key", (tracker.name, id(tracker)))


def begin(
    tracker: Tracker,
    earlier: Sequence[FinishedRun],
    *,
    logger: object = None,
    also: Sequence[Tracker] = (),
    config: Config | None = None,
    **settings: "Unpack[Settings]",
) -> Monitor:
    """The monitor of the run that `tracker` writes to: the one that it has, else a new one.

    Args:
        logger: what is around the tracker and is logged to in its place.
    """
    key = key_of(tracker)
    if key in _underway:
        return _underway[key]
    people = from_environment(asked(tracker, "address", Address()).get("run"))
    nothing: Config = {}
    known = dotted(asked(tracker, "config", nothing)) | dotted(config or nothing)
    monitor = Monitor((tracker, *also, *people), config=known, baseline=earlier, **settings)
    _underway[key] = monitor
    monitor.at_close(lambda: _underway.pop(key))
    for error in broken():
        monitor.record("tracker_errors", error)
    leave_one(monitor)
    try:
        listener = listener_of(monitor)
        monitor.at_close(tracker.listen(listener) if logger is None else listen_to(logger, listener))
    except DiagError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever another package's tracker raises
        monitor.record("tracker_errors", error)
    if page := asked(tracker, "page", ""):
        announce(unbroken(Text.assemble(("tracker_diag: ", "dim"), "watching this run; see it with  ", page)))
    return monitor


def listener_of(monitor: Monitor) -> Listener:
    """Gives the monitor what was logged."""

    def hear(metrics: Mapping[str, object], step: Any, row: int | None) -> None:
        if step is None and not monitor.tensors_say_step:
            step = row
        if step is None and not monitor.observed:  # it belongs to the step that is underway
            step = monitor.step or 0
        log(metrics, step)

    def log(metrics: Mapping[str, object], step: Any) -> None:
        with monitor.guard("internal_errors"):
            monitor.log(metrics, step)

    return Listener(hear, log, monitor.close, monitor.record)


def read_baseline(given: Baseline) -> tuple[FinishedRun, ...]:
    """The runs that `given` names.

    Raises:
        DiagError: one of them cannot be read, or holds nothing to judge by.
    """
    several = (given,) if isinstance(given, str | FinishedRun) else given
    runs = tuple(read_run(run) if isinstance(run, str) else run for run in several)
    Earlier(runs)
    return runs


class _Place(NamedTuple):
    tracker: Tracker
    logger: object = None
    """The target, where that is but a logger around the tracker."""
    function: bool = False
    """Whether the target is called itself: nothing on it can be heard, so another function takes its place."""


def _place_of(target: Any, run_id: str | None) -> _Place:
    if target is None:
        raise DiagError("target: None given, expected a run; begin it first, by wandb.init() or mlflow.start_run()")
    diag = getattr_static(target, "diag", None)
    if diag is not None and not isinstance(diag, Monitor):
        raise DiagError(
            f"target: {_kind(target)} with a `diag` of its own given, expected none, as ours would hide it; "
            "rename it, or wrap the function that logs, as in wrap(target.log)"
        )
    if tracker := tracker_of(target, run_id=run_id):
        return _Place(tracker)
    if {base.__module__.partition(".")[0] for base in type(target).__mro__} & FRAMEWORKS:
        inner = getattr(target, "experiment", None) or getattr(target, "tracker", None)
        if inner is not None and (tracker := tracker_of(inner, run_id=getattr(target, "run_id", None))):
            return _Place(tracker, target)
    if tracker := CallTracker.find(target):
        return _Place(tracker, function=is_function(target))
    trackers = ", ".join(that_can("listen"))
    left_out = "".join(f"\n{error}" for error in broken())
    raise DiagError(
        f"target: {_kind(target)} given, expected a run, module or writer of {trackers}; a logger of Lightning; a "
        "tracker of accelerate; or anything with log(data, step), log_metrics(metrics, step) or a call of "
        f"(metrics, step){left_out}"
    )


def _with_diag(target: Any, monitor: Monitor, *, function: bool) -> Any:
    if getattr_static(target, "diag", None) is monitor:
        return target
    if function:
        target = heard(target, listener_of(monitor))
        key = CallTracker(target).key
        _underway[key] = monitor
        monitor.at_close(lambda: _underway.pop(key) and target)  # which keeps it, and so its id
    # Not by setattr: a run of W&B refuses names that it does not know, and a frozen object refuses all.
    attributes: dict[str, Any] = vars(target)
    outer = attributes.get("diag")
    attributes["diag"] = monitor

    def give_back() -> None:
        if outer in _underway.values():
            attributes["diag"] = outer

    monitor.at_close(give_back)
    return target


def _kind(target: object) -> str:
    return f"{type(target).__module__}.{type(target).__qualname__}"
