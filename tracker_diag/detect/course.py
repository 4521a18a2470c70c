"""The course of a series over a whole run: its best level so far, and whether what it had gained is lost.

It is for outcomes such as reward or evaluation, whose scale, sign and noise are not known beforehand. Everything is
compared with the series itself: its noise from row to row, and what it had gained up to its best. A level is the mean
of a tenth of the run, three rows at least. For a fall that noise hides there, it is the mean of a quarter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracker_diag.detect.levels import (
    APART,
    BARELY,
    SHORTEST,
    SPLITS,
    Levels,
    gain_at,
    largest_fall,
    levels_of,
    may_gain_at,
    rows_of,
)
from tracker_diag.detect.means import BlockMeans
from tracker_diag.errors import SourceError

FEWEST = 10
"""Rows from which on a course can be judged."""
PARTS = (10, 4)
"""A level is the mean of this part of the run. A fall that noise hides in a tenth may be sure in a quarter."""
WANDER = 2.5
"""Times as far as the level has gone the other way, at least."""
EFFECT = 4.0
"""Standard deviations of the noise of a row that a fall needs, where nothing had been gained for sure before: what many
rows make sure may still be too small to matter."""
SURE = 5.0
"""Standard errors of the difference of two levels by which one is below the best: the best is one of many."""
AGAIN = 1.2
"""Times as sure in the wider levels: a second look is a second chance to be wrong."""
FAR = 6.0
"""How many times as far a fall must go as any rise, to be no chance."""
LEARNT = 0.25
"""Part of such a fall that had been gained before, at least: a run's first rows say little of how it wanders."""
STAYS = 15
"""A fall is one if it is seen for a row and this part of the run: at the first rows a few low ones look like one."""
DIP = 3
"""Rows that it must be seen again for each on which it is not."""
FEW = 2.0
"""By this over √n both limits are wider with n values: what tells the noise is itself a sample."""
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
REGAINED = 0.7
"""Part of its largest fall by which a series that has learnt nothing may end above its first level."""


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
    _part: int = PARTS[0]
    """The part of the run of which levels are means: that in which the fall was seen."""
    _seen: int = 0
    """Rows on which it was."""
    _fallen: bool = False
    """Whether it was seen for long enough, and the level has not come back."""
    _since: int = 0
    """The step at which that was so."""
    _at: "dict[int, Levels]" = field(default_factory=dict[int, Levels], compare=False)
    """Its course, by the part of the run that a level is the mean of, until the next block."""

    def append(self, step: int, value: float) -> None:
        """Take the next value."""
        self.rows += 1
        if not self._blocks.append(step, value):
            return
        self._at = {}
        part, size = self._looks_down(), self._blocks.size
        self._seen = self._seen + size if part else max(0, self._seen - DIP * size)
        if part and not self._fallen and self._seen >= 1 + self.rows / STAYS:
            self._fallen, self._part, self._since = True, part, step
        elif self._fallen:
            self._fallen = not self._is_back()
        if not self._fallen:
            self._part = PARTS[0]

    @property
    def has_fallen(self) -> bool | None:
        """Whether it has fallen, and is not back near its best; None with fewer than `FEWEST` rows."""
        return self._fallen if len(self._blocks.means) >= FEWEST else None

    def _is_back(self) -> bool:
        """Whether the best level came after the fall, or the last one is `BACK` of the way up."""
        at = self._stands(self._part)
        low = float(at.levels[at.best :].min())
        is_new = self._blocks.ends[at.best + at.width - 1] > self._since
        return is_new or at.now >= low + BACK * (at.top - low)

    def fall(self) -> Fall | None:
        """The course of the series; None with fewer than `FEWEST` rows."""
        return (
            replace(self._judged(self._part), lost=bool(self.has_fallen)) if len(self._blocks.means) >= FEWEST else None
        )

    def sinks(self) -> tuple[int, float] | None:
        """The step from which on every row is as low as after a fall, and their mean; None with fewer than `SHORTEST`.

        It is said long before a fall is: a level is made of more rows, and a few low ones may be chance.
        """
        at, sign = self._stands(), 1.0 if self.rising else -1.0
        least = self._least(at, self._gained(), at.fall_before_best)
        since = int(np.flatnonzero(at.y >= at.top - least)[-1]) + 1
        if len(at.y) - since < SHORTEST:
            return None
        return self._blocks.ends[since], sign * float(at.y[since:].mean())

    def gain(self) -> Gain | None:
        """What has been gained; None with fewer than `FEWEST` rows."""
        if len(self._blocks.means) < FEWEST:
            return None
        at, sign = self._stands(), 1.0 if self.rising else -1.0
        # The best level of those that share no row with the first one.
        gained, noise, wider = float(at.later.max()) - at.first, at.rows.noise, 1 + FEW / math.sqrt(len(at.y))
        wander = max(at.fall_before_best, at.noise_of_levels)
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
        """Whether no part of the run, except the first rows, is higher than what came before but by chance.

        A series that has just fallen below its first level is said not to. Needs `FEWEST` rows.
        """
        at = self._stands()
        low = at.first - EFFECT * at.rows.noise
        if at.now < low <= float(at.levels[int(LATELY * len(at.levels))]):
            return False
        return not any(
            may_gain_at(at.rows.ranks, split) for split in {SHORTEST, *(int(len(at.y) * part) for part in SPLITS)}
        )

    def ends_as_it_began(self) -> bool:
        """Whether the last fifth of the run is above the first level by less than `REGAINED` of its largest fall.

        And whether the mean after the first quarter is above it by less than `STEP` standard deviations. It is not so
        for a series that has just fallen below its first level, or rises little but steadily. Nor for one whose first
        `SHORTEST` rows are below nearly all others. A tenth of a long run may come after all learning. Needs `FEWEST`
        rows.
        """
        at = self._stands()
        if at.now < at.first - EFFECT * at.rows.noise:
            return False
        last = slice(-max(SHORTEST, len(at.y) // 5), None)
        if at.width >= 2 * SHORTEST:
            risen = float(at.rows.ranks[last].mean() - at.rows.ranks[:SHORTEST].mean())
            if risen > APART * len(at.y):
                return False
        early = len(at.y) // 4
        gained = float(at.y[early:].mean() - at.y[:early].mean())
        if gained > STEP * float(at.y.std()) or at.y[last].mean() - at.first > REGAINED * largest_fall(at.levels):
            return False
        return all(gain_at(at.rows.ranks, int(len(at.y) * part), doubt=0.0) <= BARELY for part in SPLITS)

    def _looks_down(self) -> int | None:
        """The part of the run by whose levels the rows so far look like a fall; None if they do not."""
        if len(self._blocks.means) < FEWEST:
            return None
        return next((part for part in PARTS if self._may_be_down(part) and self._judged(part).lost), None)

    def _may_be_down(self, part: int) -> bool:
        """Whether the last level may lie low enough; at most rows a glance tells that it does not."""
        at = self._stands(part)
        top = int(np.argmax(at.levels))
        drop, gained = at.levels[top] - at.levels[-1], at.levels[top] - at.levels[: top + 1].min()
        if drop <= self.lost * gained:
            return False
        return bool(drop > self.surer * min(SURE * at.error, FAR * at.noise_of_levels))

    def _stands(self, part: int = PARTS[0]) -> Levels:
        if part not in self._at:
            self._at[part] = levels_of(rows_of(tuple(self._blocks.means), 1.0 if self.rising else -1.0), part)
        return self._at[part]

    def _judged(self, part: int) -> Fall:
        """What the rows so far look like, by levels that are means of a `part`th of the run."""
        at, sign = self._stands(part), 1.0 if self.rising else -1.0
        y, levels, width, best, top = at.y, at.levels, at.width, at.best, at.top
        now = min(at.now, top)
        drop, before, since = top - now, levels[: best + 1], levels[best:]
        # Wide levels blur what was gained.
        gained = max(top - float(before.min()), self._gained())
        # Down on the way to the best, or up since: what only wanders has fallen as far before, or has come back since.
        wander = max(at.fall_before_best, largest_fall(-since))
        quarter = top - drop / 4
        high = best + int(np.flatnonzero(since >= quarter)[-1])
        began = len(y) - 1
        if high + 1 < len(levels):  # a level is low some rows after the first low one
            low = y[high + 1 : high + width] < quarter
            began = high + width - int(np.argmin(low[::-1]) if not low.all() else len(low))
        wider = self.surer * (1 + FEW / math.sqrt(len(y))) * (1.0 if part == PARTS[0] else AGAIN)
        sure, stays = drop > SURE * wider * at.error, self._stands().width
        learnt = best >= width and gained > LEARNT * drop
        far = learnt and drop > FAR * wider * max(wander, at.noise_of_levels)
        return Fall(
            best=sign * top,
            best_step=self._blocks.ends[best + width - 1],
            now=sign * now,
            onset=self._blocks.ends[began],
            lost=(sure or far) and drop > self._least(at, gained, wander) and len(levels) - 1 - high >= stays,
        )

    def _gained(self) -> float:
        """How far the best level of a tenth of the run is above the lowest before it."""
        at = self._stands()
        return at.top - float(at.levels[: at.best + 1].min())

    def _least(self, at: Levels, gained: float, wander: float) -> float:
        """How far a level is below the best, at least, if what was gained is lost."""
        is_sure = gained > SURE * (1 + FEW / math.sqrt(len(at.y))) * at.error
        matters = 0.0 if is_sure else self.surer * EFFECT * at.rows.noise
        return max(self.lost * gained, self.surer * WANDER * wander, matters)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {"rows": self.rows, "blocks": self._blocks.state_dict(), "part": self._part, "seen": self._seen,
                "fallen": self._fallen, "since": self._since}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; SourceError if it is none."""
        blocks = state["blocks"]
        if len(blocks["means"]) != len(blocks["ends"]) or blocks["size"] < 1:
            raise SourceError(f"course: {len(blocks['means'])} means with {len(blocks['ends'])} ends given")
        self.rows, self._blocks, self._at = state["rows"], BlockMeans(**blocks), {}
        self._part, self._seen = state["part"], state["seen"]
        self._fallen, self._since = state["fallen"], state["since"]
