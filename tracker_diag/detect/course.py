"""The course of a series over a whole run: its best level so far, and whether what it had gained is lost.

For the outcome, as reward or evaluation, whose scale, sign and noise nobody knows beforehand. Everything is held
against the series itself: its noise from row to row, and what it had gained up to its best. A level is the mean of a
tenth of the run, three rows at least.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tracker_diag.detect.noise import DOUBT, medians_of, noise_of, ranks_of, standard_error
from tracker_diag.errors import SourceError
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.stats.once import once

FEWEST = 10
"""Rows from which on a course can be told."""
MOST = 128
"""Blocks that are kept: when there are twice as many, each two become one."""
PART = 10
"""A level is the mean of this part of the run."""
SHORTEST = 3
"""Rows of a level, at least."""
WANDER = 2.5
"""Times as far as the level has gone the other way, at least."""
EFFECT = 4.0
"""Standard deviations of the noise of a row, at least: what many rows make sure may still be too small to matter."""
SURE = 5.0
"""Standard errors of the difference of two levels by which one lies below the best: the best is one of many."""
FAR = 6.0
"""Times as far as the level has gone the other way, from which on a fall is no chance however the rows depend."""
LEARNT = 0.25
"""Part of such a fall that had been gained before, at least: a run's first rows say little of how it wanders."""
STAYS = 15
"""A fall is one if it is seen for a row and this part of the run: at the first rows a few low ones look like one."""
DIP = 3
"""Rows that it must be seen again for each on which it is not."""
FEW = 2.0
"""By this over √n both limits are wider with n values: what tells the noise is itself a sample."""
RISEN = 3.5
"""Standard errors by which the best level lies above the first of a series that has risen."""
RANKED = 2.5
"""The same of later rows above earlier ones, by their ranks."""
CLEAR = 2.0
"""Times as far as the level has fallen on the way to its best, for a rise that ranks alone show."""
BACK = 2 / 3
"""Part of a fall that is made good, from which on it is one no more."""
KEPT = 2 / 3
"""Part of a gain that is there yet, of a series that is said to keep it."""
BARELY = 1.5
"""Standard errors by which later rows must lie higher than earlier ones, or something may have been gained."""
APART = 0.4
"""The same in ranks, of the number of rows: 0.5 if every later row lies higher than every earlier one."""
LATELY = 0.6
"""Part of the run after which a fall below the first level is a late one, and no want of learning."""
STEP = 1.25
"""Standard deviations that a series gains after its first quarter, at least, if it has learnt at all: one that is at
its level after a tenth of the run gains 1.33, one that rises steadily 1.73."""
REGAINED = 0.7
"""Part of its largest fall by which a series that has learnt nothing may end above its first level."""
SPLITS = (0.1, 0.25, 0.5, 0.75)
"""Parts of the run, the first three rows beside them, after which the rest is held against what came before."""


@dataclass(frozen=True)
class Fall:
    """Where a series stands against its best; levels in its own unit."""

    best: float
    """The best level."""
    best_step: int
    """The step at which that level ends."""
    now: float
    """The last level."""
    onset: int
    """The step from which on the level lies lower than a quarter of the way down from the best, and of its rows each
    from then on; the last step, if it does not."""
    lost: bool
    """Whether so much of what was gained is gone, for as long as a level is, and more than chance takes away."""


@dataclass(frozen=True)
class Gain:
    """What a series has gained since it began; levels in its own unit."""

    first: float
    """The first level."""
    now: float
    """The last level."""
    rose: bool
    """Whether it rose from the first to its best level by more than chance and its own ups and downs explain, or later
    rows lie higher than earlier ones, which rows that depend may seem to do by chance."""
    keeps: bool
    """Whether the last level has at least `KEPT` of what lies between the first and the best, but for its noise."""
    surely: bool
    """Whether it rose by its levels, whatever its ranks say."""
    firmly: bool
    """Whether it keeps that without allowance for noise."""

    @property
    def kept(self) -> bool:
        """Whether it rose, and keeps that."""
        return self.rose and self.keeps


