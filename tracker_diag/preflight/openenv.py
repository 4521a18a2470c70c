"""An environment of OpenEnv, whose `reset` and `step` give one object, played as one of Gymnasium."""

from typing import Any


class AsGymnasium:
    """`env` with the returns of Gymnasium: an observation of OpenEnv, or a client's result, has `reward` and `done`."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        return _observation(self.env.reset(**given)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        return _observation(result), float(result.reward or 0.0), bool(result.done), False, {}

    def close(self) -> None:
        self.env.close()


def adapted(env: Any) -> Any:
    """`env` itself, or if its class is of OpenEnv, as one of Gymnasium."""
    ours = any(kind.__module__.partition(".")[0] in {"openenv", "openenv_core"} for kind in type(env).__mro__)
    return AsGymnasium(env) if ours else env


def _observation(result: Any) -> Any:
    return getattr(result, "observation", result)
