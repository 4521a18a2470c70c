"""Rows of numbers by step, put together from what a source gives in whatever order, with what was odd about it."""

import math
from collections.abc import Mapping
from itertools import pairwise

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.odd import Odd

LIMIT = 4_000_000
"""Values that are held, about 0.6 GB. Of a longer run several neighbouring steps share a row."""
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

    Memory grows with the run up to `LIMIT` values. Beyond it the rows of neighbouring steps become one row, under
    the last of these steps: the latest value of each key stands, but one that is not finite is never replaced.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, float]] = {}
        self._clock: dict[int, float] = {}
        self._ends: dict[int, int] = {}
        """Last step of each row; empty while each row is one step."""
        self._width = 1
        self._held = 0
        self._limit = LIMIT
        self._last: dict[str, int] = {}
        self._nan: dict[str, int] = {}
        self._notes: list[str] = []
        self._odd = Odd()
        self._skipped: SourceError | None = None
        self.added = 0
        """Rows that were added so far."""

    def note(self, sentence: str) -> None:
        """Keep `sentence` for the reader of the run."""
        self._notes.append(sentence)

    def count(self, what: str, first: str) -> None:
        """Count one more of `what`, a plural; the note tells how many there were, and the `first`."""
        self._odd.count(what, first)

    def look(self, text: str, where: str) -> str:
        """`text`, counted if bytes in it were no UTF-8 and had to be replaced."""
        if "\ufffd" in text:
            self.count("lines with bytes that are no UTF-8", where)
        return text

    def skip(self, error: SourceError) -> None:
        """Count one more row that cannot be read; `finish` raises the first error if nothing else was read."""
        self.count("rows that cannot be read, left out", str(error))
        self._skipped = self._skipped or error

    def add(self, step: int, values: Mapping[str, object], where: str, clock: float | None = None) -> None:
        """Put `values`, read at `where`, under `step`; None is no value. `clock` in seconds, from any origin."""
        self.added += 1
        index = step // self._width
        row = self._rows.setdefault(index, {})
        if self._ends:
            self._ends[index] = max(step, self._ends.get(index, step))
        for key, given in values.items():
            value = number(given)
            if value is not None:
                self._put(row, key, value, step)
            elif given is not None and given != "":
                self.count("values that are no numbers, left out", f"{key!r} at {where}")
        if clock is not None and math.isfinite(clock):
            self._clock[index] = clock
        if self._held > self._limit:
            self._share()

    def every(self, stride: int) -> None:
        """Take the steps so far as counts of rows that were logged every `stride` steps."""
        self._rows = {step * stride: row for step, row in self._rows.items()}
        self._clock = {step * stride: clock for step, clock in self._clock.items()}
        self._ends = {index * stride: end * stride for index, end in self._ends.items()}

    def finish(self, source: str, config: Mapping[str, object] | None = None, *, padded: bool = False) -> FinishedRun:
        """The run; `padded` where the format gives each row every key, so that NaN may mean that nothing was logged.

        Raises:
            SourceError: not one number was logged, or what kept the first row from being read.
        """
        ends = {index: self._ends.get(index, index) for index in sorted(self._rows) if self._rows[index]}
        if not ends and self._skipped:
            raise self._skipped
        if not ends:
            told = "".join(f"; {sentence}" for sentence in self._told())
            raise SourceError(f"{source}: no metrics: not one number was logged{told}")
        rows = {end: self._rows[index] for index, end in ends.items()}
        if padded:
            self._drop_padding(rows)
            rows = {step: row for step, row in rows.items() if row}
        clock = {end: self._clock[index] for index, end in ends.items() if index in self._clock and end in rows}
        start = next(iter(clock.values()), 0.0)
        seconds = {step: at - start for step, at in clock.items()}
        began = start if start > SINCE_1970 else None
        return FinishedRun(source, rows, dict(config or {}), seconds, tuple(self._told()), began=began)

    def _put(self, row: dict[str, float], key: str, value: float, step: int) -> None:
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
        elif before != value and not (math.isnan(before) and math.isnan(value)):
            self.count("values that replace others of the same step", f"{key!r} at step {step}")
        row[key] = value

    def _share(self) -> None:
        """Let rows share more and more steps, until half as many rows are left."""
        wanted = max(len(self._rows) // 2, 1)
        self._ends = self._ends or {step: step for step in self._rows}
        while len(self._rows) > wanted:
            self._width *= 2
            rows: dict[int, dict[str, float]] = {}
            clock: dict[int, float] = {}
            ends: dict[int, int] = {}
            for before in sorted(self._rows):
                index = self._ends[before] // self._width
                row = rows.setdefault(index, {})
                row |= {key: value for key, value in self._rows[before].items() if math.isfinite(row.get(key, 0.0))}
                ends[index] = self._ends[before]
                if before in self._clock:
                    clock[index] = self._clock[before]
            self._rows, self._clock, self._ends = rows, clock, ends
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
        notes = [*self._notes, *self._odd.notes]
        if self._ends:
            notes.append(f"the run is long: {self._width} steps share a row, with the last value of each key")
        return notes
