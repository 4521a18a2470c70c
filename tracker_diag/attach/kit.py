"""What integrations are made of: each package under `integrations/` adds what is peculiar to its framework.

Settings of a run: `dotted`, `plain`, `clip_range`. Trackers that are underway: `add_active`. Ranks: `place_in_job`,
`all_ranks`. State of an earlier process: `resume`; `saved.py` saves it next to checkpoints. A training that is attached
to twice: `watching`, `watch_once`. A framework that may have changed: `attempt`, `Hooks`, `unless_changed`,
`monitor_knowing`, `tell_changed`. A batch as a driver has it: `observe_before_update`, `of_sequences`. A class that
needs the framework: `on_demand`.
"""

import logging
import weakref
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from rich.text import Text

from tracker_diag.errors import DiagError, disabled, require
from tracker_diag.guards.policy import Guarded
from tracker_diag.hooks import HookError
from tracker_diag.metrics.series import CONTEXT, DIMENSIONS, PAIRS, Pair
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.report.console import announce, unbroken
from tracker_diag.runs.postmortem.live import leave_one
from tracker_diag.tensors.ranks import AllReduce, Ranks
from tracker_diag.tensors.suspicions import Reach
from tracker_diag.trackers.discovery import active_trackers, tracker_of
from tracker_diag.trackers.files.write import JsonlTracker, unused_folder
from tracker_diag.trackers.keys import flat
from tracker_diag.trackers.notify import Notifier, from_environment
from tracker_diag.trackers.tracker import Tracker

NOTHING = "nothing of it is watched"
USUAL_CLIP = 0.2

T = TypeVar("T")

_log = logging.getLogger("tracker_diag")


def attempt(monitor: Monitor, call: Callable[[], T], otherwise: T | None = None) -> T | None:
    """What `call` gives, or `otherwise` where it raises, which is counted, as is all that touches a framework."""
    with monitor.guard("integration_errors"):
        return call()
    return otherwise


def place_in_job() -> tuple[int, int]:
    """This process's rank in its `torch.distributed` job, and how many there are; 0 and 1 outside of one."""
    import torch.distributed as dist

    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def all_ranks() -> Ranks | None:
    """All processes, if there are several, which decide as one; made on each of them at the same time."""
    return AllReduce() if not disabled() and place_in_job()[1] > 1 else None


def dotted(config: Mapping[str, object]) -> dict[str, object]:
    """Nested settings by dotted name."""
    return dict(flat(config, "."))


def plain(settings: Mapping[Any, object]) -> dict[str, object]:
    """Those that are text, a number or a truth value, as rules look at; no objects of the framework."""
    return {str(name): value for name, value in settings.items() if isinstance(value, str | int | float | bool)}


def clip_range(low: object, high: object = None) -> tuple[float, float]:
    """How far below and above 1 the ratio is clipped, from a trainer's settings.

    `low` is 0.2 if it is no positive number, and less than 1, as no ratio is below 0. `high` is then as `low`.
    """
    below, above = (float(side) if isinstance(side, int | float) and side > 0 else None for side in (low, high))
    below = below or USUAL_CLIP
    return min(below, 0.999), above or below


