"""Hooks: look over the shoulder of a framework's function, for integrations whose framework offers nothing better.

The signature is checked first, so a framework that has changed is reported at once. Nothing that a hook does ever
reaches the function's caller.
"""

import inspect
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, update_wrapper, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from tracker_diag.errors import DiagError, disabled, of_a_handler

Seen: TypeAlias = Callable[[Any, Mapping[str, Any]], None]
"""What to do after a call: it is given what the function returned and its arguments by name."""

Coming: TypeAlias = Callable[[Mapping[str, Any]], object]
"""What to do before a call: it is given the arguments by name, as they are before the function changes them."""


Function: TypeAlias = Callable[..., Any]


class HasGuard(Protocol):
    """A `Monitor`, or the `Health` of what serves several."""

    def guard(self, kind: str, /) -> AbstractContextManager[None]:
        """Counts what is raised inside under `diag/health/<kind>`, and continues."""
        ...


class Unlocked:
    """A guard that holds no monitor's turn: for a hook that our own threads pass through too, and in a worker."""

    def __init__(self, record: Callable[[str, Exception], None]) -> None:
        self._record = record

    @contextmanager
    def guard(self, kind: str) -> Generator[None, None, None]:
        """Count what is raised inside, and continue."""
        try:
            yield
        except Exception as error:
            if of_a_handler(error):
                raise
            self._record(kind, error)  # whatever it is, the user's call continues


def all_off(*offs: Callable[[], None]) -> Callable[[], None]:
    """Take several hooks off, the last one first."""

    def off() -> None:
        for remove in reversed(offs):
            remove()

    return off


def when_imported(name: str, call: Callable[[Any], object]) -> None:
    """Have `call` called with the module `name`: now if it is loaded, else right after it is; never if we are off."""
    if disabled():
        return
    if name in sys.modules:
        call(sys.modules[name])
        return
    if _arrivals not in sys.meta_path:
        sys.meta_path.insert(0, _arrivals)
    _arrivals.waiting.setdefault(name, []).append(call)


class _Arrivals(MetaPathFinder):
    """Finds nothing itself; it calls those who wait for a module once it is loaded."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[Any], object]]] = {}
        self._looking: set[str] = set()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname not in self.waiting or fullname in self._looking:
            return None
        self._looking.add(fullname)
        try:
            spec = find_spec(fullname)
        finally:
            self._looking.discard(fullname)
        loader: Any = spec.loader if spec else None
        load = getattr(loader, "exec_module", None)
        if load is None:
            return None

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            for call in self.waiting.pop(fullname, ()):
                call(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without attributes: nobody hears of this module
            return None
        return spec


_arrivals = _Arrivals()


class HookError(DiagError):
    """A framework's function is missing or takes other arguments than it did in the versions that were tested."""


def after(owner: Any, name: str, parameters: Sequence[str], seen: Seen, monitor: HasGuard) -> Callable[[], None]:
    """Call `seen` after each call of `owner.name`; what the function takes and returns stays as it is.

    Args:
        owner: a module, a class or an instance. For a class, the arguments include `self`.
        parameters: names that the function must take.
        seen: must not keep tensors that belong to a graph.
        monitor: where failures of `seen` are counted, under `diag/health/integration_errors`.

    Returns:
        A function that takes the hook off again.

    Raises:
        HookError: the function is not there, or lacks one of `parameters`. A subclass's function that takes any
            arguments is accepted, if the function below it has them.
    """
    return _put(owner, name, parameters, partial(_followed, seen=seen, monitor=monitor))


def after_each(owner: Any, name: str, parameters: Sequence[str], seen: Seen, monitor: HasGuard) -> Callable[[], None]:
    """Call `seen` after each call of whatever function `owner.name(name)` gives; otherwise as `after`.

    For losses that are looked up in a registry, a user's own too.
    """

    def made(original: Function, _: inspect.Signature) -> Function:
        def looked_up(*args: Any, **kwargs: Any) -> Any:
            function = original(*args, **kwargs)
            with monitor.guard("integration_errors"):
                name = getattr(function, "__name__", type(function).__name__)  # a partial has none
                signature = _taking(name, inspect.signature(function), parameters)
                return wraps(function)(_followed(function, signature, seen, monitor))
            return function

        return looked_up

    return _put(owner, name, ("name",), made)


