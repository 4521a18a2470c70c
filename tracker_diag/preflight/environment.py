"""The environment: what its checkers say, what its episodes give, whether an expert wins.

`check_env` of Gymnasium and of Stable-Baselines3 look at signatures, types, spaces, seeds and NaN in a few steps. The
other checks play whole episodes, of an environment of any kind.
"""

import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
from rich.text import Text

from tracker_diag.preflight.check import Check, failed, judged, passed, unchecked
from tracker_diag.preflight.limits import Broken, within
from tracker_diag.report.console import cut
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.trackers.tracker import is_a

Act: TypeAlias = Callable[[Any], Any]
"""From an observation to an action."""

EPISODES = 5
LONGEST = 1000
"""Steps after which an episode is given up, so that an endless one does not stop all others."""
LARGE = 100.0
"""Size of a number that a network should not be given as it is, nor give out: a choice."""
FEWEST = 10
"""Episodes of policy and chance below which there is no verdict."""
RESAMPLES = 2000
SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")
"""Spaces, or parts of a Dict, that Stable-Baselines3 has policies for. It refuses others that are no mistakes."""

NAMES = API, STEPS, SCALE, ENDS, WINS = "env_api", "env_steps", "env_scale", "env_ends", "expert_beats_random"

GIVE = "give env=..., a Gymnasium environment, one with reset and step, or what makes one"
GIVE_POLICY = "give env=... and policy=..., a simple rule from an observation to an action"
MORE_TIME = "give more time with seconds=..."
CHECKED = "change reset, step or the spaces as it says: https://gymnasium.farama.org/api/env/"
CONTRACT = (
    "make this very call by hand: reset is to return (observation, info), and step is to return "
    "(observation, reward, terminated, truncated, info)"
)


@dataclass
class Played:
    """Episodes as far as they have come; filled while they are played."""

    returns: list[float] = field(default_factory=list[float])
    """The sum of rewards of each episode that ended or was given up."""
    ended: int = 0
    steps: int = 0
    underway: str = ""
    """What the environment was asked to do last."""
    largest: float = 0.0
    """The largest absolute number among observations, or parts of them, that are vectors of floats."""


@dataclass
class Course:
    """The checks of an environment, in the order of `NAMES`."""

    env: Any
    """An environment, of OpenEnv too, or a function or class that makes one."""
    seconds: float
    """For each part."""
    episodes: int = 100
    policy: Act | None = None
    random_policy: Act | None = None
    returns: list[float] = field(default_factory=list[float])
    """Of the episodes that were played at random and by `policy`."""

    def checks(self) -> list[Check]:
        """All of them; those that come after what hangs or raises are not checked."""
        checks: list[Check] = []
        try:
            checks.extend(self._course())  # keeps those that come before a break
        except Broken as broken:
            checks.append(failed(NAMES[len(checks)], broken.reason, broken.do))
        first = next((check.name for check in checks if check.status == "fail"), "")
        rest = NAMES[len(checks) :]
        return [*checks, *(unchecked(name, f"{first} failed", f"fix {first} first") for name in rest)]

    def _course(self) -> Iterator[Check]:
        made_here = not hasattr(self.env, "step") or isinstance(self.env, type)
        env = within(self.seconds, self.env, lambda: "what makes the environment") if made_here else self.env
        if any(kind.__module__.partition(".")[0] in {"openenv", "openenv_core"} for kind in type(env).__mro__):
            env = AsGymnasium(env)
        if missing := [name for name in ("reset", "step") if not callable(getattr(env, name, None))]:
            reason = f"{type(env).__name__} has no {' and no '.join(missing)}"
            raise Broken(reason, "give an environment with reset() and step(action)")
        yield _api(env, self.seconds)
        act = self.random_policy or within(self.seconds, lambda: _random_of(env), lambda: "its action_space")
        if act is None:
            give = "give random_policy=..., from an observation to an action, as the environment has no action_space"
            yield from (unchecked(name, "nothing can act", give) for name in NAMES[1:])
            return
        played = self._play(env, act, EPISODES)
        mean = sum(played.returns) / len(played.returns) if played.returns else math.nan
        yield passed(STEPS, f"{played.steps:,} steps gave what they should", steps=played.steps, mean_return=mean)
        yield _scale(env, played)
        ends = _ends(played)
        yield ends
        if self.policy is None:
            yield unchecked(WINS, "policy not given", GIVE_POLICY)
        elif ends.status == "fail":
            yield unchecked(WINS, f"{ENDS} failed", f"fix {ENDS} first")
        else:
            at_random = self._play(env, act, self.episodes, "at random: ").returns
            by_policy = self._play(env, self.policy, self.episodes, "by the policy: ").returns
            self.returns += [*at_random, *by_policy]
            yield expert_check(np.array(at_random), np.array(by_policy))
        if made_here and hasattr(env, "close"):
            with suppress(Broken):
                within(self.seconds, env.close, lambda: "close")

    def _play(self, env: Any, act: Act, episodes: int, who: str = "") -> Played:
        """`episodes`, each from a seed of its own, or as many as there is time for."""
        played = Played()
        until = time.monotonic() + self.seconds

        def play() -> None:
            for seed in range(episodes):
                total = 0.0
                played.underway = f"reset of episode {seed}"
                observation, _ = env.reset(seed=seed) if _takes_seed(env) else env.reset()
                _observed(env, observation, played)
                for step in range(LONGEST):
                    played.underway = f"the policy at step {step} of episode {seed}"
                    action = act(observation)
                    played.underway = f"step {step} of episode {seed}"
                    observation, reward, terminated, truncated, _ = env.step(action)
                    if not math.isfinite(reward):
                        do = "find where it is made: a division by zero, a log of 0, an empty mean"
                        raise Broken(f"{played.underway} gave the reward {reward}", do)
                    _observed(env, observation, played)
                    over = bool(terminated or truncated)
                    total += float(reward)
                    played.steps += 1
                    played.ended += over
                    if time.monotonic() > until:
                        played.returns += [total] if over else []
                        return
                    if over:
                        break
                played.returns.append(total)

        within(self.seconds + 1, play, lambda: who + played.underway, CONTRACT)
        return played


