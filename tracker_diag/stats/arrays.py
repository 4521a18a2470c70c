"""The array types that the whole package speaks, and where an array lives."""

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Float64Array: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
RowArray: TypeAlias = npt.NDArray[np.int32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

Array: TypeAlias = Any
"""A numpy array, or a torch tensor on a device; torch is optional, so its type cannot stand here.

Code on such arrays uses only what both libraries spell alike, and on a device what never waits.
"""


def on_device(value: Array) -> bool:
    """Whether `value` is a torch tensor that does not lie in the host's memory."""
    return hasattr(value, "detach") and value.device.type != "cpu"


def starts_of(values: Array) -> IntArray:
    """Where a run of the same value begins, of `values` (n,) on the host."""
    new = np.empty(len(values), np.bool_)
    new[:1] = True
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return np.flatnonzero(new)


def namespace(value: Array) -> Any:
    """Numpy or torch, whichever `value` belongs to."""
    return sys.modules["torch"] if hasattr(value, "detach") else np


def float64(values: Array) -> Array:
    """`values` in double precision, where they are."""
    return values.astype(np.float64, copy=False) if isinstance(values, np.ndarray) else values.double()


def stacked(parts: Sequence[Array]) -> Array:
    """`parts` of one shape along a new first axis; of numpy in a tenth of the time of its `stack`."""
    xp = namespace(parts[0])
    return np.array(parts) if xp is np else xp.stack(parts)