def add_active(
    monitor: Monitor,
    *writers: object,
    sees: Mapping[str, str],
    blind: Mapping[Pair, str | None] | None = None,
    tools: bool = True,
    wait: bool = False,
) -> bool:
    """Write to the runs that are underway in this process, and tell people by TRACKER_DIAG_NOTIFY.

    Each run is written to once, however often this is called. Where there is none, a folder of JSON Lines in
    TRACKER_DIAG_DIR, or `.tracker_diag`, takes its place. One line says where, and what is expected. What fails is
    counted, as with all that is done while a framework trains.

    Args:
        writers: what the framework itself logs through, for runs that cannot be found in a process. A `SummaryWriter`,
            an object with one as `writer`, a logger of Lightning or a tracker of accelerate. Others are left out.
        sees: what the integration sees, by name, as its `SEES`.
        blind: the pairs without a signal in the run's settings, each with what would change that, or None. All others
            in `sees` are promised. If one is missing after five steps, a warning says so once. None if the settings are
            not known.
        tools: whether what is trained can call any.
        wait: a run may still begin, and this be called again: no folder is made yet.

    Returns:
        Whether there is any run.
    """
    if disabled():
        return False
    before, runs = monitor.trackers, False
    with monitor.guard("integration_errors"):
        for tracker in (*filter(None, map(_written_by, writers)), *active_trackers()):
            if not tracker.takes:  # a disabled run keeps nothing
                continue
            runs = True
            if all((known.name, known.address) != (tracker.name, tracker.address) for known in monitor.trackers):
                monitor.add_tracker(tracker)
    with monitor.guard("integration_errors"):
        if all(tracker.name != Notifier.name for tracker in monitor.trackers):
            names = [tracker.address["run"] for tracker in monitor.trackers if "run" in tracker.address]
            for people in from_environment(names[0] if names else None):
                monitor.add_tracker(people)
    with monitor.guard("integration_errors"):
        if not (runs or wait or any(tracker.page for tracker in monitor.trackers)):
            monitor.add_tracker(JsonlTracker(unused_folder()))
        if new := [tracker for tracker in monitor.trackers if tracker not in before and tracker.page]:
            looks_for: dict[Pair, str] = {
                pair: how for pair in PAIRS for name, how in sees.items() if pair in name.split(", ")
            }
            promised: dict[Pair, str] = {pair: how for pair, how in looks_for.items() if pair not in (blind or {})}
            if blind is not None:
                monitor.silence.promise(promised, Reach(blind, tools))
            places = "; ".join(f"{tracker.name}, see it with  {tracker.page}" for tracker in new)
            slices = [name for name in sees if name in DIMENSIONS or name in CONTEXT]
            line = f"writes to {places}{_looked_for(promised, slices, blind or {})}"
            announce(unbroken(Text.assemble(("tracker_diag: ", "dim"), line)))
            leave_one(monitor)
    return runs


def _looked_for(pairs: Collection[Pair], slices: Sequence[str], blind: Mapping[Pair, str | None]) -> str:
    """The rest of the line: what is looked for, and what cannot be seen and why."""
    parts = [f"looks for {', '.join(pairs)} (tracker-diag integrations says when they come)"] if pairs else []
    parts += [f"by {', '.join(slices)}"] if pairs and slices else []
    parts += [f"blind for {pair}: {how}" for pair, how in blind.items() if how]
    return "".join(f"; {part}" for part in parts)


def _written_by(writer: Any) -> Tracker | None:
    """The tracker of the run that `writer` logs to."""
    within = (getattr(writer, name, None) for name in ("experiment", "tracker", "writer"))
    inner = next(filter(None, within), writer)
    return tracker_of(inner, run_id=getattr(writer, "run_id", None))


def resume(monitor: Monitor, saved: Any, missing: str) -> bool:
    """Load the state in a framework's checkpoint, for a run that is resumed from there; whether it was loaded.

    A monitor that has seen steps already does not change. If the state is damaged or None, the monitor starts over. It
    reports this in the log and in the run; for None the report is `missing`.
    """
    if monitor.step is not None or disabled():
        return False
    if saved is None:
        _begins_anew(monitor, missing)
        return False
    with monitor.guard("integration_errors"):
        fresh = monitor.state_dict()
        try:
            monitor.load_state_dict(saved)
        except Exception as error:
            monitor.load_state_dict(fresh)
            _begins_anew(monitor, f"the state of the diagnostics cannot be used, {error}")
            raise
        return True
    return False


def _begins_anew(monitor: Monitor, why: str) -> None:
    text = f"{why}: the diagnostics of the resumed run start over"
    _log.warning("%s", text)
    monitor.rebaseline(text)  # nothing has been seen yet, so that this is a note in the run alone


_watched: dict[int, tuple[Callable[[], object], Monitor]] = {}
"""By the id of what is watched: what gives it, if it is there yet, and its monitor, until that is closed."""


def one_of(monitor: Monitor | None, guards: Guarded) -> None:
    """Raise DiagError where both are given."""
    if monitor is not None and guards:
        raise DiagError("guards: given next to a monitor, expected one of the two; give them to the monitor")


def watching(owner: object, monitor: Monitor | None) -> Monitor | None:
    """The monitor that watches `owner`, such as a trainer, already; None if there is none."""
    owner_of, there = _watched.get(id(owner), (None, None))
    if there is None or owner_of is None or owner_of() is not owner:
        return None
    return same_monitor(there, monitor)


