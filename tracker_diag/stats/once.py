"""Once: a property that is computed once for each object."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, TypeVar, overload

ValueT = TypeVar("ValueT")


class once(Generic[ValueT]):  # noqa: N801  # it is written as `property` is
    """As `functools.cached_property`, without the lock that this has up to Python 3.11.

    That one is of the class: a fork that is made while another thread computes any object's value waits for ever.
    """

    def __init__(self, compute: Callable[[Any], ValueT]) -> None:
        self._compute = compute
        update_wrapper(self, compute)  # type: ignore[arg-type]

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> "once[ValueT]": ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> ValueT: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> "once[ValueT] | ValueT":
        if instance is None:
            return self
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # from now on found there
        return value
