"""Trend of a series, unmoved by a few wild values; meant for a handful of block means.

Plain Python, which for so few values takes a tenth of numpy's time. Values beyond ±1e100 count as that, so that
no answer is infinite or NaN.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from statistics import median

from tracker_diag.detect.blocks import MOST


def theil_sen(y: Sequence[float]) -> float:
    """Median of the slopes of all pairs, in the unit per sample (Theil 1950, Sen 1968). It takes two or more values."""
    pairs = combinations(enumerate(_bounded(y)), 2)
    return median([(later - earlier) / (j - i) for (i, earlier), (j, later) in pairs])


def mann_kendall(y: Sequence[float]) -> float:
    """Mann–Kendall trend z (Mann 1945, Kendall 1975), positive where `y` rises; 0 where all values are equal.

    S counts pairs that rise less those that fall; its variance, n(n−1)(2n+5)/18, is corrected for ties, and S
    for continuity by 1. Meant for independent values: on autocorrelated steps it is far too large.
    """
    values = _bounded(y)
    s = sum((later > earlier) - (later < earlier) for earlier, later in combinations(values, 2))
    ties = sum(_weight(count) for count in Counter(values).values())
    return (s - (s > 0) + (s < 0)) / math.sqrt((_weight(len(values)) - ties) / 18) if s else 0.0


def _bounded(y: Sequence[float]) -> list[float]:
    return [min(max(float(value), -MOST), MOST) for value in y]


def _weight(n: int) -> int:
    return n * (n - 1) * (2 * n + 5)
