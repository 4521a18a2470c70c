"""Stand-ins for libraries that a framework imports and no check reaches: kernels of GPUs, engines, other trackers.

A plugin of pytest, for a process of its own: each library in the variable STAND_INS can be imported, and has every
attribute. Whatever a check does reach is real.
"""

import os
import sys
import typing
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import typing_extensions
from pydantic_core import core_schema


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (_Nothing,), {})

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class _Nothing(metaclass=_Anything):
    """Any name of such a library: a base class, a type of an annotation, or a decorator that changes nothing."""

    def __new__(cls, *given, **named):
        return given[0] if len(given) == 1 and callable(given[0]) and not named else super().__new__(cls)

    def __init__(self, *given, **named):
        pass

    @classmethod
    def __get_pydantic_core_schema__(cls, *_):
        return core_schema.any_schema()


class _Library(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (_Nothing,), {})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        ours = any(name == item or name.startswith(f"{item}.") for item in self.names)
        return ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec):
        return _Library(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder(os.environ["STAND_INS"].split()))
typing.TypedDict = typing_extensions.TypedDict  # before Python 3.12 pydantic takes no other, and SkyRL gives it one
