"""The shape of log-ratios, read off counts of the sketch, so that it merges as they do."""

import math

from tracker_diag.stats.arrays import IntArray
from tracker_diag.stats.histogram import QUANTILE_VALUES, quantiles


def tail_stretch(now: IntArray, then: IntArray) -> float:
    """Change of log(p99/p50) from `then` to `now`, counts (4098,) of |r|: by how much the tail stretched.

    Ratios of quantiles within a window cancel a change of scale, which is most of the variation between steps. 0.1
    means a tail 10 % longer relative to the body, within 4/257. It is the same to the last bit if a window is scaled by
    a power of two. NaN if a window is empty, or if a quantile is 0 or "at least 256", which have no logarithm. All
    equal is a ratio of 1, so an answer. Each window needs 2,000 values, 20 beyond p99: with fewer the answer is mostly
    noise.
    """
    return _tail(now) - _tail(then)


def _tail(counts: IntArray) -> float:
    middle, far = quantiles(counts, (0.5, 0.99))
    if not QUANTILE_VALUES[0] < middle <= far < QUANTILE_VALUES[-1]:
        return math.nan
    # The ratio first: it is the same to the last bit whatever power of two the values are scaled by.
    return math.log(far / middle)
