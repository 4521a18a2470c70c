"""Whether the last values of a series are below earlier ones by more than chance: a scan over pairs of windows.

The windows have 3, 6, 12, ... values. A score is the difference of two means in standard errors, by the series' own
noise. Its limit depends on the number of values and on their autocorrelation. One level series in 1,000 exceeds it at
any look of a whole run.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from tracker_diag.detect.noise import medians_of
from tracker_diag.stats.arrays import Float64Array

SHORTEST = 3
"""Values of a window, at least."""
SHARE = 30
"""A window has this part of the values, at least: a few are no level of a long run."""
ODD = 4.0
"""Deviations by which a value differs from the median of itself and its neighbours, if it is odd."""
ROUNDING = 1e-9
"""Part of the largest value that is no noise but rounding."""
ENDS = (10, 14, 20, 30, 45, 70, 110, 180, 256)
"""A row of `LIMITS` is for at least so many values, and fewer than the next."""
CUTS = (-0.3, -0.1, 0.1, 0.3, 0.5, 0.65)
"""The columns of `LIMITS` are parted at these autocorrelations."""
LIMITS = (
    (13.3, 14.4, 14.6, 14.2, 16.7, 20.0, 20.0),
    (13.1, 13.9, 14.5, 15.7, 16.5, 15.3, 15.3),
    (14.1, 14.2, 16.6, 16.8, 17.2, 17.2, 17.2),
    (10.4, 15.3, 17.4, 18.7, 18.7, 18.7, 18.7),
    (7.3, 14.1, 15.7, 17.0, 17.1, 15.6, 15.6),
    (6.9, 6.9, 9.5, 14.4, 15.4, 15.7, 17.2),
    (5.4, 5.4, 7.0, 9.9, 14.3, 15.3, 15.3),
    (6.2, 6.2, 6.2, 7.5, 10.9, 14.6, 14.0),
)
"""Scores that one of 1,000 level series exceeds: `python tests/benchmarks/falls.py --table` prints them."""


@dataclass(frozen=True)
class Drop:
    """The last window of a series against its best earlier one of some width."""

    top: float
    now: float
    at: int
    """Where the best window begins."""
    width: int
    """Of the best window."""
    gained: float
    """How far the best window is above the lowest one of its width before it."""
    is_gained: bool
    """Whether that is more than chance as well."""


def drops(y: Float64Array, sigma: Float64Array, rho: Float64Array, surer: float = 1.0) -> list[Drop]:
    """Pairs of windows of `y` (n,), n ≥ 10, that differ by more than `surer` times the limit.

    `sigma` and `rho`, both (1,), are the `noise` of `y`.
    """
    n = len(y)
    limit = surer * float(sigma[0]) * limit_of(n, float(rho[0]))
    sums = np.concatenate([[0.0], np.cumsum(without_odd(y[None], sigma)[0])])
    pairs: list[Drop] = []
    fitting = widths(n)
    now = {late: float(sums[n] - sums[n - late]) / late for late in fitting}
    for early in fitting:
        levels = (sums[early:] - sums[:-early]) / early
        tops = np.maximum.accumulate(levels)
        for late in (width for width in fitting if early + width <= n):
            top = float(tops[n - late - early])
            if top - now[late] > limit * math.sqrt(1 / early + 1 / late):
                at = int(np.searchsorted(tops, top))
                gained = top - float(levels[: at + 1].min())
                pairs.append(Drop(top, now[late], at, early, gained, gained > limit * math.sqrt(2 / early)))
    return pairs


def noise(y: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Deviation and first autocorrelation of `y` (series, n) about its level, the median of a sixth around each value.

    A median keeps to both sides of a fall, so the fall is no noise. Rare values are, such as one success in 20 rows.
    """
    n = y.shape[1]
    side = max(SHORTEST, n // 12)
    padded = y[:, np.arange(-side, n + side).clip(0, n - 1)]
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * side + 1, axis=1)
    rest = y - np.partition(around, side, axis=2)[:, :, side]
    squares = (rest**2).sum(axis=1) + np.finfo(np.float64).tiny
    # About a steady course a median leaves nothing. So second differences count too: of normal ones the median is 1.65.
    turns = medians_of(np.abs(y[:, 2:] - 2 * y[:, 1:-1] + y[:, :-2])) / 1.65
    least = ROUNDING * np.abs(y).max(axis=1)
    return np.maximum(np.maximum(np.sqrt(squares / n), turns), least), (rest[:, 1:] * rest[:, :-1]).sum(
        axis=1
    ) / squares


def without_odd(y: Float64Array, sigma: Float64Array) -> Float64Array:
    """`y` (series, n) with each odd value as the median of itself and its neighbours; at an end, of the last three."""
    before, here, after = y[:, :-2], y[:, 1:-1], y[:, 2:]
    middle = np.maximum(np.minimum(before, here), np.minimum(np.maximum(before, here), after))
    medians = np.concatenate([middle[:, :1], middle, middle[:, -1:]], axis=1)
    return np.where(np.abs(y - medians) > ODD * sigma[:, None], medians, y)


def widths(n: int) -> list[int]:
    """Those of windows for `n` values, half of them at most."""
    fitting = [SHORTEST * 2**k for k in range(8) if SHORTEST * 2**k <= n // 2]
    return [width for width in fitting if width * SHARE >= n]


def chance(y: Float64Array) -> float:
    """What no difference of two values of `y` (n,) exceeds by chance; of means of m values it is 1/√m of that."""
    (sigma,), (rho,) = noise(y[None])
    return float(sigma) * limit_of(len(y), float(rho))


def limit_of(n: int, rho: float) -> float:
    """What a score must exceed for `n` values with this autocorrelation."""
    return LIMITS[max(bisect_right(ENDS, n) - 1, 0)][bisect_right(CUTS, rho)]