def _api(env: Any, seconds: float) -> Check:
    """Passes with all that the checkers advise; what they refuse fails, and what hangs in them ends all checks."""
    if not is_a(env, "gymnasium", "Env"):
        return unchecked(API, "no Gymnasium environment", "give one that derives from gymnasium.Env, for its checker")
    advice: dict[str, None] = {}
    checkers = dict(_checkers(env.unwrapped))
    for name, check in checkers.items():
        with warnings.catch_warnings(record=True) as notes:  # in this thread: the other may never leave it
            warnings.simplefilter("always")
            try:
                within(seconds, check, lambda name=name: f"{name}'s check_env", CHECKED)  # type: ignore[misc]
            except Broken as broken:
                if broken.hangs:
                    raise
                return failed(API, broken.reason, broken.do)
        texts = (Text.from_ansi(str(note.message)).plain for note in notes if issubclass(note.category, UserWarning))
        advice |= dict.fromkeys(" ".join(text.removeprefix("WARN: ").split()) for text in texts)
    reason = f"check_env of {' and '.join(checkers)}: nothing wrong"
    return passed(API, reason + (f"; advice: {cut(' '.join(advice), 600)}" if advice else ""), notes=len(advice))


def _checkers(env: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    from gymnasium.utils import env_checker

    yield "Gymnasium", lambda: env_checker.check_env(env, skip_render_check=True, skip_close_check=True)
    parts = [
        part
        for space in (env.observation_space, env.action_space)
        for part in (space.spaces.values() if is_a(space, "gymnasium.spaces", "Dict") else [space])
    ]
    if find_spec("stable_baselines3") and all(is_a(part, "gymnasium.spaces", *SPACES) for part in parts):
        from stable_baselines3.common.env_checker import check_env

        yield "Stable-Baselines3", lambda: check_env(env)


def _random_of(env: Any) -> Act | None:
    """Draws from the action space of `env`, from the same seed each time; None if it has none."""
    space = getattr(env, "action_space", None)
    if space is None:
        return None
    space.seed(0)
    return lambda _: space.sample()


def _observed(env: Any, observation: Any, played: Played) -> None:
    """Raise Broken if an observation is outside the environment's own space, or is not finite."""
    space = getattr(env, "observation_space", None)
    if space is not None and not space.contains(observation):
        raise Broken(
            f"an observation is outside observation_space {cut(str(space), 60)}: {cut(repr(observation), 80)}",
            "normalise the observation, or give the space the shape, dtype and limits that observations have",
        )
    for part in _leaves(observation):
        number = isinstance(part, float) or (isinstance(part, np.ndarray) and part.dtype.kind in "fc")
        if observation is None or (number and not np.isfinite(part).all()):
            raise Broken("an observation is None, NaN or infinite", "find which sensor or feature it comes from")
        if isinstance(part, np.ndarray) and part.dtype.kind == "f" and part.size:
            played.largest = max(played.largest, float(np.abs(part).max()))


def _leaves(nested: Any) -> Iterator[Any]:
    """The parts of an observation or a space that are no dictionaries or tuples of others."""
    parts = getattr(nested, "spaces", nested)  # of a space of spaces
    if isinstance(parts, Mapping):
        parts = tuple(parts.values())
    if isinstance(parts, tuple | list):
        for part in parts:
            yield from _leaves(part)
    else:
        yield nested


def _takes_seed(env: Any) -> bool:
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except (TypeError, ValueError):  # compiled code has no signature
        return False
    return any(taken.name == "seed" or taken.kind is inspect.Parameter.VAR_KEYWORD for taken in parameters)


def _scale(env: Any, played: Played) -> Check:
    """Whether observations have a size that networks take, and continuous actions one that they give."""
    spaces = list(_leaves(getattr(env, "action_space", None)))
    sides = [getattr(space, side, None) for space in spaces for side in ("low", "high")]
    bounds = [np.abs(side).max() for side in sides if side is not None]
    bound = float(max(bounds, default=0.0))
    reason = f"the largest number in an observation is {played.largest:.3g}, in an action {bound:.3g}"
    observe = "normalise observations: VecNormalize of Stable-Baselines3, or NormalizeObservation of Gymnasium"
    act = "let actions be from -1 to 1 and scale them within the environment, as RescaleAction of Gymnasium does"
    flaws = [(played.largest > LARGE, reason, observe), (bound > LARGE, reason, act)]
    return judged(SCALE, reason, flaws, observation=played.largest, action=bound)


def _ends(played: Played) -> Check:
    if played.ended:
        return passed(ENDS, f"{played.ended} of {len(played.returns)} episodes ended", episodes=len(played.returns))
    if not played.returns:
        return unchecked(ENDS, f"no episode was over after {played.steps} steps", MORE_TIME)
    reason = f"none of {len(played.returns)} episodes ended within {LONGEST:,} steps"
    do = "return terminated=True at the end of the task, and truncated=True at a limit; wrap it in a TimeLimit"
    return failed(ENDS, reason, do)


def expert_check(random: Float64Array, expert: Float64Array) -> Check:
    """Whether the mean return of `expert` (m,) is above that of `random` (n,), by a 95 % interval.

    The interval is the percentile bootstrap of the difference of the means (Efron 1979), from a fixed seed.
    """
    n = min(len(random), len(expert))
    if n < FEWEST:
        return unchecked(WINS, f"{n} episodes were over in time, expected {FEWEST}", MORE_TIME)
    rng = np.random.default_rng(0)
    means = [rng.choice(returns, (RESAMPLES, len(returns))).mean(1) for returns in (expert, random)]
    low, high = map(float, np.quantile(means[0] - means[1], [0.025, 0.975]))
    ours, chance = float(expert.mean()), float(random.mean())
    reason = (
        f"{len(expert)} episodes of the policy return {ours:.3g}, {len(random)} at random {chance:.3g}: "
        f"a difference of {ours - chance:.3g} (95 % interval {low:.3g} to {high:.3g})"
    )
    sign = "look at the reward's sign first, then at whether actions reach the environment"
    alike = (
        "do not train yet: see whether actions change what happens; whether the reward says what is wanted; whether "
        "the policy is an expert at all"
    )
    flaws = [(high < 0, reason, sign), (low <= 0, reason, alike)]
    return judged(WINS, reason, flaws, random=chance, expert=ours, gap=ours - chance, low=low, high=high)


class AsGymnasium:
    """`env` with the returns of Gymnasium: an observation of OpenEnv, or a client's result, has `reward` and `done`."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**given)
        return getattr(result, "observation", result), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        seen = getattr(result, "observation", result)
        return seen, float(result.reward or 0.0), bool(result.done), False, {}

    def close(self) -> None:
        self.env.close()
