"""Rows of numbers by step, put together from what a source gives in whatever order, with what was odd about it."""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise

from tracker_diag.errors import SourceError
from tracker_diag.metrics.aliases import known_keys
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.phases import Phases, Row, gaps

LIMIT = 4_000_000
"""Values that are held, about 0.6 GB. Beyond it keys that nobody reads are left out, then neighbours share a row."""
NON_FINITE = {
    "nan": math.nan, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf,
    "infinity": math.inf, "+infinity": math.inf, "-infinity": -math.inf,
}  # fmt: skip
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
    return NON_FINITE.get(value.lower()) if isinstance(value, str) else None


SINCE_1970 = 1e9
"""Seconds from which on a clock is one that counts from 1970, and not one of the run's own."""


class Rows:
    """Collects values by step; `finish` makes the run of them.

    Memory grows with the run up to `LIMIT` values. Beyond it two things are done, in this order.
    Values of keys that stand for no metric are left out, but for the first of each key.
    If that is not enough, the rows of neighbouring steps become one row, under the last of these steps, with the mean
    of each key. A value that is not finite is never replaced by a mean.

    Args:
        in_order: whether the source gives its rows in the order in which they were logged. Then steps that fall are a
            counter that begins again. Other sources have several writers, or give one metric after the other; there
            steps are sorted.
    """

    def __init__(self, *, in_order: bool = False) -> None:
        self._rows: dict[int, dict[str, float]] = {}
        self._counts: dict[int, dict[str, int]] = {}
        """Of shared rows, how many values each mean is of, where these are several."""
        self._clock: dict[int, float] = {}
        self._ends: dict[int, int] = {}
        """Last step of each row; empty while each row is one step."""
        self._width = 1
        self._held = 0
        self._limit = LIMIT
        self._unread: dict[str, bool] = {}
        """Whether the values of a key are left out; empty while all are kept."""
        self._top = -math.inf
        """The highest step so far."""
        self._last: dict[str, int] = {}
        self._nan: dict[str, int] = {}
        self._notes: list[str] = []
        self._caveats: list[str] = []
        self._odd = Odd()
        self._repeated = Odd()
        self._phases = Phases(self._there) if in_order else None
        self._skipped: SourceError | None = None
        self.added = 0
        """Rows that were added so far."""

    def note(self, sentence: str) -> None:
        """Keep `sentence` for the reader of the run."""
        self._notes.append(sentence)

    def count(self, what: str, first: str) -> None:
        """Count one more of `what`, a plural; the note tells how many there were, and the `first`."""
        self._odd.count(what, first)

    def checked(self, text: str, where: str) -> str:
        """`text`, counted if bytes in it were no UTF-8 and had to be replaced."""
        if "\ufffd" in text:
            self.count("lines with bytes that are no UTF-8", where)
        return text

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
        numbers: dict[str, float] = {}
        for key, given in values.items():
            if self._unread and self._is_unread(key):
                continue
            value = given if type(given) is float else number(given)
            if value is not None:
                numbers[key] = value
            elif given is not None and given != "":
                self.count("values that are no numbers, left out", f"{key!r} at {where}")
        row = Row(step, numbers, clock if clock is not None and math.isfinite(clock) else None)
        for placed in self._phases.place(row) if self._phases else (row,):
            self._put_row(placed)

    def _put_row(self, given: Row) -> None:
        index = given.step // self._width
        if given.step > self._top and not self._ends:  # as nearly all rows do
            self._new_row(given)
        else:
            self._add_to_row(given, index)
        self._top = max(self._top, given.step)
        if given.clock is not None:
            self._clock[index] = given.clock
        if self._held > self._limit:
            self._shrink()

    def _new_row(self, given: Row) -> None:
        self._rows[given.step] = given.values
        self._held += len(given.values)
        self._last.update(dict.fromkeys(given.values, given.step))
        for key in [key for key, value in given.values.items() if math.isnan(value)]:
            self._nan[key] = self._nan.get(key, 0) + 1

    def _add_to_row(self, given: Row, index: int) -> None:
        row = self._rows.setdefault(index, {})
        if self._ends:
            self._ends[index] = max(given.step, self._ends.get(index, given.step))
        for key, value in given.values.items():
            self._put(row, key, value, given)

    def _there(self, step: int) -> Mapping[str, float]:
        return self._rows.get(step // self._width, {})

    def every(self, stride: int) -> None:
        """Take the steps so far as counts of rows that were logged every `stride` steps."""
        self._rows = {step * stride: row for step, row in self._rows.items()}
        self._counts = {step * stride: counts for step, counts in self._counts.items()}
        self._clock = {step * stride: clock for step, clock in self._clock.items()}
        self._ends = {index * stride: end * stride for index, end in self._ends.items()}

    def finish(self, source: str, config: Mapping[str, object] | None = None, *, padded: bool = False) -> FinishedRun:
        """The run; `padded` where the format gives each row every key, so that NaN may mean that nothing was logged.

        Raises:
            SourceError: not one number was logged, or what kept the first row from being read.
        """
        for row in self._phases.rest() if self._phases else ():
            self._put_row(row)
        ends = {index: self._ends.get(index, index) for index in sorted(self._rows) if self._rows[index]}
        if not ends and self._skipped:
            raise self._skipped
        if not ends:
            remarks = "".join(f"; {sentence}" for sentence in self._told())
            raise SourceError(f"{source}: no metrics: not one number was logged{remarks}")
        rows = {end: self._rows[index] for index, end in ends.items()}
        if padded:
            self._drop_padding(rows)
            rows = {step: row for step, row in rows.items() if row}
        clock = {end: self._clock[index] for index, end in ends.items() if index in self._clock and end in rows}
        start = next(iter(clock.values()), 0.0)
        seconds = {step: at - start for step, at in clock.items()}
        began = start if start > SINCE_1970 else None
        caveats = tuple(self._warned(list(rows)))
        return FinishedRun(source, rows, dict(config or {}), seconds, tuple(self._told()), began=began, caveats=caveats)

    def _put(self, row: dict[str, float], key: str, value: float, given: Row) -> None:
        step = given.step
        last = self._last.get(key, step)
        if step < last:
            self.count("values logged after those of a later step, sorted in", f"{key!r}: {step} after {last}")
        self._last[key] = step
        if math.isnan(value):
            self._nan[key] = self._nan.get(key, 0) + 1
        before = row.get(key)
        if before is None:
            self._held += 1
        elif self._ends:
            if not math.isfinite(before):
                return
            if math.isfinite(value):
                counts = self._counts.setdefault(step // self._width, {})
                n = counts[key] = counts.get(key, 1) + 1
                value = before + (value - before) / n
        elif before != value and not (math.isnan(before) and math.isnan(value)) and not given.resumed:
            self._repeated.count("values that replace others of the same step", f"{key!r} at step {step}")
        row[key] = value

    def _shrink(self) -> None:
        """Leave out what nobody reads; if that is not enough, let rows share steps."""
        if not self._unread:
            self._leave_out()
        if self._held > 0.75 * self._limit:
            self._share()

    def _leave_out(self) -> None:
        keys = dict.fromkeys(key for row in self._rows.values() for key in row)
        read = known_keys(keys)
        self._unread = {key: key not in read for key in keys}
        first: set[str] = set()
        for index in sorted(self._rows):
            row = self._rows[index]
            kept = {key: value for key, value in row.items() if not self._unread[key] or key not in first}
            first.update(row)
            self._rows[index] = kept
        self._held = sum(len(row) for row in self._rows.values())

    def _is_unread(self, key: str) -> bool:
        """Whether `key` stands for no metric, and has a value already."""
        if key not in self._unread:
            self._unread[key] = not known_keys([key])
            return False
        return self._unread[key]

    def _share(self) -> None:
        """Let rows share more and more steps, until half as many rows are left."""
        wanted = len(self._rows) // 2 + 1
        self._ends = self._ends or {step: step for step in self._rows}
        while len(self._rows) > wanted:
            self._width *= 2
            rows: dict[int, dict[str, float]] = {}
            clock: dict[int, float] = {}
            ends: dict[int, int] = {}
            counts: dict[int, dict[str, int]] = {}
            for before in sorted(self._rows):
                index = self._ends[before] // self._width
                if index in rows:
                    _merge(rows[index], counts.setdefault(index, {}), self._rows[before], self._counts.get(before, {}))
                else:
                    rows[index] = self._rows[before]
                    if before in self._counts:
                        counts[index] = self._counts[before]
                ends[index] = self._ends[before]
                if before in self._clock:
                    clock[index] = self._clock[before]
            self._rows, self._clock, self._ends, self._counts = rows, clock, ends, counts
        self._held = sum(len(row) for row in self._rows.values())
        # Rows that have few keys in common do not shrink; sharing them again at once would take for ever.
        self._limit = LIMIT if self._held < 0.75 * LIMIT else 2 * self._held

    def _drop_padding(self, rows: dict[int, dict[str, float]]) -> None:
        for key in [key for key, n in self._nan.items() if 2 * n >= len(rows)]:
            given = [(step, row[key]) for step, row in rows.items() if key in row]
            at = [i for i, (_, value) in enumerate(given) if not math.isnan(value)]
            *gaps, last = [later - earlier for earlier, later in pairwise(at)] or [0]
            # Numbers at an even distance with NaN between them are a cadence, and the run's last step may be one
            # more; a failing metric is not as regular.
            if len(set(gaps)) == 1 and gaps[0] > 1 and (last == gaps[0] or (len(gaps) > 1 and last < gaps[0])):
                for step, value in given:
                    if math.isnan(value):
                        del rows[step][key]
                self._notes.append(f"{key} is NaN but for every {gaps[0]}th row: taken for padding, not for numbers")

    def _told(self) -> list[str]:
        return [*self._notes, *self._odd.notes]

    def _warned(self, steps: list[int]) -> Iterator[str]:
        """What the reader of the verdict has to know first: phases, repeated steps, gaps, thinned rows."""
        if self._phases:
            yield from self._phases.caveats()
        yield from (f"{note}; the last one counts" for note in self._repeated.notes)
        if self._phases and not self._ends and (gap := gaps(steps)):
            yield gap
        yield from self._caveats
        if left := sum(self._unread.values()):
            yield f"the log is long: of {left} keys that stand for no metric only the first value was kept"
        if self._ends:
            yield f"the log is long and thinned: {self._width} steps share a row, with the mean of each key"


def _merge(row: dict[str, float], counts: dict[str, int], more: dict[str, float], counts_more: dict[str, int]) -> None:
    """Take the values of `more` into the means of `row`; what is not finite stays."""
    for key, value in more.items():
        before = row.get(key)
        n = counts_more.get(key, 1)
        if before is None or (math.isfinite(before) and not math.isfinite(value)):
            row[key] = value
            if n > 1:
                counts[key] = n
        elif math.isfinite(before):
            total = counts.get(key, 1) + n
            row[key] = before + (value - before) * n / total
            counts[key] = total
