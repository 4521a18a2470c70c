"""The levels of a series of rows: their best, their last, how sure they are, and how far they have fallen before."""

import math
from functools import lru_cache

import numpy as np

from tracker_diag.detect import scan
from tracker_diag.detect.noise import (
    DOUBT,
    dependence,
    error_of_difference,
    medians_of,
    noise_of,
    ranks_of,
)
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.stats.once import once

SHORTEST = scan.SHORTEST
"""Rows of a level, at least: as many as a window of the scan has."""
RANKED = 2.5
"""The same of later rows above earlier ones, by their ranks."""
BARELY = 1.5
"""Standard errors by which later rows must lie higher than earlier ones, or something may have been gained."""
HIGHER = 0.4
"""The same in ranks, of the number of rows: 0.5 if every later row is higher than every earlier one."""
SPLITS = (0.1, 0.25, 0.5, 0.75)
"""Parts of the run after which the rest is compared with what came before; as well as the first three rows."""


class Rows:
    """The means of a course, larger ones better, and what is known of their noise whatever a level is."""

    def __init__(self, y: Float64Array) -> None:
        self.y = y

    @once
    def noise(self) -> float:
        return noise_of(self.y)

    @once
    def dependence(self) -> tuple[float, float]:
        return dependence(self.y)

    @once
    def scatter(self) -> tuple[Float64Array, Float64Array]:
        return scan.noise(self.y[None])

    @once
    def ranks(self) -> Float64Array:
        return ranks_of(self.y)


class Levels:
    """The levels of a course, each the mean of a `part`th of its rows.

    One odd row in three moves a mean, and leaves the median. At most rows nobody asks for more than the means.
    """

    def __init__(self, rows: "Rows", part: int) -> None:
        self.rows, self.y = rows, rows.y
        self.width = max(SHORTEST, math.ceil(len(self.y) / part))
        # As `sliding_window_view` and `mean` do, in a fifth of their time.
        shape, y = (len(self.y) - self.width + 1, self.width), self.y
        self._windows: Float64Array = np.ndarray(shape, y.dtype, y, 0, 2 * y.strides)
        self.levels: Float64Array = np.add.reduce(self._windows, axis=1) / self.width

    @once
    def noise_of_levels(self) -> float:
        """Two standard deviations of the difference of two levels of independent rows."""
        return 2 * self.rows.noise * math.sqrt(2 / self.width)

    @once
    def error(self) -> float:
        return error_of_difference(*self.rows.dependence, self.width)

    @once
    def ranks_higher(self) -> bool:
        """Whether later rows lie higher than earlier ones by their ranks, by more than chance."""
        noise = dependence(self.rows.ranks, DOUBT)
        return any(gain_at(self.rows.ranks, split, noise) > RANKED for split in self._splits)

    @once
    def ranks_far(self) -> bool:
        """Whether nearly all later rows lie higher than the earlier ones, which rows that depend may do by chance."""
        return any(higher(self.rows.ranks, split) > HIGHER * len(self.y) for split in self._splits)

    @property
    def _splits(self) -> set[int]:
        return {split for part in SPLITS[:-1] if (split := int(len(self.y) * part)) >= SHORTEST}

    @once
    def fall_before_best(self) -> float:
        """How far the level has fallen on the way to the best."""
        return largest_fall(self.levels[: self.best + 1])

    @property
    def swing(self) -> float:
        """How far the level has fallen on the way to its best, or has come up since."""
        return max(self.fall_before_best, largest_fall(-self.levels[self.best :]))

    @property
    def gained(self) -> float:
        """How far the best level is above the lowest before it."""
        return self.top - float(self.levels[: self.best + 1].min())

    @once
    def _medians(self) -> Float64Array:
        return medians_of(self._windows)

    @once
    def _safe(self) -> Float64Array:
        return np.minimum(self.levels, self._medians)

    @property
    def later(self) -> Float64Array:
        """The levels that share no row with the first one."""
        return self._safe[self.width :]

    @once
    def best(self) -> int:
        return int(np.argmax(self._safe))

    @property
    def top(self) -> float:
        return float(self._safe[self.best])

    @property
    def first(self) -> float:
        return float(max(self.levels[0], self._medians[0]))

    @property
    def now(self) -> float:
        return float(max(self.levels[-1], self._medians[-1]))


@lru_cache(16)
def rows_of(means: tuple[float, ...], sign: float) -> Rows:
    """Those of `means`, larger ones better after `sign`. Several rules look at the same series."""
    return Rows(np.array(means) * sign)


@lru_cache(32)
def levels_of(rows: Rows, part: int) -> Levels:
    """Those that are means of a `part`th of `rows`."""
    return Levels(rows, part)


def may_gain_at(ranks: Float64Array, at: int, noise: tuple[float, float]) -> bool:
    """Whether what comes from row `at` on may lie higher than what came before; `noise` as in `gain_at`.

    By their means, or if nine in ten pairs of an earlier and a later row agree.
    """
    if at < SHORTEST or len(ranks) - at < SHORTEST:
        return False
    return gain_at(ranks, at, noise) > BARELY or higher(ranks, at) > HIGHER * len(ranks)


def gain_at(ranks: Float64Array, at: int, noise: tuple[float, float]) -> float:
    """By how many standard errors rows from `at` on are higher than those before; 0 if they are too few.

    `noise` is the `dependence` of `ranks`.
    """
    if at < SHORTEST or len(ranks) - at < SHORTEST:
        return 0.0
    before, after = (error_of_difference(*noise, many) / math.sqrt(2) for many in (at, len(ranks) - at))
    error = math.hypot(before, after)
    return higher(ranks, at) / error if error else 0.0


def higher(ranks: Float64Array, at: int) -> float:
    """By ranks, as the noise of a reward that grows is often larger than it was at the start."""
    return float(ranks[at:].mean() - ranks[:at].mean())


def largest_fall(levels: Float64Array) -> float:
    """How far a level is below an earlier one, at most."""
    return float((np.maximum.accumulate(levels) - levels).max())
