"""The environment: what its steps give, whether episodes end, whether a seed repeats them, whether an expert wins.

What a Gymnasium environment must be, `checkers` asks the checkers that there are for it; they see a few steps. Here are
the checks that need whole episodes. They play an environment of any other kind as well.
"""

import inspect
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tracker_diag.preflight import checkers, expert
from tracker_diag.preflight.check import Check, failed, judged, passed, unchecked
from tracker_diag.preflight.limits import Broken, within
from tracker_diag.preflight.openenv import adapted
from tracker_diag.report.console import cut

Act: TypeAlias = Callable[[Any], Any]
"""From an observation to an action."""

EPISODES = 5
LONGEST = 1000
"""Steps after which an episode is given up, so that an endless one does not stop all others."""
REPEATED = 50
"""Steps over which a seed is to give the same."""

LARGE = 100.0
"""Size of a number that a network should not be given as it is, nor give out: a choice."""

STEPS, SCALE, ENDS, SEEDS = "env_steps", "env_scale", "env_ends", "env_seeds"
NAMES = (checkers.NAME, STEPS, SCALE, ENDS, SEEDS, expert.NAME)

ARGUMENTS = ("env", "seconds", "episodes", "policy", "random_policy")
GIVE = "give env=..., a Gymnasium environment, one with reset and step, or what makes one"
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
    """The largest absolute number among observations that are vectors of floats."""


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
        env = adapted(env)
        if missing := [name for name in ("reset", "step") if not callable(getattr(env, name, None))]:
            reason = f"{type(env).__name__} has no {' and no '.join(missing)}"
            raise Broken(reason, "give an environment with reset() and step(action)")
        yield self._checkers(env)
        act = self.random_policy or within(self.seconds, lambda: random_of(env), lambda: "its action_space")
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
        yield _seeds(env, act, self.seconds)
        if self.policy is None:
            yield unchecked(expert.NAME, "policy not given", expert.GIVE)
        elif ends.status == "fail":
            yield unchecked(expert.NAME, f"{ENDS} failed", f"fix {ENDS} first")
        else:
            at_random = self._play(env, act, self.episodes, "at random: ").returns
            by_policy = self._play(env, self.policy, self.episodes, "by the policy: ").returns
            self.returns += [*at_random, *by_policy]
            yield expert.beats(np.array(at_random), np.array(by_policy))
        if made_here and hasattr(env, "close"):
            with suppress(Broken):
                within(self.seconds, env.close, lambda: "close")

    def _checkers(self, env: Any) -> Check:
        try:
            return checkers.checkers_check(env, self.seconds)
        except Broken as broken:
            if broken.hangs:
                raise
            return failed(checkers.NAME, broken.reason, broken.do)

    def _play(self, env: Any, act: Act, episodes: int, who: str = "") -> Played:
        """`episodes`, each from a seed of its own, or as many as there is time for."""
        played = Played()
        until = time.monotonic() + self.seconds

        def play() -> None:
            for episode in range(episodes):
                total = 0.0
                for _, reward, over in _episode(env, act, episode, LONGEST, played):
                    total += reward
                    played.ended += over
                    if time.monotonic() > until:
                        played.returns += [total] if over else []
                        return
                played.returns.append(total)

        within(self.seconds + 1, play, lambda: who + played.underway, CONTRACT)
        return played


def random_of(env: Any) -> Act | None:
    """Draws from the action space of `env`, from the same seed each time; None if it has none."""
    space = getattr(env, "action_space", None)
    if space is None:
        return None
    space.seed(0)
    return lambda _: space.sample()


def _episode(env: Any, act: Act, seed: int, most: int, played: Played) -> Iterator[tuple[Any, float, bool]]:
    """Observation, reward and whether the episode is over, of reset and each step of it."""
    played.underway = f"reset of episode {seed}"
    observation, _ = env.reset(seed=seed) if _takes_seed(env) else env.reset()
    _look_at(env, observation, played)
    yield observation, 0.0, False
    for step in range(most):
        played.underway = f"the policy at step {step} of episode {seed}"
        action = act(observation)
        played.underway = f"step {step} of episode {seed}"
        observation, reward, terminated, truncated, _ = env.step(action)
        if not math.isfinite(reward):
            do = "find where it is made: a division by zero, a log of 0, an empty mean"
            raise Broken(f"{played.underway} gave the reward {reward}", do)
        _look_at(env, observation, played)
        played.steps += 1
        over = bool(terminated or truncated)
        yield observation, float(reward), over
        if over:
            return


def _look_at(env: Any, observation: Any, played: Played) -> None:
    """Raise Broken if an observation is outside the environment's own space, or is not finite."""
    space = getattr(env, "observation_space", None)
    if space is not None and not space.contains(observation):
        raise Broken(
            f"an observation is outside observation_space {cut(str(space), 60)}: {cut(repr(observation), 80)}",
            "normalise the observation, or give the space the shape, dtype and limits that observations have",
        )
    if observation is None or (isinstance(observation, np.ndarray | float) and not np.isfinite(observation).all()):
        raise Broken("an observation is None, NaN or infinite", "find which sensor or feature it comes from")
    if isinstance(observation, np.ndarray) and observation.dtype.kind == "f" and observation.size:
        played.largest = max(played.largest, float(np.abs(observation).max()))


def _scale(env: Any, played: Played) -> Check:
    """Whether observations have a size that networks take, and continuous actions one that they give."""
    high = getattr(getattr(env, "action_space", None), "high", None)
    low = getattr(getattr(env, "action_space", None), "low", None)
    bound = 0.0 if high is None or low is None else float(max(np.abs(high).max(), np.abs(low).max()))
    reason = f"the largest number in an observation is {played.largest:.3g}, in an action {bound:.3g}"
    observe = "normalise observations: VecNormalize of Stable-Baselines3, or NormalizeObservation of Gymnasium"
    act = "let actions be from -1 to 1 and scale them within the environment, as RescaleAction of Gymnasium does"
    flaws = [(played.largest > LARGE, reason, observe), (bound > LARGE, reason, act)]
    return judged(SCALE, reason, flaws, observation=played.largest, action=bound)


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

    def kept(observation: Any) -> Any:
        actions.append(act(observation))
        return actions[-1]

    def both() -> int | None:
        first = list(_episode(env, kept, 7, REPEATED, played))
        again = iter([*actions])
        second = list(_episode(env, lambda _: next(again), 7, len(actions), played))
        differs = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if not _same(a, b))
        return next(differs, None if len(first) == len(second) else min(len(first), len(second)))

    differs = within(seconds, both, lambda: played.underway)
    if differs is not None:
        return failed(
            SEEDS,
            f"two episodes from one seed with the same actions differ from step {differs} on",
            "draw every random number from self.np_random, which reset(seed=...) seeds; no global generator, no clock",
        )
    return passed(SEEDS, f"a seed gives the same {len(actions)} steps twice")


def _same(a: Any, b: Any) -> bool:
    """Whether two observations, nested as they may be, are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    x, y = np.asarray(a), np.asarray(b)
    return bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f" and y.dtype.kind == "f"))


def _takes_seed(env: Any) -> bool:
    try:
        parameters = inspect.signature(env.reset).parameters.values()
    except (TypeError, ValueError):  # compiled code has no signature
        return False
    return any(taken.name == "seed" or taken.kind is inspect.Parameter.VAR_KEYWORD for taken in parameters)
