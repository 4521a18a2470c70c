"""The sketch: a signed log-linear histogram keyed by the bits of a float32.

For values in [2^-24, 2^8), a quantile is within 1/257 (0.39 %) of the order statistic. Its rank is floor(q(n − 1)).
Counts are integers. So merging over micro-batches, ranks and steps is addition, exact in any order. It follows
HdrHistogram and the interpolated DDSketch (Masson, Rim, Lee, VLDB 2019, §2.2). Its range is fixed, 32 octaves, so no
bins are ever merged.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tracker_diag.stats.arrays import Float64Array, FloatArray, IntArray, RowArray
from tracker_diag.stats.cells import Cells, add_sparse, counted, merged, sparse, summed
from tracker_diag.stats.kernel import kernel

MANTISSA_BITS = 7
LOWEST, HIGHEST = -24, 8
"""Octaves: values from 2^-24 up to, not with, 2^8 have bins of their own."""

_BASE = ((LOWEST + 127) << MANTISSA_BITS) - 1
BINS = ((HIGHEST - LOWEST) << MANTISSA_BITS) + 2
"""4,098: one for |x| < 2^-24, 4,096 inside the range, one for |x| ≥ 2^8."""

_CHUNK = 1 << 18  # temporaries stay in the cache; smaller chunks lose to the cost of a call
FEW = 1 << 13  # values that are sorted in less time than it takes to look through the counts of a partition
_DEVICE_CHUNK = 1 << 22  # bounds the temporaries; a device wants few large calls


_OCTAVE, _PART = np.divmod(np.arange(BINS - 1), 1 << MANTISSA_BITS)
EDGES: Float64Array = np.ldexp(1 + _PART / (1 << MANTISSA_BITS), LOWEST + _OCTAVE)
"""(4097,) float64: bin i, 1 ≤ i ≤ 4096, is [EDGES[i − 1], EDGES[i])."""

QUANTILE_VALUES = np.concatenate([[0.0], 2 * EDGES[:-1] * EDGES[1:] / (EDGES[:-1] + EDGES[1:]), EDGES[-1:]])
"""(4098,) the value a quantile in bin i is answered with: the harmonic mean of its edges, whose
relative error is at most (b − a)/(a + b) ≤ 1/257. The last bin means "at least 256"."""


class Sketch:
    """Counts by row of a partition. `+` merges two, exactly and in any order.

    On the host, in numpy arrays, it keeps the cells that are not 0, as most are; on a device all counts, in torch's.
    """

    cells: Cells
    """Those of `counts` that are not 0; on the host alone."""
    nonfinite: Any
    """(rows,) int64: NaN and inf, counted separately so that they never look like a large ratio."""

    def __init__(self, counts: Any, nonfinite: Any) -> None:
        self.nonfinite, self._on_device = nonfinite, None
        if isinstance(counts, tuple):
            self.cells = counts
        elif isinstance(counts, np.ndarray):
            self.cells = sparse(counts)
        else:
            self._on_device = counts

    @property
    def counts(self) -> Any:
        """(rows, 2, 4098) int64: by row, by sign (0: x ≥ 0, 1: x < 0), by bin of |x|; finite values only."""
        if self._on_device is not None:
            return self._on_device
        counts = np.zeros((len(self.nonfinite), 2, BINS), np.int64)
        add_sparse(counts, self.cells)
        return counts

    def moved(self, to: IntArray, rows: int) -> "Sketch":
        """The counts of each row in that row of `rows` which `to` (rows of this one,) says; on the host."""
        row, bin = np.divmod(self.cells[0], 2 * BINS)
        nonfinite = np.zeros(rows, np.int64)
        np.add.at(nonfinite, to, self.nonfinite)
        return Sketch(summed(to[row] * (2 * BINS) + bin, self.cells[1]), nonfinite)

    def __add__(self, other: "Sketch") -> "Sketch":
        nonfinite = self.nonfinite + other.nonfinite
        if self._on_device is not None:
            return Sketch(self.counts + other.counts, nonfinite)
        return Sketch(merged(self.cells, other.cells), nonfinite)


def sketch(values: Any, labels: Sequence[Any], sizes: Sequence[int]) -> list[Sketch]:
    """Count `values` (N,) into one sketch per partition, all in one pass over them.

    Args:
        values: (N,) floats of numpy, or of torch on any device, where the sketches are made and stay. float64
            is rounded to float32 first, at most 2^-24 relative; bfloat16 and float16 are exact.
        labels: for each partition an (N,) int32 array next to `values`: the row of each value there. It is the
            partition's size for a value in none of its rows.
        sizes: how many rows each partition has.

    On the device nothing waits for the host: no shape depends on the data.
    """
    if isinstance(values, np.ndarray):
        tally = Tally(sizes)
        tally.count(values, labels)
        return tally.sketches()
    # One row more than asked for takes what is masked, so that no shape depends on the data.
    starts = [0, *accumulate(size + 1 for size in sizes)]
    counts, nonfinite = _count_device(values, labels, starts)
    counts = counts.reshape(-1, 2, BINS)
    return [Sketch(counts[a : a + n], nonfinite[a : a + n]) for a, n in zip(starts, sizes, strict=False)]


class Tally:
    """The same of values that come in parts, on the host, fewer than 2^31 of them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._whole: RowArray | None = None
        self._few: list[list[Sketch]] = []
        self.nonfinite = [np.zeros(size, np.int64) for size in sizes]
        """Of each partition (size,), to be added to."""

    @property
    def counts(self) -> list[RowArray]:
        """Of each partition ((size + 1) × 2 × 4098,), to be added to; the last row, of what has none, is not read."""
        ends = [0, *accumulate((size + 1) * 2 * BINS for size in self._sizes)]
        if self._whole is None:
            self._whole = _zeros(ends[-1])
        return [self._whole[start:end] for start, end in pairwise(ends)]

    def count(self, values: Any, labels: Sequence[Any]) -> None:
        """Count `values` (n,) into the rows `labels`, as `sketch` does."""
        if values.size <= FEW:
            self._few.append(_sort_host(values, labels, self._sizes))
        elif compiled := kernel():
            with np.errstate(over="ignore"):  # beyond float32: inf, which is counted separately
                given = np.ascontiguousarray(values, np.float32)
            rows = [np.ascontiguousarray(label, np.int32) for label in labels]
            sizes = np.array(self._sizes)
            compiled.call("count", given, given.size, len(rows), rows, sizes, self.counts, self.nonfinite)
        else:
            _count_host(values, labels, self.counts, self.nonfinite)

    def sketches(self) -> list[Sketch]:
        """What was counted; nothing more can be."""
        sketches = self._few.pop() if self._whole is None and self._few else self._taken()
        for few in self._few:
            sketches = [counted + more for counted, more in zip(sketches, few, strict=True)]
        return sketches

    def _taken(self) -> list[Sketch]:
        """What is in `counts`, which are left for the next tallies, all 0."""
        sketches: list[Sketch] = []
        compiled = kernel()
        for counts, nonfinite in zip(self.counts, self.nonfinite, strict=True):
            rows = counts[: len(nonfinite) * 2 * BINS]
            if compiled:
                index, count = np.empty(rows.size + 1, np.int64), np.empty(rows.size + 1, np.int64)
                taken = compiled.call("taken", rows, rows.size, index, count)
                index.resize(taken, refcheck=False)  # in place: copies take a third as long as the search
                count.resize(taken, refcheck=False)
                cells = index, count
            else:
                cells = sparse(rows)
                rows[cells[0]] = 0
            counts[rows.size :] = 0
            sketches.append(Sketch(cells, nonfinite))
        if self._whole is not None and len(_spare) < _SPARE:
            _spare.append(self._whole)
        return sketches


