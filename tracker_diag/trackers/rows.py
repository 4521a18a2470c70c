"""Rows of numbers by step, from what a source gives in any order, with what was odd about it."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import cast

from tracker_diag.errors import SourceError
from tracker_diag.metrics.aliases import known_keys
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.phases import Phases, Row, gaps, same

LIMIT = 4_000_000
"""Values that are held, about 0.6 GB. Beyond it keys that nobody reads are left out, then neighbours share a row."""
NON_FINITE = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
"""How trackers write in JSON what JSON cannot say; in lower case."""


def number(value: object) -> float | None:
    """`value` as a float: numbers, truth values, and the names of NaN and infinity; None for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # an integer beyond 1.8e308
            return None
    return float(value) if isinstance(value, str) and value.lower() in NON_FINITE else None


SINCE_1970 = 1e9  # seconds from which on a clock is one that counts from 1970, and not one of the run's own


@dataclass(slots=True)
class _Held:
    """The values of a step, or of neighbouring steps that share a row."""

    end: int  # the last of these steps
    values: dict[str, float]
    clock: float | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    """How many values each mean is of, where these are several."""

    def blend(self, key: str, value: float, n: int = 1) -> None:
        """Take a value, or the mean of `n`, into the mean of `key`; what is not finite stays."""
        before = self.values.get(key)
        if before is None or (math.isfinite(before) and not math.isfinite(value)):
            self.values[key], self.counts[key] = value, n
        elif math.isfinite(before):
            total = self.counts[key] = self.counts.get(key, 1) + n
            self.values[key] = before + (value - before) * n / total

    def include(self, later: "_Held") -> None:
        """Share a row with `later` steps."""
        for key, value in later.values.items():
            self.blend(key, value, later.counts.get(key, 1))
        self.end = later.end
        self.clock = self.clock if later.clock is None else later.clock


def in_fewer(rows: Mapping[int, Mapping[str, float]], most: int) -> dict[int, dict[str, float]]:
    """`rows` by step, at most `most`: neighbours share one, under the last of their steps, as in `Rows`."""
    width = 1
    while len(rows) > most * width:
        width *= 2
    fewer: dict[int, dict[str, float]] = {}
    upcoming = iter(rows.items())
    while together := [*islice(upcoming, width)]:
        held = _Held(together[-1][0], {})
        for _, values in together:
            for key, value in values.items():
                held.blend(key, value)
        fewer[held.end] = held.values
    return fewer


