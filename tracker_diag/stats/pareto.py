"""Pareto k̂: how heavy the right tail of the importance weights is, from the largest of them.

Vehtari, Simpson, Gelman, Yao, Gabry, "Pareto smoothed importance sampling", JMLR 25(72), 2024; the
generalised Pareto fit is that of Zhang and Stephens, Technometrics 51(3), 2009. With k ≥ 0.5 the
variance of the weights is infinite, with k ≥ 1 their mean; above `reliable_below` an importance-weighted
mean of this many samples is not to be trusted.
"""

import math
from functools import lru_cache

import numpy as np

from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.stats.histogram import BINS, EDGES
from tracker_diag.stats.kernel import kernel

MIN_EXCEEDANCES = 5
POINTS_PER_BIN = 8
MIN_BINS = 8
"""Bins over which the largest log-ratios must spread, or the fit would be of the bins."""
NEAR = 8
"""Bins on each side. Their median count says how many values of a bin are there by chance, and are not tied."""
CHANCE = 2.0
"""Standard deviations of a count beyond which more values than that are tied."""
_LEAST_WEIGHT = 10 * float(np.finfo(float).eps)

# The cells of a sketch (2, 4098) from large log-ratios to small: the positive bins downwards, zero, the negative
# bins by growing magnitude. Where each of them begins, and ends.
_LOW, _HIGH = (np.concatenate([[0.0], edges]) for edges in (EDGES, np.append(EDGES[1:], EDGES[-1])))
_STARTS = np.concatenate([_LOW[:0:-1], [0.0], -_HIGH[1:]])
_ENDS = np.concatenate([_HIGH[:0:-1], [0.0], -_LOW[1:]])


def tail_length(n: int) -> int:
    """M, the number of largest weights that the fit takes of `n` (PSIS, section 3.1, independent samples)."""
    return math.floor(3 * math.sqrt(n)) if n > 225 else n // 5


def reliable_below(n: int) -> float:
    """The k̂ from which on `n` samples are too few: min(1 − 1/log10 n, 0.7) (PSIS, equation 13)."""
    return min(1 - 1 / math.log10(n), 0.7)


def pareto_k(t: Float64Array, c: Float64Array) -> float:
    """k̂ of the M + 1 largest log-weights `t` in nats, in ascending order, of which each represents `c` samples.

    NaN if fewer than five are above the smallest, so also if all are equal: that is no signal, not health.
    """
    if t.size == 0:
        return math.nan
    u = np.exp(t - t[-1])
    above = u > u[0]
    x, c = u[above] - u[0], c[above]
    total = c.sum()
    n = round(float(total))
    if n < MIN_EXCEEDANCES:
        return math.nan
    # Zhang and Stephens: a profile over b, weighted by its likelihood; no optimiser, no starting point.
    share = c / total
    grid = 30 + math.floor(math.sqrt(n))
    quartile = x[c.cumsum().searchsorted(math.floor(n / 4 + 0.5) - 1e-6)]
    b = _points(grid) / (3 * quartile) + 1 / x[-1]
    terms = -b[:, None] * x
    k = np.log1p(terms, out=terms) @ share
    likelihood = n * (np.log(-b / k) - k - 1)
    weight = np.exp(likelihood - likelihood.max())  # one that is far behind has none
    weight /= weight.sum()
    kept = weight >= _LEAST_WEIGHT
    b_mean = float(b[kept] @ weight[kept] / weight[kept].sum())
    k_mean = float(np.log1p(-b_mean * x) @ share)
    return k_mean * n / (n + 10) + 5 / (n + 10)  # shrunk towards 0.5, as PSIS does for short tails


@lru_cache(256)
def _points(grid: int) -> Float64Array:
    """(grid,) where the profile is taken, in units that depend on the values."""
    points: Float64Array = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    return points


