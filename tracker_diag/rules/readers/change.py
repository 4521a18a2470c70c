"""How a series changes: growth against its baseline, a trend, a spike."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from tracker_diag.detect.blocks import Scale
from tracker_diag.detect.growth import GrowthDetector
from tracker_diag.detect.robust import mann_kendall, theil_sen
from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.metrics.statistics import OF_STEP
from tracker_diag.records import Scalar
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import Growth, Material, Spike, Trend
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.readers.base import LOST_AFTER, Place, Reader, horizon

BLOCKS = 8
SURE = 3.0
"""Standard deviations of a value through sampling by which a spike is none of a few odd sequences."""
FEWEST = 16
"""Values of a trend, at least: two for each of its blocks."""
STEADY = 2.0
"""Mann–Kendall's z of eight block means from which on a change counts as steady; one in forty by chance."""
OVER = 10
"""Values after its last spike by which an excursion is over."""


class GrowthReader(Reader):
    """Growth against a frozen baseline, or that of earlier runs; between two values it says what it last said."""

    def __init__(self, signal: Growth, at: Place) -> None:
        self._series = at.series(signal.series, signal.relative_to)
        self.looks_at = (self._series,)
        # A ratio of two positive series is positive, and halving it is as much as doubling it.
        metric = self._series.definition
        self._scale: Scale = "log" if signal.relative_to else metric.scale
        disjoint = all(ref is None or ref.stat in OF_STEP for ref in (signal.series, signal.relative_to))
        self._detector = GrowthDetector(
            at.settings, self._scale, signal.direction, metric.matters, disjoint,
            earlier=at.earlier.values(self._series.keys) if self._scale == "log" else (),
        )  # fmt: skip
        self._signal = signal
        self._last: tuple[float, int | None] | None = None
        self._last_step, self._missed = 0, 0

    def read(self, observed: Observed) -> None:
        now = self._series.now
        if now is not None:
            self._detector.update(observed.step, now.value, now.error if self._scale == "log" else None)
            self._last, self._last_step, self._missed = (now.value, now.n), observed.step, 0
            self.holds = self._judged()
            return
        self._missed += 1
        if self._missed > LOST_AFTER:
            self.holds = None

    def reading(self) -> Reading:
        if self._last is None:
            return self._series.unknown()
        if self._missed > LOST_AFTER:
            return self._series.unknown(reason(Why.LOST, step=self._last_step))
        (value, n), detector = self._last, self._detector
        said = Reading("", self._series.name, self.holds, value, detector.baseline, n, detector.onset)
        return replace(said, keys=tuple(self._series.keys), unknown=_needs(detector) if self.holds is None else None)

    def _judged(self) -> bool | None:
        """Whether the series has grown, and by as much as it takes."""
        of, signal = self._detector, self._signal
        if not of.holds or of.value is None or self._last is None:
            return of.holds
        return self._is_off(of.value, signal.factor) and self._is_off(self._last[0], signal.each)

    def _is_off(self, value: float, factor: float | None) -> bool:
        """Whether `value` is `factor` times the baseline, or as small a part of it; without a factor any is."""
        baseline = self._detector.baseline
        if factor is None or baseline is None:
            return True
        return value >= factor * baseline if self._signal.direction == "rising" else value * factor <= baseline

    def rebaseline(self) -> None:
        self._detector.rebaseline()
        self.holds = None

    def state_dict(self) -> dict[str, Any]:
        last = list(self._last) if self._last else None
        return {"detector": self._detector.state_dict(), "last": last, "step": self._last_step, "missed": self._missed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._detector.load_state_dict(state["detector"])
        self._last = (state["last"][0], state["last"][1]) if state["last"] else None
        self._last_step, self._missed = state["step"], state["missed"]
        self.holds = self._judged() if self._missed <= LOST_AFTER else None


class TrendReader(Reader):
    """The last eight blocks of values, judged whenever one is full."""

    def __init__(self, signal: Trend, at: Place) -> None:
        self._series, self._signal = at.series(signal.series, signal.relative_to), signal
        self.looks_at = (self._series,)
        self._settings = at.settings
        waits = at.settings.short_run and signal.steps > FEWEST
        self._size = 0 if waits else signal.steps // BLOCKS
        """Values of a block; 0 until it is known how often the series comes."""
        self._early: list[tuple[int, float]] = []
        """The values until then, with their steps."""
        self._rows = 0
        """Rows since the first value, while it is not known."""
        self._means: deque[float] = deque(maxlen=BLOCKS)
        self._starts: deque[int] = deque(maxlen=BLOCKS)
        self._block: list[float] = []
        self._block_start = 0
        # Where earlier runs tell what is normal, a rise before there are eight blocks is growth beyond theirs.
        self._changes: bool | None = False if at.earlier.values(self._series.keys) else None
        """What the last eight blocks said."""
        self._missed, self._last_step = 0, 0

    def read(self, observed: Observed) -> None:
        now = self._series.now
        self._rows += bool(self._early) or now is not None
        if now is not None:
            self._take(observed.step, now.value) if self._size else self._wait(observed.step, now.value)
            self._missed, self._last_step = 0, observed.step
        else:
            self._missed += 1
        self.holds = self._changes if self._missed <= LOST_AFTER else None

    def reading(self) -> Reading:
        if not self._means and not self._block and not self._early:
            return self._series.unknown()
        if self._missed > LOST_AFTER:
            return self._series.unknown(reason(Why.LOST, step=self._last_step))
        if self.holds is None:
            have = len(self._means) * self._size + len(self._block) + len(self._early)
            return self._series.unknown(reason(Why.FEW_VALUES, have=have, needed=BLOCKS * self._size or FEWEST))
        onset = self._onset() if self.holds else None
        said = self._series.reading(self.holds, self._means[-1], self._means[0], onset)
        return replace(said, at=self._starts[0])

    def _wait(self, step: int, value: float) -> None:
        """Keep the first values of a run of known length, which tell how many of them it will have."""
        self._early.append((step, value))
        if len(self._early) == FEWEST:
            self._set_size()
            early, self._early = self._early, []
            for one in early:
                self._take(*one)

    def _set_size(self) -> None:
        density = FEWEST / self._rows
        of = horizon(self._signal.steps, self._settings, part=2, fewest=FEWEST, density=density)
        self._size = max(of // BLOCKS, 1)

    def _take(self, step: int, value: float) -> None:
        if not self._block:
            self._block_start = step
        self._block.append(value)
        if len(self._block) == self._size:
            self._means.append(sum(self._block) / self._size)
            self._starts.append(self._block_start)
            self._block = []
            if len(self._means) == BLOCKS:
                self._changes = self._judge(list(self._means))

    def _judge(self, y: list[float]) -> bool:
        if self._signal.factor:
            y = [math.log(max(mean, 1e-12)) for mean in y]
        if self._signal.direction == "falling":
            y = [-mean for mean in y]
        least = math.log(self._signal.factor) if self._signal.factor else self._signal.change or 0.0
        # First what is cheap: most series have not moved at all.
        if max(y[-3:]) - min(y[:3]) < least:
            return False
        return mann_kendall(y) >= STEADY and theil_sen(y) * (BLOCKS - 1) >= least

    def _onset(self) -> int:
        """The first step of the block that has come a quarter of the way."""
        means, change = list(self._means), self._means[-1] - self._means[0]
        begun = (start for mean, start in zip(means, self._starts, strict=True) if (mean - means[0]) / change >= 0.25)
        return next(begun, self._starts[-1]) if change else self._starts[0]

    def rebaseline(self) -> None:
        self._means.clear()
        self._starts.clear()
        self._block, self._early, self._changes = [], [], None
        self._rows = 0

    def state_dict(self) -> dict[str, Any]:
        blocks = {"means": list(self._means), "starts": list(self._starts), "block": list(self._block)}
        missed = [self._missed, self._last_step]
        early = {"early": [list(one) for one in self._early], "rows": self._rows, "size": self._size}
        return blocks | early | {"start": self._block_start, "holds": self._changes, "missed": missed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rebaseline()
        self._means.extend(state["means"])
        self._starts.extend(state["starts"])
        self._block, self._block_start = list(state["block"]), state["start"]
        self._early = [(step, value) for step, value in state["early"]]
        self._rows, self._size = state["rows"], state["size"]
        self._changes, (self._missed, self._last_step) = state["holds"], state["missed"]


class SpikeReader(Reader):
    """A value against those before it; it holds at that step alone, and says nothing between two values."""

    def __init__(self, signal: Spike, at: Place) -> None:
        self._series, self._signal = at.series(signal.series), signal
        self.looks_at = (self._series,)
        self._recent: deque[float] = deque(maxlen=signal.steps)
        self._needed = horizon((signal.steps + 1) // 2, at.settings, part=5, fewest=8)
        self._z, self._sure = at.settings.limit(signal.z), at.settings.limit(SURE)
        self._last: tuple[float, float] | None = None
        """The last value that was judged, and the median before it."""
        self._furthest: float | None = None
        """The furthest value before the spikes that go on, if that counts."""
        self._peak: tuple[float, int] | None = None
        """The furthest of these, and the values since the last of them."""
        self._step = 0

    def read(self, observed: Observed) -> None:
        now = self._series.now
        if now is None:
            self.holds = None if self._last is None else False
            return
        if len(self._recent) >= self._needed:
            values = list(self._recent)
            middle = median(values)
            self._last, self._step = (now.value, middle), observed.step
            high = self._signal.above is None or now.value > self._signal.above
            far = high and far_off(self._signal, now.value, middle)
            far = far and not self._within_spread(now.value, middle, values)
            far = far and not self._has_been_there(now.value)
            self.holds = far and not self._within_error(now, middle) if self._sees(now) else None
        self._recent.append(now.value)
        if self._signal.ever:
            self._remember(now.value)

    def reading(self) -> Reading:
        now = self._series.now
        if now is not None and not self._sees(now):
            return self._series.unknown(reason(Why.NO_ERROR))
        if self._last is None:
            few = reason(Why.FEW_VALUES, have=len(self._recent), needed=self._needed)
            return self._series.unknown(None if now is None else few)
        return self._series.reading(self.holds, *self._last, self._step if self.holds else None)

    def _within_spread(self, value: float, middle: float, values: list[float]) -> bool:
        spread = 1.4826 * median([abs(v - middle) for v in values])
        return abs(value - middle) <= self._z * spread

    def _has_been_there(self, value: float) -> bool:
        """Whether an earlier value lies as far off, if that counts."""
        if self._furthest is None:
            return False
        return value <= self._furthest if self._signal.direction == "rising" else value >= self._furthest

    def _remember(self, value: float) -> None:
        """Take `value` for what has been there; a spike only once `OVER` values have come since."""
        if self.holds:
            self._peak = (value if self._peak is None else self._further(value, self._peak[0]), 0)
        elif not self._has_been_there(value):
            self._furthest = value
        if not self.holds and self._peak is not None:
            peak, since = self._peak
            self._peak = (peak, since + 1)
            if since + 1 >= OVER:
                self._furthest = peak if self._furthest is None else self._further(peak, self._furthest)
                self._peak = None

    def _further(self, one: float, other: float) -> float:
        return max(one, other) if self._signal.direction == "rising" else min(one, other)

    def _sees(self, now: Scalar) -> bool:
        """Whether the value comes with its sampling error, if that counts."""
        return now.error is not None or not self._signal.sure

    def _within_error(self, now: Scalar, middle: float) -> bool:
        """Whether the few sequences that the value rests on may have made it."""
        if not self._signal.sure or now.error is None or middle <= 0 or now.value <= 0:
            return False
        return abs(math.log(now.value / middle)) <= self._sure * now.error

    def rebaseline(self) -> None:
        self._recent.clear()
        self._last = self.holds = self._furthest = self._peak = None

    def state_dict(self) -> dict[str, Any]:
        last, peak = (list(one) if one else None for one in (self._last, self._peak))
        return {"recent": list(self._recent), "last": last, "furthest": self._furthest, "peak": peak}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._last = (state["last"][0], state["last"][1]) if state["last"] else None
        self._furthest = state["furthest"]
        self._peak = (state["peak"][0], state["peak"][1]) if state["peak"] else None


def _needs(detector: GrowthDetector) -> Reason:
    """Why `detector` cannot tell."""
    if detector.undetectable is not None:
        return reason(Why.NOISY_BASELINE, factor=detector.undetectable)
    return reason(Why.SHORT_BASELINE, have=detector.seen, needed=detector.needed)


def far_off(signal: Spike, value: float, middle: float) -> bool:
    """Whether `value` is materially off `middle`, whatever the noise."""
    rising = signal.direction == "rising"
    return _beyond(signal, value, middle) if rising else _beyond(signal, middle, value)


def _beyond(size: Material, high: float, low: float) -> bool:
    if size.factor is not None:
        return high > 0 and high >= size.factor * low
    return high - low >= (size.change or 0.0)
