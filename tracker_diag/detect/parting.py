"""Parting: whether the levels of one series part between two groups of runs, from where on, and by how much.

The axis is cut into parts. The level of a run in a part is the mean of its values there. Two runs of one setting differ
by more than the noise of either, as one learns sooner than the other. So they have parted only if, in three parts in a
row, their levels do not overlap. The margin between them covers the noise. With few runs to show the spread of seeds,
it also covers the range of the series.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracker_diag.stats.arrays import Float64Array

PARTS = 20
"""Of the axis."""
FEWEST = 16
"""Values of a run, at least; a part has two or more."""
SIDE = 1
"""Parts before and after one that are looked at with it."""
NOISES = 6.0
"""Times the noise by which levels differ, at least."""
RANGE = {2: 0.3, 3: 0.25, 4: 0.1, 5: 0.1}
"""Part of the range that is added to it, by the number of runs in both groups together; nothing from six runs on.

Measured on the tuned half of tests/faults. In at most 5 % of the comparisons of healthy runs of one task, any of up to
45 series parts; docs/faults.md.
"""
OUTER = 4
"""In a group of so many runs, one is left out at either end, as a seed may be odd."""
LEAST = 0.01
"""Noise of a logarithm, at least: what differs by less than a few per cent is alike."""
LEAST_SHARE = 1e-3
"""Noise of a value, at least, in its own mean size."""
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t for 95 %, two-sided, by degrees of freedom from 1 on (Gosset 1908)."""


@dataclass(frozen=True)
class Parting:
    """Where two groups part, and by how much; on the scale of the levels."""

    onset: int
    """The first part from which on they differ by half the margin or more, until they have parted."""
    parted: int
    """The first of the parts by which they have."""
    end: int
    """The last of them; they may have come together in between."""
    reference: float
    other: float
    """Means over the parts in which they have parted, of the runs' means."""
    low: float
    high: float
    """95 % interval of their difference: of seeds if `spread` is known, else of the noise of a part alone."""
    spread: float | None
    """Standard deviation between the seeds of a group; None if neither has two."""
    noise: float
    """Standard deviation of the difference of two runs in one part, from part to part."""
    beyond: float
    """By how many margins they differ, at most."""


def levels(places: Float64Array, values: Float64Array, low: float, high: float, parts: int) -> Float64Array:
    """The mean of `values` in each of `parts` equal parts of the axis from `low` to `high`; NaN in one without any."""
    inside = (places >= low) & (places <= high)
    share = (places[inside] - low) / (high - low if high > low else 1.0)
    at = np.minimum((share * parts).astype(np.int64), parts - 1)
    sums, counts = np.bincount(at, values[inside], parts), np.bincount(at, minlength=parts)
    means: Float64Array = np.full(parts, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def parting(reference: Float64Array, other: Float64Array, *, log: bool, matters: float = 0.0) -> Parting | None:
    """Where the levels of two groups part; None if they do not.

    Args:
        reference, other: (runs, parts) of either, NaN where a run has no value.
        log: whether they are logarithms.
        matters: a difference that is smaller never is one.
    """
    both = np.concatenate([reference, other])
    noise = math.hypot(_noise(reference), _noise(other))
    noise = max(noise, LEAST if log else LEAST_SHARE * float(np.nanmean(np.abs(reference))))
    span = float(np.nanmax(np.nanmax(both, axis=1) - np.nanmin(both, axis=1)))
    margin = max(NOISES * noise + RANGE.get(len(both), 0.0) * span, matters, float(np.finfo(np.float64).tiny))
    signed = _gaps(reference, other, SIDE)
    farthest = int(np.argmax(np.abs(signed)))
    sign = math.copysign(1.0, signed[farthest])
    gaps, at_once = sign * signed, sign * _gaps(reference, other, 0)
    middles = np.flatnonzero(gaps > margin)
    if not len(middles):
        return None
    inside = np.zeros(both.shape[1], np.bool_)
    for middle in middles:
        inside[middle - SIDE : middle + SIDE + 1] = True
    parted = onset = int(np.flatnonzero(inside)[0])
    while onset and at_once[onset - 1] > margin / 2:
        onset -= 1
    means = [np.nanmean(group[:, inside], axis=1) for group in (reference, other)]
    before, after = (float(mean.mean()) for mean in means)
    spread = _spread(means)
    freedom, share = len(both) - 2, math.sqrt(1 / len(reference) + 1 / len(other))
    half = 2 * noise if spread is None else max(_t95(freedom) * spread * share, 2 * noise / math.sqrt(inside.sum()))
    change = after - before
    return Parting(
        onset, parted, int(np.flatnonzero(inside)[-1]), before, after, change - half, change + half, spread, noise,
        beyond=float(gaps[farthest] / margin),
    )  # fmt: skip


def _gaps(reference: Float64Array, other: Float64Array, side: int) -> Float64Array:
    """By how much all levels about each part lie above (positive) or below those of the reference; 0 if they mix."""
    (low, high), (lower, higher) = _band(reference, side), _band(other, side)
    above, below = lower - high, low - higher
    gaps = np.where(above > 0, above, np.where(below > 0, -below, 0.0))
    return np.nan_to_num(gaps, nan=0.0)


def _band(group: Float64Array, side: int) -> tuple[Float64Array, Float64Array]:
    """The lowest and the highest level of a group in each part and `side` parts before and after; NaN at the ends."""
    padded = np.pad(group, ((0, 0), (side, side)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * side + 1, axis=1)
    left_out = len(group) // OUTER
    lowest, highest = np.sort(windows.min(axis=2), axis=0), np.sort(windows.max(axis=2), axis=0)
    return lowest[left_out], highest[len(group) - 1 - left_out]


def _noise(group: Float64Array) -> float:
    """Standard deviation of a level about one that changes steadily, from second differences; mean over the runs."""
    return math.sqrt(float(np.mean([_of_one(run[np.isfinite(run)]) ** 2 for run in group])))


def _of_one(run: Float64Array) -> float:
    if len(run) < 3:
        return 0.0
    size = np.abs(np.diff(run, 2))
    # Of a normal difference the median size is 0.67 of its deviation and the mean 0.80. The median does not see rare
    # jumps, and the mean sees nothing else: it is the larger of the median's answer and seven tenths of the mean's.
    return float(max(np.median(size) / 0.6745, 0.7 * size.mean() / 0.80)) / math.sqrt(6)


def _spread(means: list[npt.NDArray[np.float64]]) -> float | None:
    """Standard deviation between the runs of a group, pooled over both."""
    freedom = sum(len(mean) - 1 for mean in means)
    return math.sqrt(float(sum(((mean - mean.mean()) ** 2).sum() for mean in means)) / freedom) if freedom else None


def _t95(freedom: int) -> float:
    return T95[freedom - 1] if freedom <= len(T95) else 1.96 + 2.5 / freedom
