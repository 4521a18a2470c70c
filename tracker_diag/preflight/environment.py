"""The environment's contract: what reset and step give, whether episodes end, whether a seed repeats them."""

import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from rich.text import Text

from tracker_diag.preflight.check import Check, failed, passed, unchecked
from tracker_diag.preflight.limits import described, within
from tracker_diag.report.console import cut
from tracker_diag.trackers.tracker import is_a

Act: TypeAlias = Callable[[Any], Any]
"""From an observation to an action."""

EPISODES = 5
LONGEST = 1000
"""Steps after which an episode is given up, that one which never ends does not stop all others."""

REPEATED = 50
"""Steps over which a seed is to give the same."""

STEPS = "env_steps"
ENDS = "env_ends"
SEEDS = "env_seeds"
API = "env_api"
NAMES = (STEPS, ENDS, SEEDS, API)

GIVE = "give env=..., a Gymnasium environment, one with reset and step, or what makes one"


class Broken(Exception):
    """The environment gives what its contract does not allow."""

    def __init__(self, reason: str, do: str) -> None:
        self.reason, self.do = reason, do
        super().__init__(reason)


@dataclass
class Played:
    """Episodes as far as they have come; filled while they are played."""

    returns: list[float] = field(default_factory=list[float])
    """The sum of rewards of each episode that ended or was given up."""
    ended: int = 0
    steps: int = 0
    underway: str = ""
    """What the environment was asked to do last."""


def made(env: Any) -> Any:
    """`env`, or what it makes if it is a function or a class that does."""
    return env if hasattr(env, "step") and not isinstance(env, type) else env()


def environment_checks(env: Any, random_policy: Act | None, seconds: float) -> tuple[list[Check], Act | None]:
    """Hold `env` against its contract, `seconds` for each part.

    Returns:
        The checks, and what plays at random; None where nothing can be played.
    """
    missing = [name for name in ("reset", "step") if not callable(getattr(env, name, None))]
    if missing:
        reason = f"{type(env).__name__} has no {' and no '.join(missing)}"
        return [failed(STEPS, reason, "give an environment with reset() and step(action)"), *_skipped(STEPS)], None
    drawn = within(seconds, lambda: random_policy or random_of(env))
    if drawn.wrong:
        return [_wrong(STEPS, drawn.error, f"its action_space {drawn.wrong}"), *_skipped(STEPS)], None
    act = drawn.value
    if act is None:
        give = "give random_policy=..., from an observation to an action, as the environment has no action_space"
        return [unchecked(name, "nothing can act", give) for name in NAMES], None
    played = Played()
    ended = within(seconds + 1, lambda: play(env, act, EPISODES, time.monotonic() + seconds, played))
    if ended.wrong:
        return [_wrong(STEPS, ended.error, f"{played.underway} {ended.wrong}"), *_skipped(STEPS)], None
    mean = sum(played.returns) / len(played.returns) if played.returns else math.nan
    steps = passed(STEPS, f"{played.steps:,} steps gave what they should", steps=played.steps, mean_return=mean)
    seeds, ends = _seeds(env, act, seconds), _ends(played)
    checks = [steps, ends, seeds]
    if _hangs(seeds):
        return [*checks, *_skipped(SEEDS)], None
    checks.append(_api(env, seconds))
    return checks, act if ends.status != "fail" and not _hangs(checks[-1]) else None


def random_of(env: Any) -> Act | None:
    """Draws from the action space of `env`, from the same seed each time; None if it has none."""
    space = getattr(env, "action_space", None)
    if space is None:
        return None
    space.seed(0)
    return lambda _: space.sample()


def play(env: Any, act: Act, episodes: int, until: float, played: Played) -> None:
    """Play `episodes`, each from a seed of its own, or as many as there is time for until the clock says `until`.

    Raises:
        Broken: what reset or step gave is not what they should.
    """
    for episode in range(episodes):
        total = 0.0
        for _, reward, over in _episode(env, act, episode, LONGEST, played):
            total += reward
            played.ended += over
            if time.monotonic() > until:
                if over:
                    played.returns.append(total)
                return
        played.returns.append(total)


def _episode(env: Any, act: Act, seed: int, most: int, played: Played) -> Iterator[tuple[Any, float, bool]]:
    """Observation, reward and whether the episode is over, of reset and each step of it."""
    played.underway = f"reset of episode {seed}"
    observation = _reset(env, seed)
    _observed(env, observation, "reset")
    yield observation, 0.0, False
    for step in range(most):
        played.underway = f"the policy at step {step} of episode {seed}"
        action = act(observation)
        played.underway = f"step {step} of episode {seed}"
        observation, reward, over = _stepped(env.step(action))
        played.steps += 1
        _observed(env, observation, "step")
        yield observation, reward, over
        if over:
            return


def _reset(env: Any, seed: int) -> Any:
    given = env.reset(seed=seed) if _takes_seed(env) else env.reset()
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
        raise Broken(
            f"reset returned {_kind(given)}, expected (observation, info) with info a dict",
            "return both from reset; an environment of the old Gym goes through gymnasium's shimmy",
        )
    return given[0]


