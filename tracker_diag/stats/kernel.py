"""The compiled kernel, kernel.c: it counts and sums in one pass. Where it is missing, numpy does the same more slowly.

It is built with the wheel and loaded at import. It is called through ctypes, so it fits every Python. It starts no
thread, and other threads run while it works.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tracker_diag.stats.arrays import Array

FILE = Path(__file__).with_name("_kernel.so")
VERSION = 4
"""Of what its functions take; a file of another version is left over from an earlier build."""

_AT, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
_PAIR = (_AT, _AT, _INT)
_SEGMENTS = (_LONG, _AT, _AT, _AT)
_TAKES: dict[str, tuple[Any, ...]] = {
    "count": (_AT, _LONG, _INT, _AT, _AT, _AT, _AT),
    "fold": (*_PAIR, _INT, *_SEGMENTS, _AT, _LONG, _INT, _AT, _AT, _AT, _AT, _AT, _AT, _AT),
    "pulls": (*_PAIR, *_SEGMENTS, _AT, _AT, _AT, _FLOAT, _FLOAT, _FLOAT, _AT),
    "applied": (*_PAIR, *_SEGMENTS, _AT, _FLOAT, _FLOAT, _AT),
    "add": (_AT, _LONG, _AT, _AT, _LONG),
    "taken": (_AT, _LONG, _AT, _AT),
    "without_each": (_AT, _LONG, _LONG, _LONG, _LONG, _AT, _FLOAT, _AT),
    "pareto": (_AT, _AT, _LONG, _AT, _AT, _AT),
}
"""The arguments of each function; kernel.c says what they are."""

Given: TypeAlias = Array | Sequence[Array] | float | None


class Kernel:
    """The functions of kernel.c, called by their names with numpy arrays, sequences of arrays, and numbers."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = {name: getattr(library, f"kernel_{name}") for name in _TAKES}
        for name, function in self._functions.items():
            function.argtypes, function.restype = _TAKES[name], None
        for name, gives in (("taken", _LONG), ("without_each", _LONG), ("pareto", _FLOAT)):
            self._functions[name].restype = gives

    def call(self, name: str, *given: Given) -> Any:
        """What the function `name` returns; every array has the dtype and the layout that kernel.c says."""
        return self._functions[name](*map(_at, given))


_Start = ctypes.c_char * 0
"""Where an array begins; it is found in a third of the time that `ctypes.data` takes."""


def _at(given: Given) -> Any:
    if isinstance(given, np.ndarray):
        return _Start.from_buffer(given.data) if given.flags.carray else given.ctypes.data
    if isinstance(given, list | tuple):
        return (ctypes.c_void_p * len(given))(*(array.ctypes.data for array in given))
    return given


def _loaded() -> Kernel | None:
    try:
        library = ctypes.CDLL(str(FILE))
    except OSError:  # built without a compiler, or for another machine
        return None
    return Kernel(library) if library.kernel_version() == VERSION else None


KERNEL = _loaded()
"""None where numpy does its work."""


def kernel() -> Kernel | None:
    """The compiled kernel, where there is one."""
    return KERNEL
