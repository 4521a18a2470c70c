"""preflight: every check for which something was given, in the order of the training loop."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tracker_diag.attach.kit import dotted
from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.monitor.monitor import Monitor
from tracker_diag.preflight import (
    critic,
    environment,
    evaluation,
    expert,
    lint,
    masks,
    memory,
    preferences,
    rewards,
    tools,
)
from tracker_diag.preflight import sampler as sampling
from tracker_diag.preflight.check import Check, Report, unchecked
from tracker_diag.preflight.given import Given
from tracker_diag.preflight.limits import within
from tracker_diag.preflight.settings import settings_of
from tracker_diag.trackers.tracker import Event, give, writing

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    monitor = _monitor(run)
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "batch" in known and not isinstance(known["batch"], Mapping):
        raise DiagError(f"batch: {type(known['batch']).__name__} given, expected a mapping of arrays by name")
    played, returns = _world(known, episodes, seconds)
    found = (
        *played,
        *_evaluation(known, monitor),
        *_rewards({"rewards": returns} | known if returns else known, seconds),
        *_critic(known),
        *_data(known),
        *_sampler(known, seconds),
        *lint.config_checks(settings_of(_config(known), known.get("framework")) if _config(known) else None),
        *_tool(known, calls, concurrency, seconds),
        *_memory(known),
    )
    report = Report(found)
    if monitor is not None:
        write(report, monitor)
    return report


def write(report: Report, monitor: Monitor) -> None:
    """Write `report` into the tracker of `monitor`: a table, and an event with what failed."""
    step = monitor.step or 0
    failures = ", ".join(check.name for check in report.of("fail"))
    for tracker in monitor.trackers:
        with monitor.guard("tracker_errors"), writing():
            give(tracker, step, [report.table()])
            give(tracker, step, [Event(report.headline + (f": {failures}" if failures else ""))])


def _monitor(run: Any) -> Monitor | None:
    monitor = getattr(run, "diag", run)
    if monitor is not None and not isinstance(monitor, Monitor):
        raise DiagError(f"run: {type(run).__name__} given, expected what td.wrap returned, or a Monitor")
    return monitor


def _config(known: Mapping[str, Any]) -> dict[str, object]:
    return dotted(known.get("config", {}))


def _world(known: Mapping[str, Any], episodes: int, seconds: float) -> tuple[list[Check], list[float]]:
    """The environment and the expert in it, and the returns of the episodes that were played."""
    if "env" not in known:
        skipped = [unchecked(name, "no environment was given", environment.GIVE) for name in environment.NAMES]
        return [*skipped, unchecked(expert.NAME, "no environment was given", expert.GIVE)], []
    ended = within(seconds, lambda: environment.made(known["env"]))
    if ended.wrong:
        broken = environment.not_made(ended.error, seconds)
        return [*broken, unchecked(expert.NAME, "there is no environment", f"mend {environment.STEPS} first")], []
    env: Any = ended.value
    checks, act = environment.environment_checks(env, known.get("random_policy"), seconds)
    if act is None:
        first = next((check.name for check in checks if check.status == "fail"), environment.STEPS)
        return [*checks, unchecked(expert.NAME, "the environment cannot be played", f"mend {first} first")], []
    judged, returns = expert.expert_check(env, act, known.get("policy"), episodes, seconds)
    if env is not known["env"] and hasattr(env, "close"):  # it was made here
        within(seconds, env.close)
    return [*checks, judged], returns


def _evaluation(known: Mapping[str, Any], monitor: Monitor | None) -> Iterator[Check]:
    if "config" not in known:
        for name in (evaluation.COMPLETE, evaluation.SAVED):
            yield unchecked(name, "no configuration was given", evaluation.GIVE)
        return
    saved = dotted(monitor.config) if monitor is not None else None
    yield from evaluation.evaluation_checks(_config(known), saved, tools="tool" in known)


def _rewards(known: Mapping[str, Any], seconds: float) -> Iterator[Check]:
    of, missing = known.get("rewards"), "no rewards were given"
    yield unchecked(rewards.HISTOGRAM, missing, rewards.GIVE) if of is None else rewards.histogram_check(of)
    if of is not None and "success" in known:
        yield rewards.sign_check(of, known["success"])
    else:
        yield unchecked(rewards.SIGN, "rewards and success were not both given", "give rewards=... and success=...")
    if of is not None and "groups" in known:
        yield rewards.group_check(of, known["groups"])
    else:
        give = "give rewards=... and groups=..., the prompt of each sample"
        yield unchecked(rewards.GROUPS, "rewards and groups were not both given", give)
    if "advantage" in known:
        yield rewards.extremes_check(known["advantage"], seconds)
    else:
        give = "give advantage=..., from rewards and groups to advantages, as the trainer makes them"
        yield unchecked(rewards.EXTREMES, "no advantage function was given", give)


def _critic(known: Mapping[str, Any]) -> Iterator[Check]:
    if "returns" in known:
        yield critic.critic_check(known["returns"], known.get("values"), known.get("features"))
    else:
        yield unchecked(critic.NAME, "no returns were given", critic.GIVE)


def _data(known: Mapping[str, Any]) -> Iterator[Check]:
    """What is trained on: masks, ids, pairs."""
    batch = masks.Audited.of(known.get("batch", {}), known.get("tokenizer"), known.get("pad_id"))
    yield from masks.mask_checks(batch, known.get("pad_id"), known.get("eos_id"))
    yield masks.ids_check(known.get("sampled_ids"), known.get("trained_ids"))
    yield from preferences.preference_checks(known.get("preferences", ()))


def _sampler(known: Mapping[str, Any], seconds: float) -> Iterator[Check]:
    if "batch" in known:
        yield from sampling.sampler_checks(known["batch"])
    else:
        for name in (sampling.FORM, sampling.STEP0):
            yield unchecked(name, "no batch was given", sampling.GIVE)
    if "perturb" in known and "sample" in known:
        yield sampling.canary_check(known["perturb"], known["sample"], seconds)
    else:
        yield unchecked(sampling.ARRIVES, "perturb and sample were not both given", sampling.CANARY)


def _tool(known: Mapping[str, Any], calls: int, concurrency: int, seconds: float) -> Iterator[Check]:
    if "tool" in known:
        yield tools.tool_check(known["tool"], known.get("tool_arguments", ()), calls, concurrency, seconds)
    else:
        yield unchecked(tools.NAME, "no tool was given", tools.GIVE)


def _memory(known: Mapping[str, Any]) -> Iterator[Check]:
    if "memory" in known:
        yield memory.memory_check(known["memory"])
    else:
        yield unchecked(memory.NAME, "no plan was given", memory.GIVE)