def _largest(starts: Float64Array, ends: Float64Array, held: IntArray, size: int) -> tuple[Float64Array, Float64Array]:
    """The `size` largest of the values that cells from `starts` to `ends` hold, the cells from large to small.

    Those of a cell are spread evenly over it. A few points represent a full one, each for several values. So the fit
    costs the same however many tokens there are. Returns the values and how many each represents.
    """
    before = held.cumsum() - held
    last = int(before.searchsorted(size))
    starts, ends, held, before = starts[:last], ends[:last], held[:last], before[:last]
    taken = np.minimum(held, size - before)
    points = np.minimum(taken, POINTS_PER_BIN)
    rank = np.arange(int(points.sum())) - (points.cumsum() - points).repeat(points)
    # Of a bin that is only taken in part, its upper part.
    each = taken / points
    step = (ends - starts) * each / held
    values: Float64Array = ends.repeat(points) - step.repeat(points) * (rank + 0.5)
    return values, each.repeat(points)


def pareto_k_of(counts: IntArray, n: int | None = None) -> float:
    """k̂ of the weights exp r, from the sketch `counts` (2, 4098) of `n` log-ratios r.

    Within 0.05 of the exact value, which is far less than its sampling error. Within 0.08 if the tail has few more than
    `MIN_BINS` bins. Within 0.15 below −0.4, as the weights are bounded there. Log-ratios of bfloat16 and float16 keep
    to the same bounds.

    NaN where nothing is known: too few values, no signal, a value of 256 nats and more, whose size the sketch does not
    know. NaN too where fewer than `MIN_BINS` bins hold the tail: the fit would be that of the bins.
    """
    size = tail_length(int(counts.sum()) if n is None else n)
    if size < MIN_EXCEEDANCES or counts[0, BINS - 1]:
        return math.nan
    if compiled := kernel():
        above, below = (np.ascontiguousarray(part, np.int64) for part in counts)
        return float(compiled.call("pareto", above, below, size, _STARTS, _ENDS, np.empty(6 * size + 200)))
    number = np.concatenate([counts[0, :0:-1], [counts[0, 0] + counts[1, 0]], counts[1, 1:]])
    used = np.flatnonzero(number != 0)
    held = number[used]
    if len(used) < MIN_BINS or held[: MIN_BINS - 1].sum() > size:  # fewer bins than that have the largest `size` + 1
        return math.nan
    starts, ends = _STARTS[used], _ENDS[used]
    last = int(held.cumsum().searchsorted(size + 1))
    if tied := _tied(counts, int(used[last])):
        if last < MIN_BINS:
            return math.nan
        # A value of few bits is the edge of its bin towards 0. What is tied there is a cell of its own.
        positive = int(used[last]) < BINS - 1
        edge, at = (starts if positive else ends)[last], last + positive
        held[last] -= tied
        starts, ends, held = (
            np.concatenate((part[:at], [here], part[at:]))
            for part, here in ((starts, edge), (ends, edge), (held, tied))
        )
        there = held > 0
        starts, ends, held = starts[there], ends[there], held[there]
    values, each = _largest(starts, ends, held, size + 1)
    return pareto_k(values[::-1].copy(), each[::-1].copy())  # they come from large to small


def _tied(counts: IntArray, cell: int) -> int:
    """How many values of `cell` are equal, as log-ratios of bfloat16 and float16 are: more than the cells near it hold.

    Spread over the bin, they would exceed the smallest of them by very little. The fit would then be of these.
    """
    sign, bin = (0, BINS - 1 - cell) if cell < BINS - 1 else (1, cell - BINS + 1)
    if bin == 0:
        return 0
    here = int(counts[sign, bin])
    if here <= CHANCE:
        return 0
    near = sorted(counts[sign, max(bin - NEAR, 1) : bin + NEAR + 1].tolist())
    usual: int = near[len(near) // 2]
    return here - usual if here > usual + CHANCE * math.sqrt(usual + 1) else 0
