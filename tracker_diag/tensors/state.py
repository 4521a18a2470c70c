"""Arrays in saved state: text that any checkpoint format and any JSON can hold, exact, and never code."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracker_diag.errors import SourceError
from tracker_diag.stats.cells import Cells
from tracker_diag.stats.histogram import BINS

_KINDS = {"i": np.int64, "f": np.float64}


def pack(array: npt.NDArray[Any]) -> str:
    """An int64 or float64 array of any shape, as `i:2,3:<zlib, base64>`."""
    kind = "i" if array.dtype.kind == "i" else "f"
    raw = np.ascontiguousarray(array, _KINDS[kind]).tobytes()
    shape = ",".join(map(str, array.shape))
    return f"{kind}:{shape}:{base64.b64encode(zlib.compress(raw, 1)).decode()}"


def unpack(text: object) -> npt.NDArray[Any]:
    """The inverse of `pack`; SourceError where `text` is not of its making."""
    try:
        kind, shape, data = str(text).split(":")
        raw = zlib.decompress(base64.b64decode(data, validate=True))
        sizes = tuple(int(size) for size in shape.split(",") if size)
        return np.frombuffer(raw, _KINDS[kind]).reshape(sizes).copy()
    except (ValueError, KeyError, zlib.error) as error:
        raise SourceError(f"array: {str(text)[:40]!r} given, expected what `pack` makes") from error


def pack_cells(cells: Cells) -> list[str]:
    """The two arrays of `cells`."""
    return [pack(part) for part in cells]


def unpack_cells(packed: Sequence[object], rows: int) -> Cells:
    """The inverse of `pack_cells`; SourceError where they are not cells of so many rows (rows, 2, 4098)."""
    index, count = (unpack(part) for part in packed)
    if index.shape != count.shape or (len(index) and (index.min() < 0 or index.max() >= rows * 2 * BINS)):
        raise SourceError(f"cells: {len(index)} of {rows} rows given, expected indices within them")
    return index, count
