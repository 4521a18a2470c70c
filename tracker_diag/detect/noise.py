"""How much of a series is noise, where nobody knows its level: from how it changes from row to row.

Exact answers of numpy's own functions in a part of their time, as each rule asks at each row.
"""

import math

import numpy as np

from tracker_diag.stats.arrays import Float64Array

DOUBT = 0.25
"""Half as many standard deviations by which the share of turns is taken to be smaller than it is seen."""
TRIMMED = 0.1
"""Part of the largest changes from row to row that tells nothing of the noise: the fall itself is among them."""


def dependence(y: Float64Array, doubt: float = DOUBT) -> tuple[float, float]:
    """Standard deviation and autocorrelation of the values of an AR(1), as the changes from value to value tell them.

    The changes have variance 2σ²(1 − φ) and a first autocorrelation of −(1 − φ)/2. So they turn, one up and the next
    down, in arccos(−(1 − φ)/2)/π of the cases. That is two thirds if the values are independent, half if they walk. A
    few large changes, such as a fall, do not move that share. A moving average, such as that over the last hundred
    episodes, walks. So hardly any fall of it is sure.
    """
    change = y[1:] - y[:-1]
    up = np.sign(change[change != 0])
    turns = np.count_nonzero(up[1:] != up[:-1]) / (len(up) - 1) - doubt / math.sqrt(len(up)) if len(up) > 2 else 2 / 3
    phi = min(max(1 - 2 * math.sin(math.pi * (turns - 0.5)), 0.0), 0.97)
    return _spread(change) / math.sqrt(2 * (1 - phi)), phi


def error_of_difference(sigma: float, phi: float, width: int) -> float:
    """Standard error of the difference of two means of `width` values each, of an AR(1)."""
    return sigma * math.sqrt(2 * min((1 + phi) / (1 - phi) / width, 1.0))


def noise_of(y: Float64Array, *, trimmed: bool = True) -> float:
    """Standard deviation of a value about a level that changes steadily, from the second differences.

    `trimmed`: without the largest of them, which a jump makes, or a single odd value.
    """
    change = y[1:] - y[:-1]
    second = change[1:] - change[:-1]
    size = _spread(second) if trimmed else math.sqrt(float(np.add.reduce(second * second)) / len(second))
    return size / math.sqrt(6)


def _spread(changes: Float64Array) -> float:
    """Standard deviation of normal `changes`, without the largest tenth of them."""
    size = np.abs(changes)
    # The mean size of a normal change is 0.80 of its deviation, without the largest tenth 0.66.
    kept = size[size <= quantile_of(size, 1 - TRIMMED)]
    return float(np.add.reduce(kept)) / len(kept) / 0.66


def quantile_of(values: Float64Array, level: float) -> float:
    """What `np.quantile` answers, to the bit, in a tenth of its time."""
    place = (len(values) - 1) * level
    at = int(place)
    part, above = np.partition(values, sorted({at, min(at + 1, len(values) - 1)})), place - at
    low, high = float(part[at]), float(part[min(at + 1, len(values) - 1)])
    return low + (high - low) * above if above < 0.5 else high - (high - low) * (1 - above)


def medians_of(rows: Float64Array) -> Float64Array:
    """(n,) what `np.median` answers for each of `rows` (n, k), to the bit, in half of its time."""
    low, high = (rows.shape[1] - 1) // 2, rows.shape[1] // 2
    part = np.partition(rows, sorted({low, high}), axis=1)
    medians: Float64Array = part[:, low] if low == high else (part[:, low] + part[:, high]) / 2
    return medians


def centred(values: Float64Array) -> Float64Array:
    """How far each of `values` is off their mean."""
    off: Float64Array = values - np.add.reduce(values) / len(values)
    return off


def deviation_of(off: Float64Array) -> float:
    """What `values.std(ddof=1)` answers, to the bit, of values that are `centred`, in a third of its time."""
    return math.sqrt(np.add.reduce(off * off) / (len(off) - 1))


def ranks_of(y: Float64Array) -> Float64Array:
    """The rank of each value, equal ones at the middle of theirs."""
    ordered = np.sort(y)
    return (np.searchsorted(ordered, y, "left") + np.searchsorted(ordered, y, "right")) / 2
