"""What the checkers of Gymnasium and Stable-Baselines3 say of an environment."""

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from rich.text import Text

from tracker_diag.preflight.check import Check, passed, unchecked
from tracker_diag.preflight.limits import within
from tracker_diag.report.console import cut
from tracker_diag.trackers.tracker import is_a

NAME = "env_api"

SPACES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")
"""Spaces, or parts of a Dict, that Stable-Baselines3 has policies for. It refuses others that are no mistakes."""

DO = "change reset, step or the spaces as it says: https://gymnasium.farama.org/api/env/"


def checkers_check(env: Any, seconds: float) -> Check:
    """Passes with all that the checkers advise.

    Raises:
        Broken: a checker refuses the environment, or does not return in time.
    """
    if not is_a(env, "gymnasium", "Env"):
        return unchecked(NAME, "no Gymnasium environment", "give one that derives from gymnasium.Env, for its checker")
    noted = {name: _advice(name, check, seconds) for name, check in _checkers(env.unwrapped)}
    advice = list(dict.fromkeys(note for notes in noted.values() for note in notes))
    reason = f"check_env of {' and '.join(noted)}: nothing wrong"
    return passed(NAME, reason + (f"; advice: {cut(' '.join(advice), 600)}" if advice else ""), notes=len(advice))


def _advice(name: str, check: Callable[[], None], seconds: float) -> list[str]:
    """What a checker warns of."""
    with warnings.catch_warnings(record=True) as notes:  # in this thread: the other may never leave it
        warnings.simplefilter("always")
        within(seconds, check, lambda: f"{name}'s check_env", DO)
    return [_text(note.message) for note in notes if issubclass(note.category, UserWarning)]


def _checkers(env: Any) -> Iterator[tuple[str, Callable[[], None]]]:
    from gymnasium.utils import env_checker

    yield "Gymnasium", lambda: env_checker.check_env(env, skip_render_check=True, skip_close_check=True)
    if find_spec("stable_baselines3") and all(map(_is_known, (env.observation_space, env.action_space))):
        from stable_baselines3.common.env_checker import check_env

        yield "Stable-Baselines3", lambda: check_env(env)


def _is_known(space: Any) -> bool:
    """Whether Stable-Baselines3 has policies for a space."""
    if is_a(space, "gymnasium.spaces", "Dict"):
        return all(is_a(part, "gymnasium.spaces", *SPACES) for part in space.spaces.values())
    return is_a(space, "gymnasium.spaces", *SPACES)


def _text(message: object) -> str:
    """A message in one line without colors."""
    return " ".join(Text.from_ansi(str(message)).plain.removeprefix("WARN: ").split())
