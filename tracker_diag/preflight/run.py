"""preflight: every check for which something was given, in the order of the training loop."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from tracker_diag.attach.kit import dotted
from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.preflight import environment, evaluation, masks, memory, minimal, rewards, sampler, tools
from tracker_diag.preflight.check import Check, Report, failed, unchecked
from tracker_diag.preflight.limits import Broken
from tracker_diag.trackers.tracker import Event, writing

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Given(TypedDict, total=False):
    """What a user hands over. All is optional: a check for which something is missing says what to give."""

    env: Any
    """An environment with `reset` and `step` as Gymnasium or OpenEnv has them, or a function or class that makes
    one."""
    policy: Callable[[Any], Any]
    """A weak expert: from an observation to an action."""
    random_policy: Callable[[Any], Any]
    """Acts at random where the environment has no `action_space`: from an observation to an action."""
    rewards: Any
    """(n,) rewards of the untrained policy. Without them the returns of the episodes in `env` are taken."""
    groups: Sequence[object]
    """n ids: the prompt of each sample."""
    success: Any
    """(n,) 1 where the task was solved, else 0."""
    rewards_before: Any
    """(n,) rewards of the same samples by the definition that `rewards` is to replace."""
    advantage: Callable[[Any, Any], Any]
    """From rewards (n,) and group ids (n,) to advantages (n,), as the trainer makes them."""
    overfit: Any
    """(n,) loss of one and the same batch, before each of n updates on it alone; above 0."""
    evaluate: Callable[[], Any]
    """Evaluates one checkpoint, the same at each call, and returns its score."""
    returns: Any
    """(n,) returns of one rollout."""
    values: Any
    """(n,) the critic's values of the same steps, after it was trained on this rollout alone."""
    batch: Mapping[str, Any]
    """One real batch: what `Monitor.observe` takes, of shape (B, T), or (N,) with `sequence_ids`. Further: `loss_mask`
    (what is trained on), `attention_mask` (0 on padding), `token_ids`. `logprobs_again` is a second pass over the same
    tokens, with another batch size."""
    pad_id: int
    eos_id: int
    """The token that ends a response."""
    config: Mapping[str, Any]
    """The run's settings, nested or by dotted name, those of the evaluation among them."""
    tool: Callable[..., Any]
    """A tool, or another function that is called often, such as a verifier; it may be asynchronous."""
    tool_arguments: Sequence[Any]
    """What to call it with, in turn: mappings of names, tuples, or single values."""
    memory: Mapping[str, Any]
    """What a device is to hold: the fields of `preflight.memory.Plan`."""


class Part(NamedTuple):
    """Checks that are made of the same arguments."""

    function: Callable[..., Check | Iterable[Check]]
    """Its parameters have the names of `Given`; without those that have no default it is not called."""
    names: tuple[str, ...]
    """Of the checks that it gives."""
    give: str
    """What to do where an argument is missing."""

    def checks(self, given: Mapping[str, Any]) -> Iterable[Check]:
        """These checks, of what is `given`."""
        parameters = inspect.signature(self.function).parameters
        needed = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
        if missing := [name for name in needed if name not in given]:
            return [unchecked(name, f"{' and '.join(missing)} not given", self.give) for name in self.names]
        try:
            checks = self.function(**{name: given[name] for name in parameters if name in given})
        except Broken as broken:
            checks = failed(self.names[0], broken.reason, broken.do)
        return [checks] if isinstance(checks, Check) else checks


PARTS = (
    Part(evaluation.evaluation_checks, evaluation.NAMES, evaluation.GIVE),
    Part(minimal.repeated_check, (minimal.REPEATS,), minimal.GIVE_EVALUATE),
    Part(rewards.histogram_check, (rewards.HISTOGRAM,), rewards.GIVE),
    Part(rewards.sign_check, (rewards.SIGN,), rewards.GIVE_SUCCESS),
    Part(rewards.group_check, (rewards.GROUPS,), rewards.GIVE_GROUPS),
    Part(rewards.extremes_check, (rewards.EXTREMES,), rewards.GIVE_ADVANTAGE),
    Part(rewards.revision_check, (rewards.REVISION,), rewards.GIVE_BEFORE),
    Part(minimal.ranking_check, (minimal.RANKS,), minimal.GIVE_GROUPS),
    Part(minimal.overfit_check, (minimal.OVERFITS,), minimal.GIVE_LOSSES),
    Part(minimal.critic_check, (minimal.CRITIC,), minimal.GIVE_RETURNS),
    Part(masks.mask_checks, masks.NAMES, masks.GIVE),
    Part(sampler.sampler_checks, sampler.NAMES, sampler.GIVE),
    Part(tools.tool_checks, (tools.NAME, tools.OUTPUTS), tools.GIVE),
    Part(memory.memory_check, (memory.NAME,), memory.GIVE),
)
"""All but the environment, whose episodes give the rewards where there are no others."""


def preflight(
    *,
    run: Any = None,
    seconds: float = 30.0,
    episodes: int = 100,
    calls: int = 64,
    concurrency: int = 16,
    **given: "Unpack[Given]",
) -> Report:
    """Check what was `given` for mistakes that let training run and learn the wrong thing.

    Nothing here trains. Code of yours runs in threads of its own: what hangs is left behind after `seconds`, and the
    check says where it was.

    Args:
        run: what `td.wrap` returned, or a `Monitor`: the result is written into its tracker, as the table
            `diag/preflight` and an event.
        seconds: that one part of a check may take.
        episodes: to play at random, and as many by `policy`.
        calls, concurrency: of `tool`.
        given: see `Given`.

    Returns:
        All checks, each pass, fail or not checked. `exit_code` is 1 if one failed; printed, it says what to do.

    Raises:
        DiagError: an argument that is unknown, arrays that do not fit together, a plan that cannot be used.
    """
    if unknown := sorted(given.keys() - Given.__annotations__.keys()):
        raise UnknownName("preflight", unknown[0], tuple(Given.__annotations__))
    monitor = getattr(run, "diag", run)
    if monitor is not None and not isinstance(monitor, Monitor):
        raise DiagError(f"run: {type(run).__name__} given, expected what td.wrap returned, or a Monitor")
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not isinstance(known.get("batch", {}), Mapping):
        raise DiagError(f"batch: {type(known['batch']).__name__} given, expected a mapping of arrays by name")
    if "config" in known:
        known["config"] = dotted(known["config"])
    if monitor is not None:
        known["saved"] = dotted(monitor.config)
    known |= {"seconds": seconds, "episodes": episodes, "calls": calls, "concurrency": concurrency}
    report = Report(tuple(_checks(known)))
    if monitor is not None:
        write(report, monitor)
    return report


def _checks(known: dict[str, Any]) -> Iterator[Check]:
    if "env" in known:
        players = known.get("policy"), known.get("random_policy")
        course = environment.Course(known["env"], known["seconds"], known["episodes"], *players)
        yield from course.checks()
        known = {"rewards": course.returns} | known if course.returns else known
    else:
        yield from (unchecked(name, "env not given", environment.GIVE) for name in environment.NAMES)
    for part in PARTS:
        yield from part.checks(known)


def write(report: Report, monitor: Monitor) -> None:
    """Write `report` into the tracker of `monitor`: a table, and an event with what failed."""
    failures = ", ".join(check.name for check in report.with_status("fail"))
    with writing():
        monitor.hand_over(report.table(), Event(report.headline + (f": {failures}" if failures else "")))
