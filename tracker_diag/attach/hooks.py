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

Coming: TypeAlias = Callable[[Mapping[str, Any]], None]
"""What to do before a call: it is given the arguments by name, as they are before the function changes them."""


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
    original, signature = _checked(owner, name, parameters)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with monitor.guard("integration_errors"):
            seen(result, signature.bind(*args, **kwargs).arguments)
        return result

    return _replace(owner, name, original, call)


def before(owner: Any, name: str, parameters: Sequence[str], coming: Coming, monitor: Monitor) -> Callable[[], None]:
    """Call `coming` before each call of `owner.name`; otherwise as `after`.

    For functions that change their arguments in place, or end what is still to be written to.
    """
    original, signature = _checked(owner, name, parameters)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with monitor.guard("integration_errors"):
            coming(signature.bind(*args, **kwargs).arguments)
        return original(*args, **kwargs)

    return _replace(owner, name, original, call)


def _checked(owner: Any, name: str, parameters: Sequence[str]) -> tuple[Callable[..., Any], inspect.Signature]:
    """The function and its signature; HookError if it is not there, or lacks one of `parameters`."""
    place = f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
    original = getattr(owner, name, None)
    if not callable(original):
        raise HookError(f"{place}: not there, expected a function that takes {', '.join(parameters)}")
    signature = inspect.signature(original)
    if lacking := [parameter for parameter in parameters if parameter not in signature.parameters]:
        raise HookError(f"{place}{signature}: takes no {', '.join(lacking)}, as the tested versions do")
    return original, signature


def _replace(owner: Any, name: str, original: Callable[..., Any], call: Callable[..., Any]) -> Callable[[], None]:
    """Put `call` in place of `original`; gives a function that undoes it."""
    own = name in vars(owner)

    def off() -> None:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)

    setattr(owner, name, call)
    return off
