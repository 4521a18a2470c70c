"""What a live run was like up to now, at bounded size: for the curves and the tails of its report."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracker_diag.metrics.series import SeriesKey
from tracker_diag.records import Histogram, Record, Scalar
from tracker_diag.report.curves import chosen
from tracker_diag.rules.triage import Summary

POINTS = 256
"""Of a series that are kept, at most; of a longer run each is the mean of several rows. An even number."""
STEPS = 48
"""With histograms that are kept, at most, and the last one; of a longer run every 2nd, 4th, ... An even number."""


@dataclass
class Thinned:
    """One series: means of `every` rows each, and what has come of the row after them."""

    every: int = 1
    steps: list[int] = field(default_factory=list[int])
    """First step of each point."""
    values: list[float] = field(default_factory=list[float])
    rows: int = 0
    """Rows in the last point."""

    def add_value(self, step: int, value: float) -> None:
        """Take in the value of `step`; what is not finite leaves a gap."""
        if not math.isfinite(value):
            return
        if self.rows not in (0, self.every):
            self.rows += 1
            self.values[-1] += (value - self.values[-1]) / self.rows
            return
        if len(self.steps) == POINTS:  # two points become one
            self.steps, self.every = self.steps[::2], 2 * self.every
            self.values = [even / 2 + odd / 2 for even, odd in zip(self.values[::2], self.values[1::2], strict=True)]
        self.steps.append(step)
        self.values.append(value)
        self.rows = 1


class History:
    """The series, the histograms and the events of a run. Memory does not grow with the run."""

    def __init__(self) -> None:
        self._series: dict[str, Thinned] = {}
        self._step: int | None = None
        self._new: set[str] = set()
        """Series that the step which is underway has a value of."""
        self._histograms: list[tuple[int, dict[str, Histogram]]] = []
        """By step and name: one of `_every` steps, and the last."""
        self._every, self._seen = 1, 0
        self.events: list[tuple[int, str]] = []
        """By step: new baselines, and what guards did or would have done."""

    def add_step(self, step: int, series: Mapping[SeriesKey, Scalar], records: Iterable[Record]) -> None:
        """Take in what `step` has come to: the series that rules read, and the histograms among its records.

        A step may come in several calls. Of several values of a series the first counts, of histograms the last.
        """
        if step != self._step:
            self._step, self._new = step, set()
        for key, scalar in series.items():
            if key not in self._new:
                self._new.add(key)
                if key not in self._series:
                    self._series[str(key)] = Thinned()
                self._series[key].add_value(step, scalar.value)
        self._keep(step, {record.name: record for record in records if isinstance(record, Histogram)})

    def _keep(self, step: int, given: Mapping[str, Histogram]) -> None:
        kept = self._histograms
        if not given:
            return
        if kept and kept[-1][0] == step:
            kept[-1][1].update(given)
            return
        if kept and (self._seen - 1) % self._every:
            kept.pop()  # it was there as the last one only
        self._seen += 1
        kept.append((step, dict(given)))
        if len(kept) > STEPS:
            self._histograms, self._every = kept[::2], 2 * self._every

    def included_in(self, summary: Summary) -> Summary:
        """`summary` with what is drawn of the run."""
        drawn = {name: self._series[name] for name in chosen(summary, self._series)}
        return replace(
            summary,
            curves={name: dict(zip(series.steps, series.values, strict=True)) for name, series in drawn.items()},
            distributions=tuple((step, tuple(given.values())) for step, given in self._histograms),
            events=tuple(self.events),
        )

    def state_dict(self) -> dict[str, Any]:
        """In JSON values; `load_state_dict` continues from it."""
        return {
            "series": {str(key): [it.every, it.steps, it.values, it.rows] for key, it in self._series.items()},
            "step": self._step,
            "new": sorted(map(str, self._new)),
            "histograms": [[step, [_state(it) for it in given.values()]] for step, given in self._histograms],
            "every": [self._every, self._seen],
            "events": [list(event) for event in self.events],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._series = {
            name: Thinned(int(every), [*map(int, steps)], [*map(float, values)], int(rows))
            for name, (every, steps, values, rows) in state["series"].items()
        }
        self._step, self._new = state["step"], set(state["new"])
        self._histograms = [
            (int(step), {it.name: it for it in map(_histogram, given)}) for step, given in state["histograms"]
        ]
        self._every, self._seen = map(int, state["every"])
        self.events[:] = [(step, event) for step, event in state["events"]]


def _state(histogram: Histogram) -> list[Any]:
    arrays = (histogram.counts, histogram.edges, histogram.baseline)
    return [histogram.name, histogram.pair, histogram.slice, *(array.tolist() for array in arrays)]


def _histogram(state: list[Any]) -> Histogram:
    name, pair, slice, counts, edges, then = state
    return Histogram(name, pair, slice, np.array(counts, np.int64), np.array(edges, float), np.array(then, np.int64))
