"""The series that signals read. Each is read once a step, and knows whether the run logs it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracker_diag.detect.course import Course, Gain
from tracker_diag.detect.growth import GrowthDetector, GrowthSettings
from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.metrics.registry import Algorithm, Metric
from tracker_diag.metrics.series import Pair, SeriesKey
from tracker_diag.records import Scalar
from tracker_diag.rules.earlier import Earlier
from tracker_diag.rules.nodes import SeriesRef, SliceName
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading

LOST_AFTER = 100
"""Steps without a value after which a signal no longer judges a series."""

WAIT = 20
"""Steps without a value after which a series counts as not logged. A short run needs fewer."""


@dataclass
class SharedCourse(Course):
    """The course of a series, for all signals that ask the same of it."""

    step: int | None = None
    """Of the last value."""
    _gain: tuple[int, Gain | None] | None = None
    """After which block, and what was gained."""

    def append(self, step: int, value: float) -> None:
        if step != self.step:
            self.step = step
            super().append(step, value)

    def gain(self) -> Gain | None:
        ends = self._blocks.ends
        if ends and (self._gain is None or self._gain[0] != ends[-1]):
            self._gain = ends[-1], super().gain()
        return self._gain[1] if ends and self._gain else None

    def restart(self) -> None:
        """Forget all that has come."""
        vars(self).update(vars(SharedCourse(self.rising, self.lost, self.surer)))


class Series:
    """One series, or the ratio of two, read once a step for all its signals."""

    now: Scalar | None = None
    """The value at this step, or None."""
    new: bool = False
    """Whether the last call brought the value."""

    def __init__(self, definition: Metric, keys: list[SeriesKey], table: "SeriesTable") -> None:
        self.definition = definition
        self.keys = keys
        self.name = " / ".join(keys)
        self._table = table
        self._before = table.steps
        """Steps of the run before the first rule used this series."""
        self.missing = list(self.keys)
        """Keys without any value so far."""
        self.has_come = False
        """Whether any of its keys has had a value."""
        self.growth: dict[tuple[str, str, bool], GrowthDetector] = {}
        """Detectors that growth signals share, by scale, direction and whether no values share samples."""
        self.courses: dict[tuple[float, float], SharedCourse] = {}
        """By `lost` and `surer`."""

    def update(self, observed: Observed, *, again: bool = False) -> None:
        """Read the value of one step; `again` if more of the last step has come."""
        had, now = again and self.now is not None, observed.series.get(self.keys[0])
        if self.missing:
            self.missing = [key for key in self.missing if key not in observed.series]
            self.has_come = len(self.missing) < len(self.keys)
        if now is not None and len(self.keys) == 2:
            now = self._ratio(now, observed.series.get(self.keys[1]))
        self.now, self.new = now, now is not None and not had

    @property
    def logged(self) -> bool | None:
        """Whether the run logs it; None while it is missing but may still come."""
        if not self.missing:
            return True
        return False if self._table.steps - self._before >= self._table.wait else None

    def reading(
        self, holds: bool | None, value: float | None = None, baseline: float | None = None, onset: int | None = None
    ) -> Reading:
        """The reading of a signal on this series now."""
        n = self.now.n if self.now else None
        return Reading("", self.name, holds, value, baseline, n, onset, keys=tuple(self.keys))

    def unknown(self, why: Reason | None = None) -> Reading:
        """A reading without a value, with the reason: by default, what is missing or 0 at this step."""
        observed = self._table.observed
        if why is None and observed is None:
            why = reason(Why.NO_STEP)
        elif why is None and observed is not None:
            missing = next((key for key in self.keys if key not in observed.series), None)
            why = reason(Why.ZERO, series=self.keys[-1]) if missing is None else observed.why(missing)
        return Reading("", self.name, None, unknown=why, keys=tuple(self.keys))

    def state_dict(self) -> dict[str, Any]:
        return {"before": self._before, "missing": list(map(str, self.missing))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before, self.missing = state["before"], [key for key in self.keys if key in state["missing"]]
        self.has_come = len(self.missing) < len(self.keys)

    def _ratio(self, over: Scalar, under: Scalar | None) -> Scalar | None:
        if under is None or under.value == 0:
            return None
        n = min(over.n or 0, under.n or 0) or None
        return Scalar(self.name, over.value / under.value, n, lambda: _of_ratio(over.error, under.error))


def _of_ratio(over: float | None, under: float | None) -> float | None:
    """The error of a ratio. Both are of logarithms, and the two are sampled separately. So their squares add up."""
    return None if over is None or under is None else math.hypot(over, under)


class SeriesTable:
    """All series of one engine's rules, by name."""

    def __init__(self, settings: GrowthSettings) -> None:
        self.observed: Observed | None = None
        """The last step, also for series without a value in it."""
        self.wait = horizon(WAIT, settings, part=4, fewest=5)
        self.rows = 0
        """All steps."""
        self.steps = 0
        """Steps with any data."""
        self._series: dict[str, Series] = {}
        self._by_key: dict[SeriesKey, list[Series]] = {}
        self._with_value: list[Series] = []

    def get(self, ref: SeriesRef, over: SeriesRef | None, pair: Pair | None, slice: SliceName) -> Series:
        """The series `ref`, or its ratio to `over`; the same object for every caller."""
        keys = [ref.key(pair, slice)] + ([over.key(pair, slice)] if over else [])
        name = " / ".join(keys)
        if name not in self._series:
            self._series[name] = Series(ref.definition, keys, self)
            for key in keys:
                self._by_key.setdefault(key, []).append(self._series[name])
        return self._series[name]

    def update(self, observed: Observed, *, again: bool) -> bool:
        """Read every series at one step; `again` if more of the last step has come.

        Returns:
            Whether any key of a series has come for the first time.
        """
        self.observed = observed
        self.rows += not again
        self.steps += observed.checked and not again
        by_key = self._by_key
        given = dict.fromkeys([series for key in observed.series if key in by_key for series in by_key[key]])
        first = any(key in observed.series for series in given for key in series.missing)
        for series in [series for series in self._with_value if series not in given]:
            series.update(observed, again=again)
        for series in given:
            series.update(observed, again=again)
        self._with_value = [series for series in given if series.now is not None]
        return first

    def state_dict(self) -> dict[str, Any]:
        series = {name: each.state_dict() for name, each in self._series.items()}
        return {"rows": self.rows, "steps": self.steps, "series": series}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows, self.steps = state["rows"], state["steps"]
        for name, kept in state["series"].items():
            if name in self._series:
                self._series[name].load_state_dict(kept)


@dataclass(frozen=True)
class Place:
    """The place of a signal: the rule's pair and slice, the detectors' settings, the run's algorithm."""

    pair: Pair | None
    slice: SliceName
    settings: GrowthSettings
    table: SeriesTable
    algorithm: Algorithm | None = None
    earlier: Earlier = field(default_factory=Earlier)
    """Runs that went well."""

    def series(self, ref: SeriesRef, over: SeriesRef | None = None) -> Series:
        """The series `ref` here, or its ratio to `over`."""
        return self.table.get(ref, over, self.pair, self.slice)


def logged(series: Iterable[Series]) -> bool | None:
    """Whether the run logs all of `series`; False as soon as one is known not to be logged."""
    answers = [each.logged for each in series]
    return False if False in answers else None if None in answers else True


def horizon(values: int, settings: GrowthSettings, *, part: int, fewest: int, density: float = 1.0) -> int:
    """How many values a signal looks at in a run of the expected length.

    That is `values`. In a short run it is one in `part` of its rows, at least `fewest`. `density` is the share of rows
    with a value of the series.
    """
    if settings.expected_steps is None or not settings.short_run:
        return values
    return min(values, max(fewest, int(settings.expected_steps * density) // part))