class Rows(Odd):
    """Collects values by step; `finish` makes the run of them.

    Memory grows with the run up to `LIMIT` values. Beyond it two things are done, in this order. Values of keys that
    are no metric are left out, but for the first of each key. If that is not enough, the rows of neighbouring steps
    become one row with the mean of each key. It has the last of these steps. A value that is not finite is never
    replaced by a mean.

    Args:
        in_order: whether the source gives its rows in the order in which they were logged. Then steps that fall are a
            counter that begins again. Other sources have several writers, or give one metric after the other; there
            steps are sorted.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        super().__init__()
        self._rows: dict[int, _Held] = {}  # by step, divided by `_width`
        self._width = 1  # steps that share a row
        self._held = 0
        self._limit = LIMIT
        self._unread: dict[str, bool] = {}  # whether the values of a key are left out; empty while all are kept
        self._read: list[str] = []  # the keys whose values are not
        self._top = -math.inf  # the highest step so far
        self._last: dict[str, int] = {}
        self._sentences: list[str] = []
        self._caveats: list[str] = []
        self._repeated = Odd()
        self._phases = Phases(self._there) if in_order else None
        self._skipped: SourceError | None = None
        self.added = 0
        """Rows that were added so far."""

    def note(self, sentence: str) -> None:
        """Keep `sentence` for the reader of the run."""
        self._sentences.append(sentence)

    def skip(self, error: SourceError) -> None:
        """Count one more row that cannot be read; `finish` raises the first error if nothing else was read."""
        self.count("rows that cannot be read, left out", str(error))
        self._skipped = self._skipped or error

    def warn(self, sentence: str) -> None:
        """Keep `sentence` as one that the reader of the verdict has to know first."""
        self._caveats.append(sentence)

    def put_row(self, step: int, values: Mapping[str, object], where: str, clock: float | None = None) -> None:
        """Put `values`, read at `where`, under `step`; None is no value. `clock` in seconds, from any origin."""
        self.added += 1
        if self._unread and values.keys() <= self._unread.keys():
            values = {key: values[key] for key in self._read if key in values}
        if not self._unread and set(map(type, values.values())) == {float}:
            numbers = dict(cast("Mapping[str, float]", values))
        else:
            numbers = dict(self._numbers(values, where))
        row = Row(step, numbers, clock if clock is not None and math.isfinite(clock) else None)
        for placed in self._phases.place(row) if self._phases else (row,):
            self._put_row(placed)

    def _numbers(self, values: Mapping[str, object], where: str) -> Iterator[tuple[str, float]]:
        for key, given in values.items():
            if self._unread and self._is_unread(key):
                continue
            value = given if type(given) is float else number(given)
            if value is not None:
                yield key, value
            elif given is not None and given != "":
                self.count("values that are no numbers, left out", f"{key!r} at {where}")

    def _put_row(self, given: Row) -> None:
        if given.step > self._top and self._width == 1:  # as nearly all rows do
            self._rows[given.step] = _Held(given.step, given.values, given.clock)
            self._held += len(given.values)
            self._last.update(dict.fromkeys(given.values, given.step))
        else:
            held = self._rows.setdefault(given.step // self._width, _Held(given.step, {}))
            held.end = max(held.end, given.step)
            held.clock = held.clock if given.clock is None else given.clock
            for key, value in given.values.items():
                self._put(held, key, value, given)
        self._top = max(self._top, given.step)
        if self._held > self._limit:
            if not self._unread:
                self._leave_out()
            if self._held > 0.75 * self._limit:
                self._share()

    def _there(self, step: int) -> Mapping[str, float]:
        held = self._rows.get(step // self._width)
        return held.values if held else {}

    def every(self, stride: int) -> None:
        """Take the steps so far as counts of rows that were logged every `stride` steps."""
        self._rows = {index * stride: held for index, held in self._rows.items()}
        for held in self._rows.values():
            held.end *= stride

    def finish(self, source: str, config: Mapping[str, object] | None = None, *, padded: bool = False) -> FinishedRun:
        """The run; `padded` where the format gives each row every key, so that NaN may mean that nothing was logged.

        Raises:
            SourceError: not one number was logged, or what kept the first row from being read.
        """
        for row in self._phases.rest() if self._phases else ():
            self._put_row(row)
        rows = {held.end: held.values for _, held in sorted(self._rows.items()) if held.values}
        if not rows and self._skipped:
            raise self._skipped
        if not rows:
            remarks = "".join(f"; {sentence}" for sentence in (*self._sentences, *self.notes))
            raise SourceError(f"{source}: no metrics: not one number was logged{remarks}")
        if padded:
            self._drop_padding(rows)
            rows = {step: row for step, row in rows.items() if row}
        clocks = {held.end: held.clock for held in self._rows.values()}
        clock = {step: at for step in rows if (at := clocks[step]) is not None}
        start = next(iter(clock.values()), 0.0)
        seconds = {step: at - start for step, at in clock.items()}
        began = start if start > SINCE_1970 else None
        caveats, notes = tuple(self._warned(list(rows))), (*self._sentences, *self.notes)
        return FinishedRun(source, rows, dict(config or {}), seconds, notes, began=began, caveats=caveats)

    def _put(self, held: _Held, key: str, value: float, given: Row) -> None:
        last = self._last.get(key, given.step)
        if given.step < last:
            self.count("values logged after those of a later step, sorted in", f"{key!r}: {given.step} after {last}")
        self._last[key] = given.step
        before = held.values.get(key)
        self._held += before is None
        if self._width > 1:
            held.blend(key, value)
            return
        if not (before is None or same(before, value) or given.resumed):
            self._repeated.count("values that replace others of the same step", f"{key!r} at step {given.step}")
        held.values[key] = value

    def _leave_out(self) -> None:
        """Leave out the values of keys that nobody reads."""
        keys = dict.fromkeys(key for held in self._rows.values() for key in held.values)
        read = known_keys(keys)
        self._unread = {key: key not in read for key in keys}
        self._read = [key for key in keys if key in read]
        first: set[str] = set()
        for _, held in sorted(self._rows.items()):
            kept = {key: value for key, value in held.values.items() if not self._unread[key] or key not in first}
            first.update(held.values)
            held.values = kept
        self._held = sum(len(held.values) for held in self._rows.values())

    def _is_unread(self, key: str) -> bool:
        """Whether `key` is no metric, and has a value already."""
        if key not in self._unread:
            if read := known_keys([key]):
                self._read += read
            self._unread[key] = not read
            return False
        return self._unread[key]

    def _share(self) -> None:
        """Let rows share more and more steps, until half as many rows are left."""
        wanted = len(self._rows) // 2 + 1
        while len(self._rows) > wanted:
            self._width *= 2
            rows: dict[int, _Held] = {}
            for _, held in sorted(self._rows.items()):
                index = held.end // self._width
                if index in rows:
                    rows[index].include(held)
                else:
                    rows[index] = held
            self._rows = rows
        self._held = sum(len(held.values) for held in self._rows.values())
        # Rows that have few keys in common do not shrink; sharing them again at once would take for ever.
        self._limit = LIMIT if self._held < 0.75 * LIMIT else 2 * self._held

    def _drop_padding(self, rows: dict[int, dict[str, float]]) -> None:
        nan: Counter[str] = Counter()
        for row in rows.values():
            if any(map(math.isnan, row.values())):
                nan.update(key for key, value in row.items() if math.isnan(value))
        for key in [key for key, n in nan.items() if 2 * n >= len(rows)]:
            given = [(step, row[key]) for step, row in rows.items() if key in row]
            at = [i for i, (_, value) in enumerate(given) if not math.isnan(value)]
            *gaps, last = [later - earlier for earlier, later in pairwise(at)] or [0]
            # Numbers at an even distance with NaN between them are a cadence. The run's last step may be one more. A
            # failing metric is not as regular.
            if len(set(gaps)) == 1 and gaps[0] > 1 and (last == gaps[0] or (len(gaps) > 1 and last < gaps[0])):
                for step, value in given:
                    if math.isnan(value):
                        del rows[step][key]
                self.note(f"{key} is NaN but for every {gaps[0]}th row: taken for padding, not for numbers")

    def _warned(self, steps: list[int]) -> Iterator[str]:
        """What the reader of the verdict has to know first: phases, repeated steps, gaps, thinned rows."""
        if self._phases:
            yield from self._phases.caveats()
        yield from (f"{note}; the last one counts" for note in self._repeated.notes)
        if self._phases and self._width == 1 and (gap := gaps(steps)):
            yield gap
        yield from self._caveats
        if left := sum(self._unread.values()):
            yield f"the log is long: of {left} keys that stand for no metric only the first value was kept"
        if self._width > 1:
            yield f"the log is long and thinned: {self._width} steps share a row, with the mean of each key"
