"""Phases: a step counter that begins again in the middle of a log, and what becomes of the rows after it."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

REWOUND = 0.1  # up to this share of a phase's rows, a fall of the counter is a resumed run
WAITING = 100  # rows that wait at most until it is known whether a new phase begins with them
LISTED = 5  # phases that a caveat lists
EVEN = 0.8  # share of equal distances between rows from which on a longer distance is a gap


@dataclass(frozen=True)
class Row:
    """One row as the source gives it."""

    step: int
    values: dict[str, float]
    clock: float | None = None
    resumed: bool = False
    """Whether it is known that it takes the place of an earlier row."""


@dataclass
class _Phase:
    first: int
    offset: int = 0
    rows: int = 0
    last: int = 0


class Phases:
    """Puts rows in their phases, so that steps rise; `place` gives rows back under the steps to show.

    A row below the highest step is one of these:

    - an exact copy of what is there: left out, counted;
    - a row with other keys, or a single stray row: it goes to its step, as asynchronous writers log so;
    - the first of several rising rows, of which some differ from what is there: the counter has begun again. Where
      little is repeated the run was resumed, and the later rows count. Else a new phase begins, and its steps follow
      those of the last phase.

    Args:
        there: the values that are there under a shown step.
    """

    def __init__(self, there: Callable[[int], Mapping[str, float]]) -> None:
        self._there = there
        self._phases: list[_Phase] = []
        self._steps: list[int] = []  # of the phase, in rising order
        self._waiting: list[Row] = []
        self._differs = False  # whether one of the waiting rows differs from what is there
        self._again_until: int | None = None
        self._clock = 0.0
        self._shift = 0.0
        self._copies = 0
        self._resumed: list[tuple[int, int]] = []

    def place(self, row: Row) -> Iterator[Row]:
        """The rows whose step is now known, under the step to show."""
        if not self._phases:
            self._phases.append(_Phase(row.step, last=row.step))
        there: Mapping[str, float] = {}
        if self._steps and row.step <= self._steps[-1]:
            there = self._there(row.step + self._phases[-1].offset)
            if row.values and all(key in there and same(there[key], value) for key, value in row.values.items()):
                self._copies += 1
                return
        if not self._steps or row.step >= self._steps[-1]:
            yield from self._stray()
            yield self._in_order(row)
            return
        if self._waiting and row.step < self._waiting[-1].step:
            yield from self._stray()
        self._differs |= any(key in there and not same(there[key], value) for key, value in row.values.items())
        self._waiting.append(row)
        if self._differs and row.step > self._waiting[0].step:
            yield from self._begin_again()
        elif len(self._waiting) > WAITING:
            yield self._shown(self._waiting.pop(0))

    def rest(self) -> Iterator[Row]:
        """The rows that still wait at the end."""
        if self._differs and self._waiting[0].step <= self._phases[-1].first:
            yield from self._begin_again()
        yield from self._stray()

    def caveats(self) -> Iterator[str]:
        """What a reader of the verdict has to know, a sentence each."""
        if len(self._phases) > 1:
            parts, row = [], 0
            for phase in self._phases[:LISTED]:
                steps = f"steps {phase.first} to {phase.last}"
                if phase.offset:
                    steps += f", shown as {phase.first + phase.offset} to {phase.last + phase.offset}"
                parts.append(f"rows {row + 1} to {row + phase.rows} ({steps})")
                row += phase.rows
            if len(self._phases) > LISTED:
                parts.append(f"and {len(self._phases) - LISTED} more phases")
            yield f"the step counter begins again: {len(self._phases)} phases, all rows are kept: {', '.join(parts)}"
        if self._resumed:
            at, before = self._resumed[0]
            times = "once" if len(self._resumed) == 1 else f"{len(self._resumed)} times"
            repeated = "of repeated steps the later rows count"
            yield f"the run was resumed {times}, first at step {at} after step {before}: {repeated}"
        if self._copies:
            yield f"{self._copies} rows repeat earlier rows exactly: they count once"

    def _in_order(self, row: Row) -> Row:
        phase = self._phases[-1]
        if not self._steps or row.step > self._steps[-1]:
            self._steps.append(row.step)
            phase.rows, phase.last = phase.rows + 1, row.step
        resumed = self._again_until is not None and row.step <= self._again_until
        if not resumed:
            self._again_until = None
        return self._shown(row, resumed=resumed)

    def _stray(self) -> Iterator[Row]:
        for row in self._waiting:
            yield self._shown(row)
        self._waiting, self._differs = [], False

    def _begin_again(self) -> Iterator[Row]:
        rows, self._waiting, self._differs = self._waiting, [], False
        first = min(row.step for row in rows)
        kept = bisect_left(self._steps, first)
        repeated = len(self._steps) - kept
        phase = self._phases[-1]
        if repeated <= REWOUND * len(self._steps):
            self._resumed.append((first, self._steps[-1]))
            self._again_until = max(self._steps[-1], self._again_until or 0)
            phase.rows -= repeated
            del self._steps[kept:]
        else:
            steps = sorted({row.step for row in rows})
            a, b, *_ = steps if len(steps) > 1 else (*self._steps[:2], first, first + 1)
            distance = b - a
            self._phases.append(_Phase(first, phase.last + phase.offset + distance - first, last=first))
            self._steps, self._again_until = [], None
            clock = rows[0].clock
            if clock is not None and clock + self._shift < self._clock:
                self._shift = self._clock - clock
        for row in rows:
            yield self._in_order(row)

    def _shown(self, row: Row, *, resumed: bool = False) -> Row:
        clock = None if row.clock is None else row.clock + self._shift
        self._clock = max(self._clock, clock or 0.0)
        return Row(row.step + self._phases[-1].offset, row.values, clock, resumed)


def same(a: float, b: float) -> bool:
    """Whether two values are equal, or both NaN."""
    return a == b or (math.isnan(a) and math.isnan(b))


def gaps(steps: list[int]) -> str:
    """A sentence on the gaps in rising `steps` that have an even distance otherwise; empty without any."""
    distances = [later - earlier for earlier, later in pairwise(steps)]
    usual = int(median(distances)) if len(distances) >= 5 else 0
    longer = [(distance, at) for at, distance in zip(steps, distances, strict=False) if distance >= 2 * usual]
    if not usual or not longer or sum(distance == usual for distance in distances) < EVEN * len(distances):
        return ""
    longest, at = max(longer)
    many = f"{len(longer)} gaps in the steps, the longest" if len(longer) > 1 else "a gap in the steps"
    return f"{many} from {at} to {at + longest}; the usual distance is {usual}"
