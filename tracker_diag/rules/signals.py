"""Signals at work: each keeps what it needs of its series and gives one three-valued reading a step."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from tracker_diag.batch import Pair
from tracker_diag.detect.cusum import BlockCusum, CusumSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.model import (
    All,
    AnyOf,
    BaselineRatio,
    Condition,
    Growth,
    NonFinite,
    Not,
    SeriesRef,
    Signal,
    SliceName,
    Threshold,
    Trend,
)


@dataclass(frozen=True)
class Observed:
    """All that the rules see of one step."""

    step: int
    series: Mapping[str, Scalar]
    """Finite values, by the name of their series."""
    non_finite: tuple[str, ...] = ()
    """Series that were NaN or infinite at this step."""
    absent: Mapping[str, str] | None = None
    """Why a pair, a slice of it or a series has no value, by name."""
    checked: bool = True
    """Whether any metric or tensor was looked at."""

    def why(self, key: str) -> str:
        """Why there is no value of `key`."""
        reasons = self.absent or {}
        parts = key.split("/")
        for end in range(len(parts), 0, -1):
            if reason := reasons.get("/".join(parts[:end])):
                return reason
        return f"no series {key}"


LOST_AFTER = 100
"""Evaluations without a value after which a series is not seen any more."""

Reader = Callable[[Observed], Reading]


def reader(name: str, signal: Signal, pair: Pair | None, slice: SliceName, settings: CusumSettings) -> Reader:
    """A stateful reader of `signal` on `pair` and `slice`, to be called once a step, in order."""
    match signal:
        case NonFinite():
            return _non_finite(name)
        case Growth():
            return _growth(name, _Series(signal.series, signal.relative_to, pair, slice), signal, settings)
        case Threshold():
            return _threshold(name, _Series(signal.series, signal.relative_to, pair, slice), signal)
        case Trend():
            return _trend(name, _Series(signal.series, None, pair, slice), signal)
        case BaselineRatio():
            return _baseline_ratio(name, _Series(signal.series, None, pair, slice), signal, settings)


def holds(condition: Condition, readings: Mapping[str, Reading]) -> bool | None:
    """`condition` over `readings` in Kleene's three-valued logic; None is unknown."""
    match condition:
        case str():
            return readings[condition].holds
        case Not(not_=part):
            inner = holds(part, readings)
            return None if inner is None else not inner
        case All(all=parts):
            values = [holds(part, readings) for part in parts]
            return False if False in values else None if None in values else True
        case AnyOf(any=parts):
            values = [holds(part, readings) for part in parts]
            return True if True in values else None if None in values else False


class _Series:
    """One series, or the ratio of two, as a signal reads it."""

    def __init__(self, ref: SeriesRef, over: SeriesRef | None, pair: Pair | None, slice: SliceName) -> None:
        self.definition = ref.definition
        self.keys = [ref.key(pair, slice)] + ([over.key(pair, slice)] if over else [])
        self.name = " / ".join(self.keys)
        self._why = "no step yet"

    def read(self, observed: Observed) -> tuple[float, int | None] | None:
        """Value and number of samples at this step; None where there is none."""
        found = []
        for key in self.keys:
            scalar = observed.series.get(key)
            if scalar is None:
                self._why = observed.why(key)
                return None
            found.append(scalar)
        samples = [scalar.n for scalar in found if scalar.n is not None]
        value = found[0].value
        if len(found) == 2:
            if found[1].value == 0:
                self._why = f"{self.keys[1]} is 0"
                return None
            value /= found[1].value
        return value, min(samples, default=None)

    def unknown(self, signal: str, note: str = "") -> Reading:
        return Reading(signal, self.name, None, note=note or self._why)


def _growth(name: str, series: _Series, signal: Growth, settings: CusumSettings) -> Reader:
    # A ratio of two positive series is positive, and halving it is as much as doubling it.
    scale = "log" if signal.relative_to else series.definition.scale
    detector = BlockCusum(settings, scale, signal.direction, series.definition.matters)
    last: tuple[float, int | None] | None = None
    last_step, missed = 0, 0

    def read(observed: Observed) -> Reading:
        nonlocal last, last_step, missed
        now = series.read(observed)
        missed += 1
        if now is not None:
            detector.update(observed.step, now[0])
            last, last_step, missed = now, observed.step, 0
        if last is None:
            return series.unknown(name)
        if missed > LOST_AFTER:
            return series.unknown(name, f"no value since step {last_step}")
        value, n = last
        note = detector.needs if detector.holds is None else ""
        return Reading(name, series.name, detector.holds, value, detector.baseline, n, detector.onset, note)

    return read


def _threshold(name: str, series: _Series, signal: Threshold) -> Reader:
    def read(observed: Observed) -> Reading:
        now = series.read(observed)
        if now is None:
            return series.unknown(name)
        value, n = now
        return Reading(name, series.name, _outside(value, signal.above, signal.below), value, None, n)

    return read


def _trend(name: str, series: _Series, signal: Trend) -> Reader:
    recent: deque[float] = deque(maxlen=signal.steps)

    def read(observed: Observed) -> Reading:
        now = series.read(observed)
        if now is not None:
            recent.append(now[0])
        if not recent:
            return series.unknown(name)
        if len(recent) < signal.steps:
            return series.unknown(name, f"{len(recent)} of {signal.steps} steps with a value")
        values = list(recent)
        half = signal.steps // 2
        before, after = median(values[:half]), median(values[-half:])
        return Reading(name, series.name, after >= signal.factor * before, after, before, now[1] if now else None)

    return read


def _baseline_ratio(name: str, series: _Series, signal: BaselineRatio, settings: CusumSettings) -> Reader:
    seen, total = 0, 0.0

    def read(observed: Observed) -> Reading:
        nonlocal seen, total
        now = series.read(observed)
        if now is None:
            return series.unknown(name)
        value, n = now
        seen += 1
        if seen <= settings.burn_in + settings.baseline:
            total += value if seen > settings.burn_in else 0.0
            needed = settings.burn_in + settings.baseline
            return series.unknown(name, f"baseline has {seen} of {needed} steps with a value")
        baseline = total / settings.baseline
        if baseline == 0:
            return series.unknown(name, "the baseline is 0")
        outside = _outside(value / baseline, signal.above, signal.below)
        return Reading(name, series.name, outside, value, baseline, n)

    return read


def _non_finite(name: str) -> Reader:
    def read(observed: Observed) -> Reading:
        if observed.non_finite:
            return Reading(name, observed.non_finite[0], True, n=len(observed.non_finite), onset=observed.step)
        if not observed.checked:
            return Reading(name, "any", None, note="no metric and no tensor yet")
        return Reading(name, "any", False, n=0)

    return read


def _outside(value: float, above: float | None, below: float | None) -> bool:
    return (above is not None and value > above) or (below is not None and value < below)
