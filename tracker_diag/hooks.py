"""Hooks: look over the shoulder of a framework's function, for integrations whose framework offers nothing better.

The signature is checked first, so that a framework that has changed is told at once, and nothing that a hook
does ever reaches the function's caller.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias

from tracker_diag.errors import DiagError
from tracker_diag.monitor import Monitor

Seen: TypeAlias = Callable[[Any, Mapping[str, Any]], None]
"""What to do after a call: it is given what the function returned and its arguments by name."""


class HookError(DiagError):
    """A framework's function is missing or takes other arguments than it did in the versions that were tested."""


def after(owner: Any, name: str, parameters: Sequence[str], seen: Seen, monitor: Monitor) -> Callable[[], None]:
    """Call `seen` after each call of `owner.name`; what the function takes and returns stays as it is.

    Args:
        owner: a module, a class or an instance. For a class, the arguments include `self`.
        parameters: names that the function must take.
        seen: must not keep tensors that belong to a graph.
        monitor: where failures of `seen` are counted, under `diag/health/integration_errors`.

    Returns:
        A function that takes the hook off again.

    Raises:
        HookError: the function is not there, or lacks one of `parameters`.
    """
    place = f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
    original = getattr(owner, name, None)
    if not callable(original):
        raise HookError(f"{place}: not there, expected a function that takes {', '.join(parameters)}")
    signature = inspect.signature(original)
    if lacking := [parameter for parameter in parameters if parameter not in signature.parameters]:
        raise HookError(f"{place}{signature}: takes no {', '.join(lacking)}, as the tested versions do")
    own = name in vars(owner)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with monitor.guard("integration_errors"):
            seen(result, signature.bind(*args, **kwargs).arguments)
        return result

    def off() -> None:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)

    setattr(owner, name, call)
    return off