def _stepped(given: Any) -> tuple[Any, float, bool]:
    if not (isinstance(given, tuple) and len(given) == 5):
        raise Broken(
            f"step returned {_kind(given)}, expected (observation, reward, terminated, truncated, info)",
            "return five values: terminated at the end of a task, truncated at a limit; they bootstrap differently",
        )
    observation, reward, terminated, truncated, _ = given
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise Broken(f"{name} is {flag!r} ({type(flag).__name__}), expected a bool", f"return bool({name})")
    try:
        value = float(reward)
    except (TypeError, ValueError) as error:
        raise Broken(f"reward is {_kind(reward)}, expected a number", "return a float as the reward") from error
    if not math.isfinite(value):
        raise Broken(f"reward is {value}", "find where it is made: a division by zero, a log of 0, an empty mean")
    return observation, value, bool(terminated or truncated)


def _observed(env: Any, observation: Any, of: str) -> None:
    """Raise Broken if an observation is outside the environment's own space, or none at all."""
    if observation is None:
        raise Broken(f"{of} gave None as observation", "return what the agent is to see")
    space = getattr(env, "observation_space", None)
    if space is not None and not space.contains(observation):
        raise Broken(
            f"{of} gave an observation outside observation_space {cut(str(space), 60)}: {cut(repr(observation), 80)}",
            "normalise the observation, or give the space the shape, dtype and limits that observations have",
        )
    if space is None and isinstance(observation, np.ndarray | float) and not np.isfinite(observation).all():
        raise Broken(f"{of} gave an observation with NaN or infinity", "find which sensor or feature it comes from")


def _api(env: Any, seconds: float) -> Check:
    """What Gymnasium's own checker says of an environment of its kind."""
    if not is_a(env, "gymnasium", "Env"):
        return unchecked(
            API, "no Gymnasium environment", "nothing, or derive it from gymnasium.Env for its own checker"
        )
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings(record=True) as said:  # in this thread: the other one may never leave it
        warnings.simplefilter("always")
        ended = within(seconds, lambda: check_env(env.unwrapped, skip_render_check=True, skip_close_check=True))
    if ended.wrong:
        return _wrong(API, ended.error, f"gymnasium's check_env {ended.wrong}")
    notes = [str(one.message) for one in said if issubclass(one.category, UserWarning)]
    noted = f"; it notes: {cut(Text.from_ansi(notes[0]).plain, 100)}" if notes else ""
    return passed(API, f"gymnasium's check_env finds nothing wrong{noted}", notes=len(notes))


def _ends(played: Played) -> Check:
    if played.ended:
        return passed(ENDS, f"{played.ended} of {len(played.returns)} episodes ended", episodes=len(played.returns))
    if not played.returns:
        return unchecked(ENDS, f"no episode was over after {played.steps} steps", "give more time with seconds=...")
    return failed(
        ENDS,
        f"none of {len(played.returns)} episodes ended within {LONGEST:,} steps",
        "return terminated=True at the end of the task, and truncated=True at a limit; wrap it in a TimeLimit",
    )


def _seeds(env: Any, act: Act, seconds: float) -> Check:
    """Whether the same seed and the same actions give the same observations and rewards."""
    if not _takes_seed(env):
        return unchecked(SEEDS, "reset takes no seed", "let reset take seed=..., so that a run can be repeated")
    actions: list[Any] = []
    played = Played()

    def first(observation: Any) -> Any:
        actions.append(act(observation))
        return actions[-1]

    def both() -> int | None:
        told = list(_episode(env, first, 7, REPEATED, played))
        again = iter([*actions])
        repeated = list(_episode(env, lambda _: next(again), 7, len(actions), played))
        differs = (i for i, (a, b) in enumerate(zip(told, repeated, strict=False)) if not _same(a, b))
        return next(differs, None if len(told) == len(repeated) else min(len(told), len(repeated)))

    ended = within(seconds, both)
    if ended.wrong:
        return _wrong(SEEDS, ended.error, f"{played.underway} {ended.wrong}")
    if ended.value is not None:
        return failed(
            SEEDS,
            f"two episodes from one seed with the same actions differ from step {ended.value} on",
            "draw every random number from self.np_random, which reset(seed=...) seeds; no global generator, no clock",
        )
    return passed(SEEDS, f"one seed gives the same {len(actions)} steps twice")


def _same(one: Any, other: Any) -> bool:
    """Whether two observations, nested as they may be, are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    a, b = np.asarray(one), np.asarray(other)
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))


def _takes_seed(env: Any) -> bool:
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except (TypeError, ValueError):  # of compiled code, which tells nothing
        return False
    return any(one.name == "seed" or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _wrong(name: str, error: BaseException | None, reason: str) -> Check:
    """The check of an environment that raised, or has not come back."""
    if isinstance(error, Broken):
        return failed(name, error.reason, error.do)
    if error is None:
        return failed(
            name, reason, "look where it waits: a socket, a lock, a subprocess; put a time-out there, or raise seconds="
        )
    return failed(name, reason, "make this very call by hand, and read the traceback")


def _hangs(check: Check) -> bool:
    return check.status == "fail" and "did not return" in check.reason


def _skipped(after: str) -> list[Check]:
    """Those that come after one which failed."""
    rest = NAMES[NAMES.index(after) + 1 :]
    return [unchecked(name, f"{after} failed", f"mend {after} first") for name in rest]


def _kind(given: Any) -> str:
    return f"a tuple of {len(given)}" if isinstance(given, tuple) else f"{type(given).__name__}"


def not_made(error: BaseException | None, seconds: float) -> list[Check]:
    """The checks of an environment that could not be made."""
    why = f"did not return in {seconds:g} s" if error is None else described(error)
    first = failed(STEPS, f"what makes the environment {why}", "make one by hand, and read the traceback")
    return [first, *_skipped(STEPS)]