def _zeros(n: int) -> RowArray:
    try:  # another thread may take them meanwhile
        spare = _spare.pop()
    except IndexError:
        return np.zeros(n, np.int32)
    return spare if spare.size == n else np.zeros(n, np.int32)


_SPARE = 3
_spare: list[RowArray] = []
"""Counts that are all 0, for the next tallies: fresh ones of some MB cost thousands of page faults a batch."""


def _cells(
    values: Any, labels: Sequence[Any], nonfinite: Sequence[IntArray], room: RowArray
) -> Iterator[tuple[RowArray, IntArray]]:
    """For each partition the cell of each value (n,), and its `nonfinite`, to which NaN and inf are added.

    `room` (2, n or more) is used for each: fresh arrays cost more in page faults than in arithmetic.
    """
    with np.errstate(over="ignore"):  # beyond float32: inf, which is counted separately
        floats = np.ascontiguousarray(values, np.float32)
    bits, (key, cell) = floats.view(np.int32), room[:, : floats.size]
    np.bitwise_and(bits, 0x7FFFFFFF, out=key)
    np.right_shift(key, 23 - MANTISSA_BITS, out=key)
    np.maximum(key, _BASE, out=key)
    np.minimum(key, _BASE + BINS - 1, out=key)
    np.right_shift(bits, 31, out=cell)  # −1 for what is negative
    np.multiply(cell, -BINS, out=cell)
    np.add(key, cell, out=key)
    np.subtract(key, _BASE, out=key)
    finite = np.isfinite(floats)
    bad = None if finite.all() else ~finite
    for rows, bad_ones in zip(labels, nonfinite, strict=True):
        where, size = rows, len(bad_ones)
        if bad is not None:
            np.add(bad_ones, np.bincount(where[bad], minlength=size + 1)[:size], out=bad_ones)
            where = np.where(bad, size, where)
        np.multiply(where, 2 * BINS, out=cell, casting="unsafe")
        np.add(key, cell, out=cell)
        yield cell, bad_ones