def same_monitor(there: Monitor, given: Monitor | None) -> Monitor:
    """`there`, which watches a training already.

    Raises:
        DiagError: another one is given for it.
    """
    if given not in (None, there):
        raise DiagError("monitor: another one given, expected that which watches this training already, or none")
    return there


def watch_once(owner: object, monitor: Monitor, framework: str) -> None:
    """Say that `monitor` watches `owner`, whose metrics have the names of `framework`, until it is closed."""
    monitor.framework = framework

    def ended() -> None:
        if _watched.get(key, (None, None))[1] is monitor:
            del _watched[key]

    key = id(owner)
    try:
        _watched[key] = weakref.ref(owner), monitor
    except TypeError:  # it takes none
        _watched[key] = lambda: owner, monitor
    monitor.at_close(ended)


CHANGED = (HookError, AttributeError, ImportError, LookupError, TypeError)
"""What is raised if a module, an attribute or an argument has changed."""


class Hooks(ExitStack):
    """The hooks on one framework, part by part, all of a part or none.

        hooks = Hooks("AReaL", TESTED)
        with hooks.part("metrics are not heard") as on:
            on.callback(before(...))

    If a module, a function or an attribute has changed, nothing is raised. The part's hooks are taken off, its rest is
    left out, and the other parts stay. `tell_changed` says so, if this process `tells`. `close` takes all hooks off.
    """

    def __init__(self, name: str, tested: str, *, tells: bool = True) -> None:
        super().__init__()
        self._name, self._tested, self._tells = name, tested, tells

    @contextmanager
    def part(self, lost: str) -> Generator[ExitStack, None, None]:
        """Put hooks on, for what is `lost` without them."""
        on = ExitStack()
        self.callback(on.close)
        try:
            yield on
        except BaseException as error:
            on.close()
            if not isinstance(error, CHANGED):
                raise
            if self._tells:
                tell_changed(self._name, self._tested, error, lost)


def unless_changed(name: str, tested: str, lost: str = NOTHING) -> AbstractContextManager[ExitStack]:
    """A part of a framework that has no other, or nothing to take off."""
    return Hooks(name, tested).part(lost)


def monitor_knowing(make: Callable[[], Monitor], name: str, tested: str) -> Monitor:
    """The monitor that `make` gives, which knows the run's settings; else one that does not, with a warning."""
    with unless_changed(name, tested, "the run's settings are not known"):
        return make()
    return Monitor()


def tell_changed(name: str, tested: str, error: Exception, lost: str = NOTHING) -> None:
    """Warn that the framework that is installed as `name` differs from its `tested` versions, and what is `lost`."""
    kind = "" if isinstance(error, HookError) else f"{type(error).__name__}: "  # a missing key alone says nothing
    try:
        installed = version(name)
    except PackageNotFoundError:
        installed = "unknown"
    _log.warning(
        "%s %s is not a tested version (%s): %s%s. Consequence: %s. Training continues. Install a tested version to "
        "have it watched.", name, installed, tested, kind, error, lost,
    )  # fmt: skip


def observe_before_update(
    monitor: Monitor, old: Any, *, rollout: Any = None, ref: Any = None, applied_weights: Any = None, **labels: Any
) -> None:
    """Hand over a batch as a driver has it: the pairs `mismatch` and `reference`, each by itself.

    The ratio of the update is made in other processes: the pair `policy` is not seen, rather than zero. `old`,
    `rollout` and `ref` are log-probabilities; a pair that lacks one of its two is left out.
    """
    if rollout is not None:
        monitor.observe(old_logprobs=old, rollout_logprobs=rollout, applied_weights=applied_weights, **labels)
    if ref is not None:
        monitor.observe(logprobs=old, ref_logprobs=ref, **labels)


def of_sequences(values: Any, mask: Any) -> Any:
    """(B,) the mean of `values` (B, T) over each sequence's tokens of `mask`; 0 where it has none."""
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def on_demand(module: str, name: str, needs: str, extra: str) -> Callable[[str], Any]:
    """A package's `__getattr__`, which imports `name` from `module` when it is asked for.

    For a class whose base class is in the module `needs`: without it MissingExtra names `extra`.
    """
    package = module.rpartition(".")[0]

    def attribute(asked: str) -> Any:
        if asked != name:
            raise AttributeError(f"module {package!r} has no attribute {asked!r}")
        require(needs, extra)
        return getattr(import_module(module), name)

    return attribute
