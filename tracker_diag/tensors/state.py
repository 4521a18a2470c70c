"""Arrays in saved state: text that any checkpoint format and any JSON can hold, exact, and never code."""

import base64
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_diag.errors import StateError
from tracker_diag.stats.arrays import IntArray

_KINDS = {"i": np.int64, "f": np.float64}


def pack(array: npt.NDArray[Any]) -> str:
    """An int64 or float64 array of any shape, as `i:2,3:<zlib, base64>`."""
    kind = "i" if array.dtype.kind == "i" else "f"
    raw = np.ascontiguousarray(array, _KINDS[kind]).tobytes()
    shape = ",".join(map(str, array.shape))
    return f"{kind}:{shape}:{base64.b64encode(zlib.compress(raw, 1)).decode()}"


def unpack(text: object) -> npt.NDArray[Any]:
    """The inverse of `pack`; StateError where `text` is not of its making."""
    try:
        kind, shape, data = str(text).split(":")
        raw = zlib.decompress(base64.b64decode(data, validate=True))
        sizes = tuple(int(size) for size in shape.split(",") if size)
        return np.frombuffer(raw, _KINDS[kind]).reshape(sizes).copy()
    except (ValueError, KeyError, zlib.error) as error:
        raise StateError(f"array: {str(text)[:40]!r} given, expected what `pack` makes") from error


def sparse(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Index and value of the cells of `counts`, flattened, that are not 0."""
    flat = counts.reshape(-1)
    index = np.flatnonzero(flat != 0)
    return index, flat[index]


def merged(one: tuple[IntArray, IntArray], two: tuple[IntArray, IntArray]) -> tuple[IntArray, IntArray]:
    """The sum of two arrays of one shape, all three as `sparse` gives them."""
    index, place = np.unique(np.concatenate((one[0], two[0])), return_inverse=True)
    counts = np.zeros(len(index), np.int64)
    np.add.at(counts, place, np.concatenate((one[1], two[1])))
    return index, counts


def add_sparse(into: IntArray, cells: tuple[IntArray, IntArray], sign: int = 1) -> None:
    """Add `cells` of `sparse` to `into`, in place; each index occurs once."""
    into.reshape(-1)[cells[0]] += sign * cells[1]
