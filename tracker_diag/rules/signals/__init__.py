"""The kinds of signals. A new kind is one file with one class in this folder. Nothing else has to change."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, TypeAlias, Union

from pydantic import BeforeValidator, Field

from tracker_diag.rules.signals.base import KINDS, SHORT, Signal, from_short

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

if TYPE_CHECKING:
    AnySignal: TypeAlias = Signal
else:
    AnySignal = Annotated[
        Annotated[Union[tuple(KINDS.values())], Field(discriminator="kind")],  # noqa: UP007  # made of a list
        BeforeValidator(from_short),
        SHORT,
    ]
