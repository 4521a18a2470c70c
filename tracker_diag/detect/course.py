"""The course of a series over a whole run: its best level so far, and whether what it had gained is lost.

It is for outcomes such as reward or evaluation, whose scale, sign and noise are not known beforehand. Everything is
compared with the series itself: its noise from row to row, and what it had gained up to its best. detect/scan.py says
whether windows of the series differ by more than chance; here is what else makes a fall one that matters.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from tracker_diag.detect.levels import (
    BARELY,
    HIGHER,
    SHORTEST,
    SPLITS,
    Levels,
    Rows,
    gain_at,
    largest_fall,
    levels_of,
    may_gain_at,
    rows_of,
)
from tracker_diag.detect.means import BlockMeans
from tracker_diag.detect.noise import dependence
from tracker_diag.detect.scan import Drop, drops
from tracker_diag.errors import SourceError

FEWEST = 10
"""Rows from which on a course can be judged."""
PART = 10
"""A level is the mean of this part of the run, three rows at least."""
WANDER = 2.5
"""Times as far as the level has gone the other way, at least, where nothing had been gained for sure."""
EFFECT = 4.0
"""Standard deviations of a row that a fall needs, where nothing had been gained for sure before: what many rows make
sure may still be too small to matter."""
HELD = 6
"""Rows on the high side of a fall, at least, and a quarter of all, if nothing had been gained: the first rows of a run
are often odd."""
STAYS = 30
"""A fall is one if it is seen for a row and this part of the run: at the first rows a few low ones look like one."""
DIP = 3
"""Rows that it must be seen again for each on which it is not."""
FAR = 6.0
"""How many times as far a rise must go as any fall on the way, to be no chance."""
FEW = 2.0
"""By this over √n both limits of a rise are wider with n values: what tells the noise is itself a sample."""
RISEN = 3.5
"""Standard errors by which the best level is above the first of a series that has risen."""
CLEAR = 2.0
"""How many times as far a rise that only ranks show must go as any fall on the way."""
BACK = 2 / 3
"""Part of a fall that is made good, from which on it is one no more."""
KEPT = 2 / 3
"""Part of a gain that is there yet, of a series that is said to keep it."""
LATELY = 0.6
"""Part of the run after which a fall below the first level is late, so learning had begun."""
STEP = 1.25
"""Standard deviations that a series gains after its first quarter, at least, if it has learnt at all: one that is at
its level after a tenth of the run gains 1.33, one that rises steadily 1.73."""
LIKELY = 2.5
"""Standard errors by which a part of the run is above the part before it, if it has probably risen."""
REGAINED = 0.7
"""Part of its largest fall by which a series that has learnt nothing may end above its first level."""


@lru_cache(16)
def drops_of(rows: Rows, surer: float) -> tuple[Drop, ...]:
    """Those of the last values of `rows`. Several rules look at the same series."""
    return tuple(drops(rows.y, *rows.scatter, surer))


@dataclass(frozen=True)
class Fall:
    """The level of a series compared with its best; levels in its own unit."""

    best: float
    """The best level."""
    best_step: int
    """The step at which that level ends."""
    now: float
    """The last level."""
    onset: int
    """From this step on, the level and its rows are a quarter or more below the best. The last step, if there is
    none."""
    lost: bool
    """Whether this part of the gain is gone, for the length of a level, and more than by chance."""


@dataclass(frozen=True)
class Gain:
    """What a series has gained since it began; levels in its own unit."""

    first: float
    """The first level."""
    now: float
    """The last level."""
    rose: bool
    """Whether it rose from the first to its best level by more than chance and its own swings. Or later rows are higher
    than earlier ones; rows that depend may seem so by chance."""
    keeps: bool
    """Whether the last level has at least `KEPT` of the gain from first to best, but for its noise."""
    firmly: bool
    """Whether it keeps that without allowance for noise."""

    @property
    def kept(self) -> bool:
        """Whether it rose, and keeps that."""
        return self.rose and self.keeps


@dataclass
class Course:
    """What has become of a series, row by row, from the means of blocks of rows.

    `rising` is the direction that is better; `lost` the part of what had been gained that is gone after a fall, at
    least.
    """

    rising: bool = True
    lost: float = 0.5
    surer: float = 1.0
    """Factor to the limits of a fall that are a matter of chance."""
    rows: int = 0
    _blocks: BlockMeans = field(default_factory=BlockMeans)
    _seen: int = 0
    """Rows on which a fall was seen."""
    _top: float | None = None
    """The level that was lost; None unless it has fallen and has not come back."""
    _top_step: int = 0
    _low: float = 0.0
    """The lowest level since."""

    def append(self, step: int, value: float) -> None:
        """Take the next value."""
        self.rows += 1
        if not self._blocks.append(step, value) or len(self._blocks.means) < FEWEST:
            return
        size, drop = self._blocks.size, self._drop()
        self._seen = self._seen + size if drop else max(0, self._seen - DIP * size)
        if self._top is not None:
            self._low = min(self._low, self._now())
            if self._now() >= self._low + BACK * (self._top - self._low):
                self._top, self._seen = None, 0
        elif drop and self._seen >= 1 + self.rows / STAYS:
            self._top, self._top_step, self._low = drop.top, self._blocks.ends[drop.at + drop.width - 1], self._now()

    @property
    def has_fallen(self) -> bool | None:
        """Whether it has fallen, and is not back near its best; None with fewer than `FEWEST` rows."""
        return self._top is not None if len(self._blocks.means) >= FEWEST else None

    def fall(self) -> Fall | None:
        """The course of the series; None with fewer than `FEWEST` rows."""
        if len(self._blocks.means) < FEWEST:
            return None
        at, sign = self._levels(), self._sign
        if self._top is None:
            return Fall(sign * at.top, self._blocks.ends[at.best + at.width - 1], sign * min(at.now, at.top),
                        self._blocks.ends[-1], lost=False)  # fmt: skip
        now = self._now()
        middle = np.convolve(at.y, np.full(SHORTEST, 1 / SHORTEST), "valid") >= self._top - (self._top - now) / 4
        high = int(np.flatnonzero(middle)[-1]) if middle.any() else -1
        below = np.flatnonzero(at.y[high + 1 :] < self._top - (self._top - now) / 4)
        onset = self._blocks.ends[high + 1 + int(below[0])] if len(below) else self._blocks.ends[-1]
        return Fall(sign * self._top, self._top_step, sign * now, onset, lost=True)

    def _drop(self) -> Drop | None:
        """The first pair of windows that differ by so much that what was gained is lost."""
        at = self._levels()
        gained = at.gained  # wide windows blur what was gained
        down = float(at.levels.max()) - float(at.y[-SHORTEST:].mean())
        if down <= self.lost * gained or not (seen := drops_of(at.rows, self.surer)):
            return None
        enough = self.surer * max(EFFECT * at.rows.noise, WANDER * at.swing, gained)
        for drop in seen:
            down = drop.top - drop.now
            high = int(np.count_nonzero(at.y > drop.now + down / 2))
            matters = drop.is_gained or (down > enough and high >= max(HELD, len(at.y) / 4))
            if matters and down > self.lost * max(drop.gained, gained):
                return drop
        return None

    def _now(self) -> float:
        """The last level, by as few rows as show a fall."""
        width = max(SHORTEST, math.ceil(len(self._blocks.means) / STAYS))
        return self._sign * float(np.mean(self._blocks.means[-width:]))

    @property
    def _sign(self) -> float:
        return 1.0 if self.rising else -1.0

    def sinks(self) -> tuple[int, float] | None:
        """The step from which on every row is as low as after a fall, and their mean; None with fewer than `SHORTEST`.

        It is said long before a fall is: a level is made of more rows, and a few low ones may be chance.
        """
        at, sign = self._levels(), self._sign
        least = max(
            self.lost * at.gained, self.surer * WANDER * at.fall_before_best, self.surer * EFFECT * at.rows.noise
        )
        since = int(np.flatnonzero(at.y >= at.top - least)[-1]) + 1
        if len(at.y) - since < SHORTEST:
            return None
        return self._blocks.ends[since], sign * float(at.y[since:].mean())

    def gain(self) -> Gain | None:
        """What has been gained; None with fewer than `FEWEST` rows."""
        if len(self._blocks.means) < FEWEST:
            return None
        at, sign = self._levels(), self._sign
        # The best level of those that share no row with the first one.
        gained, noise = float(at.later.max()) - at.first, at.rows.noise
        far = gained > CLEAR * at.fall_before_best
        # The cheapest first: ranks cost most.
        rose = gained > noise and (self._rises(at, gained) or at.ranks_higher or (far and at.ranks_far))
        lost = KEPT * gained - (at.now - at.first)
        return Gain(
            first=sign * at.first,
            now=sign * at.now,
            rose=rose,
            keeps=lost <= noise / math.sqrt(at.width),
            firmly=lost <= 0,
        )

    def rose_surely(self) -> bool:
        """Whether it rose by its levels, whatever its ranks say. Needs `FEWEST` rows."""
        at = self._levels()
        gained = float(at.later.max()) - at.first
        return gained > at.rows.noise and self._rises(at, gained)

    @staticmethod
    def _rises(at: Levels, gained: float) -> bool:
        wander = max(at.fall_before_best, at.noise_of_levels)
        return gained > (1 + FEW / math.sqrt(len(at.y))) * min(RISEN * at.error, FAR * wander)

    def never_rose(self) -> bool:
        """Whether no part of the run, except the first rows, is higher than what came before but by chance.

        A series that has just fallen below its first level is said not to. Needs `FEWEST` rows.
        """
        at = self._levels()
        low = at.first - EFFECT * at.rows.noise
        if at.now < low <= float(at.levels[int(LATELY * len(at.levels))]):
            return False
        noise, splits = dependence(at.rows.ranks, -1.0), {SHORTEST, *(int(len(at.y) * part) for part in SPLITS)}
        return not any(may_gain_at(at.rows.ranks, split, noise) for split in splits)

    def rose_after_all(self) -> bool:
        """Whether some part of the run is higher than what came before by `LIKELY`. Needs `FEWEST` rows."""
        at = self._levels()
        noise, splits = dependence(at.rows.ranks, 0.0), [int(len(at.y) * part) for part in SPLITS]
        return any(gain_at(at.rows.ranks, split, noise) > LIKELY for split in splits)

    def quarters(self) -> tuple[float, float]:
        """The means of the first and the last quarter of the run. Needs `FEWEST` rows."""
        y = self._levels().y
        return self._sign * float(y[: len(y) // 4].mean()), self._sign * float(y[-(len(y) // 4) :].mean())

    def ends_as_it_began(self) -> bool:
        """Whether the last fifth of the run is above the first level by less than `REGAINED` of its largest fall.

        And whether the mean after the first quarter is above it by less than `STEP` standard deviations. It is not so
        for a series that has just fallen below its first level, or rises little but steadily. Nor for one whose first
        `SHORTEST` rows are below nearly all others. A tenth of a long run may come after all learning. Needs `FEWEST`
        rows.
        """
        at = self._levels()
        if at.now < at.first - EFFECT * at.rows.noise:
            return False
        last = slice(-max(SHORTEST, len(at.y) // 5), None)
        if at.width >= 2 * SHORTEST:
            risen = float(at.rows.ranks[last].mean() - at.rows.ranks[:SHORTEST].mean())
            if risen > HIGHER * len(at.y):
                return False
        early = len(at.y) // 4
        gained = float(at.y[early:].mean() - at.y[:early].mean())
        if gained > STEP * float(at.y.std()) or at.y[last].mean() - at.first > REGAINED * largest_fall(at.levels):
            return False
        noise = dependence(at.rows.ranks, 0.0)
        return all(gain_at(at.rows.ranks, int(len(at.y) * part), noise) <= BARELY for part in SPLITS)

    def _levels(self) -> Levels:
        return levels_of(rows_of(tuple(self._blocks.means), self._sign), PART)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {"rows": self.rows, "blocks": self._blocks.state_dict(), "seen": self._seen, "top": self._top,
                "top_step": self._top_step, "low": self._low}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; SourceError if it is none."""
        blocks = state["blocks"]
        if len(blocks["means"]) != len(blocks["ends"]) or blocks["size"] < 1:
            raise SourceError(f"course: {len(blocks['means'])} means with {len(blocks['ends'])} ends given")
        self.rows, self._blocks, self._seen = state["rows"], BlockMeans(**blocks), state["seen"]
        self._top, self._top_step, self._low = state["top"], state["top_step"], state["low"]