def _sort_host(values: Any, labels: Sequence[Any], sizes: Sequence[int]) -> list[Sketch]:
    """The same of few values, of which most cells hold none."""
    sketches: list[Sketch] = []
    nonfinite, room = [np.zeros(size, np.int64) for size in sizes], np.empty((2, values.size), np.int32)
    for cell, bad_ones in _cells(values, labels, nonfinite, room):
        cell.sort()
        end = cell.searchsorted(np.int32(len(bad_ones) * 2 * BINS))
        sketches.append(Sketch(counted(cell[:end]), bad_ones))
    return sketches


def _count_host(values: Any, labels: Sequence[Any], counts: Sequence[RowArray], nonfinite: Sequence[IntArray]) -> None:
    room = np.empty((2, min(_CHUNK, values.size)), np.int32)
    for begin in range(0, values.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        cells = _cells(values[part], [rows[part] for rows in labels], nonfinite, room)
        for (cell, _), of_rows in zip(cells, counts, strict=True):
            _scatter(cell, of_rows)


@cache
def _ones() -> RowArray:
    return np.ones(_CHUNK, np.int32)


def _scatter(cell: RowArray, counts: RowArray) -> None:
    """Add one to `counts` at each of `cell`, by torch where it is in use: it needs no wider copy of the cells."""
    torch = sys.modules.get("torch")
    if torch is None:
        counts += np.bincount(cell, minlength=counts.size).astype(np.int32)
    else:
        torch.from_numpy(counts).index_add_(0, torch.from_numpy(cell), torch.from_numpy(_ones()[: cell.size]))


def _count_device(values: Any, labels: Sequence[Any], starts: Sequence[int]) -> tuple[Any, Any]:
    """The same in torch operations that never read back: integers add up the same in any order."""
    torch = sys.modules["torch"]
    device = values.device
    counts = torch.zeros(starts[-1] * 2 * BINS, dtype=torch.int64, device=device)
    nonfinite = torch.zeros(starts[-1], dtype=torch.int64, device=device)
    for begin in range(0, len(values), _DEVICE_CHUNK):
        chunk = values[begin : begin + _DEVICE_CHUNK].detach().to(torch.float32).contiguous()
        bits = chunk.view(torch.int32)
        key = bits.bitwise_and(0x7FFFFFFF).bitwise_right_shift_(23 - MANTISSA_BITS)
        key = key.clamp_(_BASE, _BASE + BINS - 1).sub_(_BASE).add_(bits.bitwise_right_shift(31), alpha=-BINS)
        bad = chunk.isfinite().logical_not_()
        ones = torch.ones_like(key, dtype=torch.int64)
        for rows, start, end in zip(labels, starts, starts[1:], strict=False):
            where = rows[begin : begin + _DEVICE_CHUNK]
            nonfinite[start:end].index_add_(0, where, bad.to(torch.int64))
            cell = torch.where(bad, end - start - 1, where).to(torch.int32).mul_(2 * BINS).add_(key)
            counts[start * 2 * BINS : end * 2 * BINS].index_add_(0, cell, ones)
    return counts, nonfinite


def quantiles(counts: IntArray, levels: Sequence[float]) -> list[float]:
    """Quantiles of |x| at `levels` in [0, 1] from `counts` (4098,); NaN where there are none.

    The answer is the order statistic of rank floor(q(n − 1)), 0-based, to 0.39 %; numpy's default
    interpolates between two of them and can differ by more than that far out in a tail.
    """
    total = np.cumsum(counts)
    n = int(total[-1])
    if n == 0:
        return [float("nan")] * len(levels)
    ranks = [int(q * (n - 1)) + 1 for q in levels]
    return [float(QUANTILE_VALUES[i]) for i in np.searchsorted(total, ranks)]


def first_bins(edges: FloatArray) -> IntArray:
    """(len(edges) − 1,) the bin that begins at each of `edges`, a subset of `EDGES` after a first 0; but the last."""
    return np.append(0, np.searchsorted(EDGES, edges[1:-1]) + 1)


def rebin(counts: IntArray, first: IntArray) -> IntArray:
    """(..., n) counts of |x| between the edges that gave the `first_bins` (n,).

    `counts` (..., 4098). What is beyond the last edge is counted in the last bin.
    """
    return np.add.reduceat(counts, first, axis=-1)
