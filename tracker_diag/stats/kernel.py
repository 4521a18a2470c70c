"""The compiled kernel, kernel.c: it counts and sums in one pass. Where it is missing, numpy does the same more slowly.

It is built with the wheel and loaded at import. It is called through ctypes, so it fits every Python. It starts no
thread, and other threads run while it works.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tracker_diag.stats.arrays import Array, Float64Array, IntArray, RowArray

FILE = Path(__file__).with_name("_kernel.so")
VERSION = 3
"""Of what its functions take; a file of another version is left over from an earlier build."""


class Kernel:
    """The functions of kernel.c on numpy arrays; these say what they take."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.kernel_taken.restype, library.kernel_pareto.restype = ctypes.c_int64, ctypes.c_double

    def count(
        self, values: Array, labels: Sequence[Array], counts: Sequence[RowArray], nonfinite: Sequence[IntArray]
    ) -> None:
        """Count `values` (n,) into partitions, each with the row of every value: as `Tally.count`."""
        given = np.ascontiguousarray(values, np.float32)
        rows = [np.ascontiguousarray(label, np.int32) for label in labels]
        sizes = np.array([len(part) for part in nonfinite])
        self._library.kernel_count(
            _at(given), ctypes.c_int64(given.size), len(rows), _all_at(rows), _at(sizes), _all_at(counts),
            _all_at(nonfinite),
        )  # fmt: skip

    def fold(
        self, pair: Sequence[Array], segments: Sequence[IntArray], rows: Sequence[RowArray],
        counted: tuple[Sequence[RowArray], Sequence[IntArray]], summed: tuple[Float64Array, Float64Array],
        *, from_numerator: bool,
    ) -> None:  # fmt: skip
        """Count and sum up the log-ratios of segments: as `Sums.include`.

        Args:
            pair: new and old log-probabilities, (N,) each.
            segments: begin, end, context and sequence, (q,) int64 each.
            rows: int32 of each partition, (q,) or (N,).
            counted: counts and nonfinite of each partition, to be added to.
            summed: (contexts, 7) sums of weights and (contexts, sequences) sums of r, to be added to.
        """
        (given, wide), (counts, nonfinite) = _contiguous(pair), counted
        sizes = np.array([len(part) for part in nonfinite])
        by_token = np.array([len(part) != len(segments[0]) for part in rows], np.uint8)
        self._library.kernel_fold(
            *map(_at, given), wide, from_numerator, ctypes.c_int64(len(segments[0])), *map(_at, segments),
            ctypes.c_int64(summed[1].shape[1]), len(rows), _all_at(rows), _at(by_token), _at(sizes), _all_at(counts),
            _all_at(nonfinite), *map(_at, summed),
        )  # fmt: skip

    def pulls(
        self, pair: Sequence[Array], segments: Sequence[IntArray], share: Float64Array,
        multiplied: tuple[Array, Array | None], *, limits: tuple[float, float, float], sums: Float64Array,
    ) -> None:  # fmt: skip
        """Add the `gradient_sums` of segments to `sums` (contexts, 13).

        Args:
            pair, segments: as in `fold`.
            share: (q,) 1 over the number of model tokens of each segment's sequence.
            multiplied: advantages (N,), and what they are multiplied by, if anything.
            limits: log-ratios at which clipping begins, below and above, and beyond which a weight grows no more.
        """
        (given, wide), (begin, end, context, _) = _contiguous(pair), segments
        by = [None if part is None else np.ascontiguousarray(part, np.float64) for part in (share, *multiplied)]
        self._library.kernel_pulls(
            *map(_at, given), wide, ctypes.c_int64(len(begin)), *map(_at, (begin, end, context)),
            *(None if part is None else _at(part) for part in by), *map(ctypes.c_double, limits), _at(sums),
        )  # fmt: skip

    def applied(
        self, pair: Sequence[Array], segments: Sequence[IntArray], applied: Array, *,
        limits: tuple[float, float], sums: Float64Array,
    ) -> None:  # fmt: skip
        """Add the `applied_sums` of segments to `sums` (contexts, 5).

        Args:
            pair, segments: as in `fold`.
            applied: (N,) weights as the optimiser used them.
            limits: how far, relative, from exp r a weight is modified, and the log-ratio beyond which exp r is not
                taken.
        """
        (given, wide), (begin, end, context, _) = _contiguous(pair), segments
        weights = np.ascontiguousarray(applied, np.float64)
        self._library.kernel_applied(
            *map(_at, given), wide, ctypes.c_int64(len(begin)), *map(_at, (begin, end, context)), _at(weights),
            *map(ctypes.c_double, limits), _at(sums),
        )  # fmt: skip

    def add_cells(self, into: IntArray, index: IntArray, count: IntArray, sign: int) -> None:
        """Add `sign` times each `count` to `into`, flattened, at its `index`."""
        self._library.kernel_add(_at(into), ctypes.c_int64(len(index)), _at(index), _at(count), ctypes.c_int64(sign))

    def taken(self, counts: RowArray) -> tuple[IntArray, IntArray]:
        """The cells of `counts` that are not 0, as `sparse` gives them; there is 0 afterwards."""
        index, count = np.empty(counts.size + 1, np.int64), np.empty(counts.size + 1, np.int64)
        taken = self._library.kernel_taken(_at(counts), ctypes.c_int64(counts.size), _at(index), _at(count))
        return index[:taken].copy(), count[:taken].copy()

    def pareto(self, counts: IntArray, size: int, starts: Float64Array, ends: Float64Array) -> float:
        """k̂ of the `size` largest weights, from a sketch (2, 4098) whose cells are from `starts` to `ends`."""
        above, below = (np.ascontiguousarray(part, np.int64) for part in counts)
        room = np.empty(6 * size + 200)
        given = map(_at, (starts, ends, room))
        return float(self._library.kernel_pareto(_at(above), _at(below), ctypes.c_int64(size), *given))


def _contiguous(pair: Sequence[Array]) -> tuple[list[Array], bool]:
    """Both log-probabilities of a pair in one dtype, and whether that is float64."""
    wide = np.float64 in (pair[0].dtype, pair[1].dtype)
    return [np.ascontiguousarray(part, np.float64 if wide else np.float32) for part in pair], wide


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _all_at(arrays: Sequence[Array]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


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
