"""Once: a property that is computed once for each object."""

from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property

    once = cached_property
else:

    class once:  # noqa: N801  # it is written as `property` is
        """As `functools.cached_property`, without the lock that this has up to Python 3.11.

        That one is of the class: a fork that is made while another thread computes any object's value waits for ever.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self._compute = compute
            update_wrapper(self, compute)

        def __get__(self, instance: object | None, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._compute.__name__] = self._compute(instance)  # from now on found there
            return value