@dataclass
class Course:
    """Means of at most `MOST` to twice as many blocks of rows, of one size, over the whole run.

    `rising` is the direction that is better; `lost` the part of what had been gained that is gone after a fall, at
    least.
    """

    rising: bool = True
    lost: float = 0.5
    surer: float = 1.0
    """Factor to the limits of a fall that are a matter of chance."""
    rows: int = 0
    _size: int = 1
    """Rows of a block."""
    _means: list[float] = field(default_factory=list[float])
    _ends: list[int] = field(default_factory=list[int])
    """The last step of each block."""
    _open: list[float] = field(default_factory=list[float])
    _down: bool = False
    """Whether a fall is seen at the last block."""
    _seen: int = 0
    """Rows on which it was."""
    _fallen: bool = False
    """Whether it was seen for long enough, and the level has not come back."""
    _at: "_Standing | None" = field(default=None, compare=False)
    """Where it stands, until the next block."""

    def add(self, step: int, value: float) -> None:
        """Take the next value."""
        self.rows += 1
        self._open.append(min(max(value, -1e100), 1e100))
        if len(self._open) < self._size:
            return
        self._means.append(sum(self._open) / self._size)
        self._ends.append(step)
        self._open, self._at = [], None
        if len(self._means) == 2 * MOST:
            self._means = [(a + b) / 2 for a, b in zip(self._means[::2], self._means[1::2], strict=True)]
            self._ends, self._size = self._ends[1::2], 2 * self._size
        self._down = self._looks_down()
        self._seen = self._seen + self._size if self._down else max(0, self._seen - DIP * self._size)
        if self._down and self._seen >= 1 + self.rows / STAYS:
            self._fallen = True
        elif self._fallen:
            self._fallen = not self._is_back()

    @property
    def has_fallen(self) -> bool | None:
        """Whether it has fallen, and is not back near its best; None with fewer than `FEWEST` rows."""
        return self._fallen if len(self._means) >= FEWEST else None

    def _is_back(self) -> bool:
        """Whether the last level has come `BACK` from the lowest since the best."""
        at = self._stands()
        low = float(at.levels[at.best :].min())
        return at.now >= low + BACK * (at.top - low)

    def fall(self) -> Fall | None:
        """Where the series stands; None with fewer than `FEWEST` rows."""
        return replace(self._judged(), lost=bool(self.has_fallen)) if len(self._means) >= FEWEST else None

    def sinks(self) -> tuple[int, float] | None:
        """The step from which on every row lies as low as a fall would, and their mean; None if `SHORTEST` do not.

        It is said long before a fall is: a level is made of more rows, and a few low ones may be chance.
        """
        at, sign = self._stands(), 1.0 if self.rising else -1.0
        gained = at.top - float(at.levels[: at.best + 1].min())
        least = self._least(gained, at.fall_before_best, at.noise)
        since = int(np.flatnonzero(at.y >= at.top - least)[-1]) + 1
        if len(at.y) - since < SHORTEST:
            return None
        return self._ends[since], sign * float(at.y[since:].mean())

    def gain(self) -> Gain | None:
        """What has been gained; None with fewer than `FEWEST` rows."""
        if len(self._means) < FEWEST:
            return None
        at, sign = self._stands(), 1.0 if self.rising else -1.0
        # The best level of those that share no row with the first one.
        gained, noise, wider = float(at.later.max()) - at.first, at.noise, 1 + FEW / math.sqrt(len(at.y))
        wander = max(at.fall_before_best, 2 * noise * math.sqrt(2 / at.width))
        by_levels = gained > wider * min(RISEN * at.error, FAR * wander)
        rose = gained > noise and (
            by_levels or at.ranks_higher or (at.ranks_far and gained > CLEAR * at.fall_before_best)
        )
        lost = KEPT * gained - (at.now - at.first)
        return Gain(
            first=sign * at.first,
            now=sign * at.now,
            rose=rose,
            keeps=lost <= noise / math.sqrt(at.width),
            surely=rose and by_levels,
            firmly=lost <= 0,
        )

    def never_rose(self) -> bool:
        """Whether no part of the run, the first rows apart, lies higher than what came before but by chance.

        A series that has just fallen below its first level is said not to. Needs `FEWEST` rows.
        """
        at = self._stands()
        low = at.first - EFFECT * at.noise
        if at.now < low <= float(at.levels[int(LATELY * len(at.levels))]):
            return False
        return not any(_gains_at(at.ranks, split) for split in {SHORTEST, *(int(len(at.y) * part) for part in SPLITS)})

    def ends_as_it_began(self) -> bool:
        """Whether the last fifth of the run lies above the first level by less than `REGAINED` of its largest fall.

        And the run after its first quarter above that by less than `STEP` of its standard deviation, in the mean. A
        series that has just fallen below its first level does not, nor one that rises little but steadily, nor one
        whose first `SHORTEST` rows lie below nearly all others: a tenth of a long run may be after all that is learnt.
        Needs `FEWEST` rows.
        """
        at = self._stands()
        if at.now < at.first - EFFECT * at.noise:
            return False
        last = slice(-max(SHORTEST, len(at.y) // 5), None)
        if at.width >= 2 * SHORTEST:
            risen = float(at.ranks[last].mean() - at.ranks[:SHORTEST].mean())
            if risen > APART * len(at.y):
                return False
        early = len(at.y) // 4
        gained = float(at.y[early:].mean() - at.y[:early].mean())
        if gained > STEP * float(at.y.std()) or at.y[last].mean() - at.first > REGAINED * _largest_fall(at.levels):
            return False
        return all(_gain_at(at.ranks, int(len(at.y) * part), doubt=0.0) <= BARELY for part in SPLITS)

    def _looks_down(self) -> bool:
        """Whether the rows so far look like a fall. At most rows a glance at the levels tells that they do not."""
        if len(self._means) < FEWEST:
            return False
        at = self._stands()
        return bool(at.levels.max() - at.levels[-1] > self.surer * EFFECT * at.noise) and self._judged().lost

    def _stands(self) -> "_Standing":
        if self._at is None:
            self._at = _standing(tuple(self._means), 1.0 if self.rising else -1.0)
        return self._at

    def _judged(self) -> Fall:
        """What the rows so far look like."""
        at, sign = self._stands(), 1.0 if self.rising else -1.0
        y, levels, width, best, top = at.y, at.levels, at.width, at.best, at.top
        now = min(at.now, top)
        drop, before, since = top - now, levels[: best + 1], levels[best:]
        gained = top - float(before.min())
        # Down on the way to the best, or up since: what only wanders has fallen as far before, or has come back since.
        wander = max(at.fall_before_best, _largest_fall(-since))
        quarter = top - drop / 4
        high = best + int(np.flatnonzero(since >= quarter)[-1])
        began = len(y) - 1
        if high + 1 < len(levels):  # a level is low some rows after the first low one
            low = y[high + 1 : high + width] < quarter
            began = high + width - int(np.argmin(low[::-1]) if not low.all() else len(low))
        wider = self.surer * (1 + FEW / math.sqrt(len(y)))
        sure = drop > SURE * wider * at.error
        learnt = best >= width and gained > LEARNT * drop
        noise = at.noise
        far = learnt and drop > FAR * wider * max(wander, 2 * noise * math.sqrt(2 / width))
        return Fall(
            best=sign * top,
            best_step=self._ends[best + width - 1],
            now=sign * now,
            onset=self._ends[began],
            lost=(sure or far) and drop > self._least(gained, wander, noise) and len(levels) - 1 - high >= width,
        )

    def _least(self, gained: float, wander: float, noise: float) -> float:
        """How far a level lies below the best, at least, if what was gained is lost."""
        return max(self.lost * gained, self.surer * WANDER * wander, self.surer * EFFECT * noise)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {"rows": self.rows, "size": self._size, "means": list(self._means), "ends": list(self._ends),
                "open": list(self._open), "seen": self._seen, "fallen": self._fallen}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; SourceError if it is none."""
        if len(state["means"]) != len(state["ends"]) or state["size"] < 1:
            raise SourceError(f"course: {len(state['means'])} means with {len(state['ends'])} ends given")
        self.rows, self._size = state["rows"], state["size"]
        self._means, self._ends, self._open = list(state["means"]), list(state["ends"]), list(state["open"])
        self._at = None
        self._seen, self._fallen, self._down = state["seen"], state["fallen"], self._looks_down()


class _Standing:
    """The levels of a course of blocks `y`, larger ones better.

    One odd row in three moves a mean, and leaves the median. At most rows nobody asks for more than the means.
    """

    def __init__(self, y: Float64Array) -> None:
        self.y, self.width = y, max(SHORTEST, math.ceil(len(y) / PART))
        # As `sliding_window_view` and `mean` do, in a fifth of their time.
        self._windows: Float64Array = np.ndarray((len(y) - self.width + 1, self.width), y.dtype, y, 0, 2 * y.strides)
        self.levels: Float64Array = np.add.reduce(self._windows, axis=1) / self.width

    @once
    def noise(self) -> float:
        return noise_of(self.y)

    @once
    def ranks(self) -> Float64Array:
        return ranks_of(self.y)

    @once
    def ranks_higher(self) -> bool:
        """Whether later rows lie higher than earlier ones by their ranks, by more than chance."""
        return any(_gain_at(self.ranks, split, DOUBT) > RANKED for split in self._splits)

    @once
    def ranks_far(self) -> bool:
        """Whether nearly all later rows lie higher than the earlier ones, which rows that depend may do by chance."""
        return any(_higher(self.ranks, split) > APART * len(self.y) for split in self._splits)

    @property
    def _splits(self) -> set[int]:
        return {split for part in SPLITS[:-1] if (split := int(len(self.y) * part)) >= SHORTEST}

    @once
    def error(self) -> float:
        return standard_error(self.y, self.width)

    @once
    def fall_before_best(self) -> float:
        """How far the level has fallen on the way to the best."""
        return _largest_fall(self.levels[: self.best + 1])

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
def _standing(means: tuple[float, ...], sign: float) -> _Standing:
    """That of `means`, larger ones better after `sign`. Several rules look at the same series."""
    return _Standing(np.array(means) * sign)


def _gains_at(ranks: Float64Array, at: int) -> bool:
    """Whether what comes from row `at` on may lie higher than what came before.

    By their means, or as nine in ten pairs of an earlier and a later row say so, however the rows depend.
    """
    if at < SHORTEST or len(ranks) - at < SHORTEST:
        return False
    return _gain_at(ranks, at, doubt=-1.0) > BARELY or _higher(ranks, at) > APART * len(ranks)


def _gain_at(ranks: Float64Array, at: int, doubt: float) -> float:
    """By how many standard errors what comes from row `at` on lies higher than what came before; 0 of too few rows."""
    if at < SHORTEST or len(ranks) - at < SHORTEST:
        return 0.0
    before, after = (standard_error(ranks, many, doubt) / math.sqrt(2) for many in (at, len(ranks) - at))
    error = math.hypot(before, after)
    return _higher(ranks, at) / error if error else 0.0


def _higher(ranks: Float64Array, at: int) -> float:
    """By ranks, as the noise of a reward that grows is often larger than it was at the start."""
    return float(ranks[at:].mean() - ranks[:at].mean())


def _largest_fall(levels: Float64Array) -> float:
    return float((np.maximum.accumulate(levels) - levels).max())
