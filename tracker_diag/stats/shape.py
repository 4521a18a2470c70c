"""The shape of |r| in a current window against a baseline window, both as counts (4098,) of the sketch.

Everything is read off the two sets of counts, so it merges as they do, and whatever the sizes of the
windows. `tail_stretch` and `qq_slope` compare ratios of quantiles within a window: they see a tail that
stretches, and cancel a change of scale, which is the larger part of what varies from step to step.
`wasserstein` and `ks_distance` see a change of scale and hardly a tail.

NaN where either window is empty. How many values support an answer is the caller's business:
`tail_stretch` needs 2,000 in each window (20 beyond p99), `qq_slope` 40,000 for its last level (20 beyond
p99.95). With fewer, the far levels fall on the same few largest values and the answer is mostly noise.
"""

import math
from collections.abc import Sequence

import numpy as np

from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.stats.histogram import QUANTILE_VALUES, quantiles

QQ_LEVELS: tuple[float, ...] = (0.5, 0.6, 0.7, 0.8, *(1 - 10.0 ** np.linspace(-1, -3.3, 24)).tolist())
"""The median, and from there to p99.95, evenly in the logarithm of what lies beyond."""


def tail_stretch(now: IntArray, then: IntArray) -> float:
    """Change of log(p99/p50) from `then` to `now`, counts (4098,) of |r|: by how much the tail stretched.

    0.1 means a tail 10 % longer relative to the body; within 4/257 of that of the order statistics, and
    the same to the last bit when a window is scaled by a power of two. NaN where one of the four quantiles
    is 0 or "at least 256", which have no logarithm; all equal is a ratio of 1, so an answer.
    """
    return _tail(now) - _tail(then)


def one_sided_quantile(counts: IntArray, side: int, level: float) -> float:
    """Quantile at `level` of max(r, 0), or with `side` 1 of max(−r, 0), in nats; counts (2, 4098) of r by its sign.

    To 0.39 % of the order statistic, as `quantiles`; 0 where fewer than 1 − `level` of the tokens have that sign.
    """
    of_side = counts[side].copy()
    of_side[0] += counts[1 - side].sum()
    (answer,) = quantiles(of_side, (level,))
    return answer


def qq_slope(now: IntArray, then: IntArray) -> float:
    """Least-squares slope of log Q(p) on log Q_then(p) over `QQ_LEVELS`, minus 1; counts (4098,) of |r|.

    0 where `now` is `then` times a constant, positive where its tail is heavier: |r|^a gives a − 1. NaN
    where one of the quantiles is 0 or "at least 256", and where those of `then` are all equal.
    """
    x, y = _relative_quantiles(then), _relative_quantiles(now)
    spread = float(x @ x)
    return float(x @ y) / spread - 1 if spread else math.nan


def wasserstein(now: IntArray, then: IntArray) -> float:
    """W1, the area between the two ECDFs of |r|, in nats; counts (4098,).

    Off by at most 1/257 of the sum of the two means, and 2^-24. What is at or above 256 counts as 256,
    which can only bring the two closer: the answer is then a lower bound.
    """
    gap = np.abs(_ecdf(now) - _ecdf(then))
    return float(gap[:-1] @ np.diff(QUANTILE_VALUES))


def ks_distance(now: IntArray, then: IntArray) -> float:
    """The largest difference of the two ECDFs of |r|, in [0, 1]; counts (4098,).

    Compared at the edges of the bins, so a lower bound, short by at most the share of the fullest bin.
    """
    return float(np.abs(_ecdf(now) - _ecdf(then)).max())


def ecdf_points(counts: IntArray, n_points: int) -> tuple[Float64Array, Float64Array]:
    """At most `n_points` corners of the ECDF of `counts` (4098,), for drawing: values of |r|, shares up to them.

    Every point lies on the whole curve. The first and the last non-empty bin are always among them; the
    others are spread evenly over the non-empty bins, so about evenly in log |r|, tail and body alike. Both
    arrays are empty where there is nothing to draw. A value of 0 means below 2^-24, 256 at least 256.

    Raises:
        ValueError: for fewer than two points.
    """
    if n_points < 2:
        raise ValueError(f"n_points is {n_points}; a curve needs at least 2, for its first and its last value")
    filled = np.flatnonzero(counts)
    kept = filled[np.linspace(0, filled.size - 1, min(filled.size, n_points)).round().astype(np.int64)]
    return QUANTILE_VALUES[kept], _ecdf(counts)[kept]


def _ecdf(counts: IntArray) -> Float64Array:
    """(4098,) share of values up to and in each bin; all NaN where there are none."""
    total = np.cumsum(counts)
    share: Float64Array = total / (int(total[-1]) or math.nan)
    return share


def _in_range(counts: IntArray, levels: Sequence[float]) -> Float64Array:
    """Quantiles (len(levels),), NaN for the two ends of the sketch, which stand for a range without a limit."""
    q = np.array(quantiles(counts, levels))
    return np.where((q > QUANTILE_VALUES[0]) & (q < QUANTILE_VALUES[-1]), q, math.nan)


def _tail(counts: IntArray) -> float:
    # The ratio first: it is the same to the last bit whatever power of two the values are scaled by.
    middle, far = _in_range(counts, (0.5, 0.99))
    return math.log(far / middle)


def _relative_quantiles(counts: IntArray) -> Float64Array:
    """(28,) log-quantiles around their mean; relative to the median first, as in `_tail`."""
    q = _in_range(counts, QQ_LEVELS)
    log_q = np.log(q / q[0])
    centred: Float64Array = log_q - log_q.mean()
    return centred
