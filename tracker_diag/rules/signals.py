"""Signals at work: each keeps what it needs of its series and gives one three-valued reading a step."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from tracker_diag.batch import Pair
from tracker_diag.detect.growth import GrowthDetector, GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.model import (
    All,
    AnyOf,
    BaselineRatio,
    Condition,
    Growth,
    MissingRank,
    NonFinite,
    Not,
    SeriesRef,
    Signal,
    SliceName,
    Threshold,
    Trend,
)
from tracker_diag.stats.tails import Estimate


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
    missing: Mapping[str, int] | None = None
    """Steps since a rank was last heard of, by rank and host."""

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


class Reader(ABC):
    """One signal on one pair and slice: call `read` once a step, in order."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def read(self, observed: Observed) -> Reading:
        """What the signal says at this step."""

    def rebaseline(self) -> None:  # noqa: B027  # most signals have no baseline, and no state
        """Forget what was normal."""

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on where `state` was taken."""


def reader(name: str, signal: Signal, pair: Pair | None, slice: SliceName, settings: GrowthSettings) -> Reader:
    """The reader of `signal` on `pair` and `slice`."""
    match signal:
        case NonFinite():
            return _NonFinite(name)
        case MissingRank():
            return _MissingRank(name, signal)
        case Growth():
            return _Growth(name, _Series(signal.series, signal.relative_to, pair, slice), signal, settings)
        case Threshold():
            return _Threshold(name, _Series(signal.series, signal.relative_to, pair, slice), signal)
        case Trend():
            return _Trend(name, _Series(signal.series, None, pair, slice), signal)
        case BaselineRatio():
            return _BaselineRatio(name, _Series(signal.series, None, pair, slice), signal, settings)


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

    def read(self, observed: Observed) -> Estimate | None:
        """The value at this step; None where there is none."""
        found: list[Scalar] = []
        for key in self.keys:
            scalar = observed.series.get(key)
            if scalar is None:
                self._why = observed.why(key)
                return None
            found.append(scalar)
        samples = [scalar.n for scalar in found if scalar.n is not None]
        errors = [scalar.error for scalar in found if scalar.error is not None]
        value = found[0].value
        if len(found) == 2:
            if found[1].value == 0:
                self._why = f"{self.keys[1]} is 0"
                return None
            value /= found[1].value
        # Errors of the logarithm: those of a ratio add up as the slices are sampled apart.
        return Estimate(value, min(samples, default=0), math.hypot(*errors) if len(errors) == len(found) else None)

    def unknown(self, signal: str, note: str = "") -> Reading:
        return Reading(signal, self.name, None, note=note or self._why)


class _Growth(Reader):
    def __init__(self, name: str, series: _Series, signal: Growth, settings: GrowthSettings) -> None:
        super().__init__(name)
        self._series = series
        # A ratio of two positive series is positive, and halving it is as much as doubling it.
        scale = "log" if signal.relative_to else series.definition.scale
        self._scale = scale
        self._detector = GrowthDetector(settings, scale, signal.direction, series.definition.matters)
        self._last: tuple[float, int] | None = None
        self._last_step, self._missed = 0, 0

    def read(self, observed: Observed) -> Reading:
        now = self._series.read(observed)
        self._missed += 1
        if now is not None:
            self._detector.update(observed.step, now.value, now.error if self._scale == "log" else None)
            self._last, self._last_step, self._missed = (now.value, now.n), observed.step, 0
        if self._last is None:
            return self._series.unknown(self.name)
        if self._missed > LOST_AFTER:
            return self._series.unknown(self.name, f"no value since step {self._last_step}")
        value, n = self._last
        holds = self._detector.holds
        note = self._detector.needs if holds is None else ""
        detector = self._detector
        return Reading(self.name, self._series.name, holds, value, detector.baseline, n or None, detector.onset, note)

    def rebaseline(self) -> None:
        self._detector.rebaseline()

    def state_dict(self) -> dict[str, Any]:
        last = list(self._last) if self._last else None
        return {"detector": self._detector.state_dict(), "last": last, "step": self._last_step, "missed": self._missed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._detector.load_state_dict(state["detector"])
        self._last = tuple(state["last"]) if state["last"] else None
        self._last_step, self._missed = state["step"], state["missed"]


class _Threshold(Reader):
    def __init__(self, name: str, series: _Series, signal: Threshold) -> None:
        super().__init__(name)
        self._series, self._signal = series, signal

    def read(self, observed: Observed) -> Reading:
        now = self._series.read(observed)
        if now is None:
            return self._series.unknown(self.name)
        outside = _outside(now.value, self._signal.above, self._signal.below)
        return Reading(self.name, self._series.name, outside, now.value, None, now.n or None)


class _Trend(Reader):
    def __init__(self, name: str, series: _Series, signal: Trend) -> None:
        super().__init__(name)
        self._series, self._signal = series, signal
        self._recent: deque[float] = deque(maxlen=signal.steps)

    def read(self, observed: Observed) -> Reading:
        now = self._series.read(observed)
        if now is not None:
            self._recent.append(now.value)
        if not self._recent:
            return self._series.unknown(self.name)
        steps = self._signal.steps
        if len(self._recent) < steps:
            return self._series.unknown(self.name, f"{len(self._recent)} of {steps} steps with a value")
        values = list(self._recent)
        before, after = median(values[: steps // 2]), median(values[-(steps // 2) :])
        rises = after >= self._signal.factor * before
        return Reading(self.name, self._series.name, rises, after, before, now.n or None if now else None)

    def rebaseline(self) -> None:
        self._recent.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self._recent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])


class _BaselineRatio(Reader):
    def __init__(self, name: str, series: _Series, signal: BaselineRatio, settings: GrowthSettings) -> None:
        super().__init__(name)
        self._series, self._signal = series, signal
        self._burn_in, self._steps = settings.short.burn_in, settings.short.baseline
        self._seen, self._total = 0, 0.0

    def read(self, observed: Observed) -> Reading:
        now = self._series.read(observed)
        if now is None:
            return self._series.unknown(self.name)
        self._seen += 1
        needed = self._burn_in + self._steps
        if self._seen <= needed:
            self._total += now.value if self._seen > self._burn_in else 0.0
            return self._series.unknown(self.name, f"baseline has {self._seen} of {needed} steps with a value")
        baseline = self._total / self._steps
        if baseline == 0:
            return self._series.unknown(self.name, "the baseline is 0")
        outside = _outside(now.value / baseline, self._signal.above, self._signal.below)
        return Reading(self.name, self._series.name, outside, now.value, baseline, now.n or None)

    def rebaseline(self) -> None:
        self._seen, self._total = min(self._seen, self._burn_in), 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, "total": self._total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen, self._total = state["seen"], state["total"]


class _MissingRank(Reader):
    def __init__(self, name: str, signal: MissingRank) -> None:
        super().__init__(name)
        self._steps = signal.steps

    def read(self, observed: Observed) -> Reading:
        if observed.missing is None:
            return Reading(self.name, "ranks", None, note="no ranks that report through a store")
        longest = max(observed.missing, key=observed.missing.__getitem__, default=None)
        if longest is None:
            return Reading(self.name, "ranks", False, 0)
        steps, missing = observed.missing[longest], sum(n >= self._steps for n in observed.missing.values())
        return Reading(self.name, longest, steps >= self._steps, steps, n=missing, onset=observed.step - steps + 1)


class _NonFinite(Reader):
    def read(self, observed: Observed) -> Reading:
        if observed.non_finite:
            bad = observed.non_finite
            return Reading(self.name, bad[0], True, n=len(bad), onset=observed.step)
        if not observed.checked:
            return Reading(self.name, "any", None, note="no metric and no tensor yet")
        return Reading(self.name, "any", False, n=0)


def _outside(value: float, above: float | None, below: float | None) -> bool:
    return (above is not None and value > above) or (below is not None and value < below)
