"""The sketch: a signed log-linear histogram keyed by the bits of a float32.

Guarantee: for values in [2^-24, 2^8) a quantile is within 1/257 (0.39 %) of the order statistic of
rank floor(q(n − 1)). Counts are integers, so merging over micro-batches, ranks and steps is addition,
exact in any order. After HdrHistogram and the linearly interpolated DDSketch (Masson, Rim, Lee,
VLDB 2019, §2.2), but with a fixed range of 32 octaves, so that nothing ever collapses.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracker_diag.arrays import Float64Array, FloatArray, IntArray, RowArray

MANTISSA_BITS = 7
LOWEST, HIGHEST = -24, 8
"""Octaves: values from 2^-24 up to, not with, 2^8 have bins of their own."""

_BASE = ((LOWEST + 127) << MANTISSA_BITS) - 1
BINS = ((HIGHEST - LOWEST) << MANTISSA_BITS) + 2
"""4,098: one for |x| < 2^-24, 4,096 inside the range, one for |x| ≥ 2^8."""

_CHUNK = 1 << 18  # temporaries stay in the cache; smaller chunks lose to the cost of a call


def _edges() -> Float64Array:
    k = np.arange(BINS - 1)
    edges: Float64Array = np.ldexp(1 + (k & 127) / 128, LOWEST + (k >> MANTISSA_BITS))
    return edges


EDGES = _edges()
"""(4097,) float64: bin i, 1 ≤ i ≤ 4096, is [EDGES[i − 1], EDGES[i])."""

QUANTILE_VALUES = np.concatenate([[0.0], 2 * EDGES[:-1] * EDGES[1:] / (EDGES[:-1] + EDGES[1:]), EDGES[-1:]])
"""(4098,) the value a quantile in bin i is answered with: the harmonic mean of its edges, whose
relative error is at most (b − a)/(a + b) ≤ 1/257. The last bin means "at least 256"."""


@dataclass(frozen=True)
class Sketch:
    """Counts of one ratio pair by slice. `+` and `−` merge and take apart, exactly."""

    counts: IntArray
    """(rows, 2, 4098) int64: by slice, by sign (0: x ≥ 0, 1: x < 0), by bin of |x|; finite values only."""
    nonfinite: IntArray
    """(rows,) int64: NaN and inf, counted apart so that they never read as a large ratio."""

    @classmethod
    def empty(cls, rows: int) -> "Sketch":
        return cls(np.zeros((rows, 2, BINS), np.int64), np.zeros(rows, np.int64))

    def __add__(self, other: "Sketch") -> "Sketch":
        return Sketch(self.counts + other.counts, self.nonfinite + other.nonfinite)

    def __sub__(self, other: "Sketch") -> "Sketch":
        return Sketch(self.counts - other.counts, self.nonfinite - other.nonfinite)


def sketch(values: FloatArray, row: IntArray | RowArray, rows: int) -> Sketch:
    """Count `values` (N,) into the sketch of their `row` (N,); a row index of `rows` is left out.

    float64 is rounded to float32 first, at most 2^-24 relative; int32 rows are the fastest.
    """
    # One row more than asked for takes what is masked, so that no shape depends on the data.
    counts = np.zeros((rows + 1) * 2 * BINS, np.int64)
    nonfinite = np.zeros(rows + 1, np.int64)
    # The same memory for every chunk: fresh arrays cost more in page faults than in arithmetic.
    keys, signs = np.empty((2, min(_CHUNK, values.size)), np.int32)
    ones = np.ones(len(keys), np.int64)
    for start in range(0, values.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        with np.errstate(over="ignore"):  # beyond float32: inf, which is counted apart
            chunk = values[part].astype(np.float32, copy=False)
        where = row[part].astype(np.int32, copy=False)
        finite = np.isfinite(chunk)
        if not finite.all():
            nonfinite += np.bincount(where[~finite], minlength=rows + 1)
            where = np.where(finite, where, np.int32(rows))
        bits, key, sign = chunk.view(np.int32), keys[: chunk.size], signs[: chunk.size]
        np.bitwise_and(bits, 0x7FFFFFFF, out=key)
        np.right_shift(key, 23 - MANTISSA_BITS, out=key)
        np.clip(key, _BASE, _BASE + BINS - 1, out=key)
        np.right_shift(bits, 31, out=sign)  # −1 for what is negative
        np.multiply(sign, -BINS, out=sign)
        np.add(key, sign, out=key)
        np.multiply(where, 2 * BINS, out=sign)
        np.add(key, sign, out=key)
        np.subtract(key, _BASE, out=key)
        _count(key, ones[: key.size], counts)
    return Sketch(counts.reshape(rows + 1, 2, BINS)[:rows], nonfinite[:rows])


def _count(key: RowArray, ones: IntArray, counts: IntArray) -> None:
    """Add one to `counts` at each of `key`, by torch where it is in use: it needs no wider copy of the keys."""
    torch = sys.modules.get("torch")
    if torch is None:
        counts += np.bincount(key, minlength=counts.size)
    else:
        torch.from_numpy(counts).index_add_(0, torch.from_numpy(key), torch.from_numpy(ones))


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


def count_above(counts: IntArray, limit: float) -> int:
    """How many |x| lie in bins that are wholly at or above `limit`, from `counts` (4098,)."""
    return int(counts[np.searchsorted(EDGES, limit, side="left") + 1 :].sum())


def rebin(counts: IntArray, edges: FloatArray) -> IntArray:
    """(len(edges) − 1,) counts of |x| between `edges`, a subset of `EDGES` after a first 0.

    What lies beyond the last edge is counted in the last bin.
    """
    upper = np.append(EDGES, np.inf)
    target = np.minimum(np.searchsorted(edges[1:], upper, side="left"), len(edges) - 2)
    return np.bincount(target, weights=counts, minlength=len(edges) - 1).astype(np.int64)
