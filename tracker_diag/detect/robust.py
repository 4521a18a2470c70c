"""Trend of a series, unmoved by a few wild values; meant for block means.

Values beyond ±1e100 count as that, so that no answer is infinite or NaN.
"""

import math
from collections.abc import Sequence

import numpy as np

from tracker_diag.arrays import Float64Array, IntArray
from tracker_diag.detect.blocks import MOST


def theil_sen(y: Sequence[float] | Float64Array) -> float:
    """Median of the slopes of all pairs (Theil 1950, Sen 1968), in the series' unit per sample."""
    bounded = _bounded(y)
    first, second = _pairs(bounded)
    return float(np.median((bounded[second] - bounded[first]) / (second - first)))


def mann_kendall(y: Sequence[float] | Float64Array) -> float:
    """Mann–Kendall trend z (Mann 1945, Kendall 1975), positive where `y` rises; 0 where all values are equal.

    S counts pairs that rise less those that fall; its variance, n(n−1)(2n+5)/18, is corrected for ties, and S
    for continuity by 1. Meant for independent values: on autocorrelated steps it is far too large.
    """
    bounded = _bounded(y)
    first, second = _pairs(bounded)
    s = int(np.sign(bounded[second] - bounded[first]).sum())
    n, ties = len(bounded), np.unique(bounded, return_counts=True)[1].tolist()
    variance = (_weight(n) - sum(_weight(t) for t in ties)) / 18
    return (s - (s > 0) + (s < 0)) / math.sqrt(variance) if s else 0.0


def _bounded(values: Sequence[float] | Float64Array) -> Float64Array:
    return np.asarray(np.clip(np.asarray(values, np.float64), -MOST, MOST), np.float64)


def _pairs(y: Float64Array) -> tuple[IntArray, IntArray]:
    """Indices of the earlier and of the later of each pair."""
    if len(y) < 2:
        raise ValueError(f"y: {len(y)} values given, expected two or more")
    first, second = np.triu_indices(len(y), 1)
    return first, second


def _weight(n: int) -> int:
    return n * (n - 1) * (2 * n + 5)