def _taking(place: str, signature: inspect.Signature, parameters: Sequence[str]) -> inspect.Signature:
    if lacking := [parameter for parameter in parameters if parameter not in signature.parameters]:
        raise HookError(f"{place}{signature}: takes no {', '.join(lacking)}, as the tested versions do")
    return signature


def _followed(original: Function, signature: inspect.Signature, seen: Seen, monitor: HasGuard) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with monitor.guard("integration_errors"):
            seen(result, signature.bind(*args, **kwargs).arguments)
        return result

    return call


def before(owner: Any, name: str, parameters: Sequence[str], coming: Coming, monitor: HasGuard) -> Callable[[], None]:
    """Call `coming` before each call of `owner.name`; otherwise as `after`.

    For functions that change their arguments in place, or end what is still to be written to.
    """

    def made(original: Function, signature: inspect.Signature) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            with monitor.guard("integration_errors"):
                coming(signature.bind(*args, **kwargs).arguments)
            return original(*args, **kwargs)

        return call

    return _put(owner, name, parameters, made)


def _put(
    owner: Any, name: str, parameters: Sequence[str], make: Callable[[Function, inspect.Signature], Function]
) -> Callable[[], None]:
    """Put what `make` gives in place of a function; HookError if that is not there, or lacks one of `parameters`."""
    if disabled():
        return all_off()
    place = f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
    original = getattr(owner, name, None)
    if not callable(original):
        raise HookError(f"{place}: not there, expected a function that takes {', '.join(parameters)}")
    try:
        signature = _signature(owner, name, original, parameters)
    except (ValueError, TypeError) as error:  # of something that is written in C, say
        raise HookError(f"{place}: its arguments cannot be read, {error}") from error
    return replace(owner, name, original, make(original, _taking(place, signature, parameters)))


def _signature(owner: Any, name: str, original: Function, parameters: Sequence[str]) -> inspect.Signature:
    """Of `original`; where a subclass takes whatever comes, as `(*args, **kwargs)`, of the method below it."""
    own = inspect.signature(original)
    if inspect.ismodule(owner) and inspect.ismethod(original):  # as `wandb.log` is of the run that is underway
        owner = original.__self__
    signature, is_class = own, inspect.isclass(owner)
    for kind in inspect.getmro(owner if is_class else type(owner)):
        if all(parameter in signature.parameters for parameter in parameters):
            return signature
        if not any(
            parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            for parameter in signature.parameters.values()
        ):
            break
        if inspect.isfunction(method := vars(kind).get(name)):
            signature = inspect.signature(method if is_class else method.__get__(owner))
    return signature if all(parameter in signature.parameters for parameter in parameters) else own


def replace(owner: Any, name: str, original: Function, call: Function) -> Callable[[], None]:
    """Put `call` in place of `owner.name`, which is `original`; gives a function that undoes it.

    If something else has replaced it meanwhile, that stays, and what is below then does as `original`.
    """
    own = name in vars(owner)
    on = True

    def passed(*args: Any, **kwargs: Any) -> Any:
        return (call if on else original)(*args, **kwargs)

    of_object = not (inspect.isclass(owner) or inspect.ismodule(owner))
    put: Any = OnObject(owner, name, passed, original) if of_object else update_wrapper(passed, original)

    def off() -> None:
        nonlocal on
        on = False
        if vars(owner).get(name) is put:
            if own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

    setattr(owner, name, put)
    return off


class OnObject:
    """A hook on one object alone; a copy of that object has its class's own method again."""

    def __init__(self, owner: Any, name: str, call: Function, original: Function) -> None:
        update_wrapper(self, original)  # first, as it brings all attributes of a hook that is there already
        if "__signature__" in vars(self):  # of the function below a method, with `self`; Ray writes one
            self.__signature__ = inspect.signature(original)
        self._owner, self._name, self._call = owner, name, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._name)  # where the copy has no attributes of its own yet
