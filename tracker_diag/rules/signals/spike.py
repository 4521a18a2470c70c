"""A value far outside those before it."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.detect.blocks import Direction
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place, horizon
from tracker_diag.rules.signals.base import CLOSED, Material, Verb

SURE = 3.0
"""Standard errors of a value beyond which a few odd sequences do not explain a spike."""
OVER = 10
"""An excursion ends this many values after its last spike."""


@dataclass(config=CLOSED, kw_only=True)
class Spike(Material):
    """A value far outside the `steps` values before it, by their median and MAD, and by a size that matters."""

    historical: ClassVar[bool] = True
    verbs: ClassVar[Mapping[str, Verb]] = {
        "jumps": Verb(number="change", times="factor"),
        "drops": Verb({"direction": "falling"}, number="change", times="factor"),
    }  # fmt: skip
    kept: ClassVar[tuple[str, ...]] = ("_recent", "_last", "_furthest", "_has_error", "_peak", "_step")

    kind: Literal["spike"] = "spike"
    series: SeriesRef
    steps: int = Field(default=50, ge=10)
    direction: Direction = "rising"
    z: float = Field(default=6.0, gt=0)
    above: float | None = None
    """The value must also be above this level."""
    sure: bool = False
    """Whether it must also be beyond three of its own sampling errors. Unknown if the error is."""
    ever: bool = False
    """Whether it must be as far beyond all earlier values too, except those of the same excursion."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._recent: deque[float] = deque(maxlen=self.steps)
        self._needed = horizon((self.steps + 1) // 2, at.settings, part=5, fewest=8)
        self._z, self._sure = at.settings.limit(self.z), at.settings.limit(SURE)
        self._last: tuple[float, float] | None = None
        """The last value that was judged, and the median before it."""
        self._furthest: float | None = None
        """The furthest value, without the last `OVER` and the excursion that lasts, if that counts."""
        self._has_error = False
        """Whether the last value that was asked has a sampling error."""
        self._peak: tuple[float, int] | None = None
        """The furthest value of that excursion, and the values since its last spike."""
        self._step = 0

    def update(self, observed: Observed) -> None:
        now = self._series.now
        if now is None:
            self.holds = None if self._last is None else False
            return
        if len(self._recent) >= self._needed:
            values = list(self._recent)
            middle = median(values)
            self._last, self._step = (now.value, middle), observed.step
            high = self.above is None or now.value > self.above
            far = high and self._is_material(now.value, self._usual(middle, values))
            far = far and not self._within_spread(now.value, middle, values)
            far = far and (self._furthest is None or self._is_material(now.value, self._furthest))
            self.holds = far and not self._within_error(now, middle) if self._sees(now, far=far) else None
        self._recent.append(now.value)
        if self.ever:
            self._remember(now.value)

    def reading(self) -> Reading:
        now = self._series.now
        if now is not None and not self._sees(now, far=bool(self.holds)):
            return self._series.unknown(reason(Why.NO_ERROR))
        if self._last is None:
            few = reason(Why.FEW_VALUES, have=len(self._recent), needed=self._needed)
            return self._series.unknown(None if now is None else few)
        return self._series.reading(self.holds, *self._last, self._step if self.holds else None)

    def _usual(self, middle: float, values: list[float]) -> float:
        """What a jump by a factor is a multiple of. Some estimates of a KL are negative as often as not."""
        signed = self.factor is not None and self.direction == "rising" and middle <= 0
        return median(map(abs, values)) if signed else middle

    def _is_material(self, value: float, middle: float) -> bool:
        """Whether `value` is far enough from `middle`, regardless of the noise."""
        high, low = (value, middle) if self.direction == "rising" else (middle, value)
        if self.factor is not None:
            return middle > 0 and high >= self.factor * low  # a factor of 0 has no meaning
        return high - low >= (self.change or 0.0)

    def _within_spread(self, value: float, middle: float, values: list[float]) -> bool:
        """Whether the noise explains `value`. That of a factor is one of logarithms."""
        if self.factor is not None and value > 0 and min(values) > 0:
            value, middle, values = math.log(value), math.log(middle), [math.log(v) for v in values]
        spread = 1.4826 * median([abs(v - middle) for v in values])
        return abs(value - middle) <= self._z * spread

    def _remember(self, value: float) -> None:
        """Remember how far `value` went: `OVER` values later, or at the end of its excursion."""
        if self._peak is None and not self.holds:
            if len(self._recent) > OVER:
                self._furthest = self._further(self._recent[-OVER - 1], self._furthest)
            return
        if self._peak is None:
            way_up = list(self._recent)[-OVER:]
            self._peak = (max(way_up) if self.direction == "rising" else min(way_up), 0)
        self._peak = (self._further(value, self._peak[0]), 0 if self.holds else self._peak[1] + 1)
        if self._peak[1] >= OVER:
            self._furthest, self._peak = self._further(self._peak[0], self._furthest), None

    def _further(self, value: float, other: float | None) -> float:
        if other is None:
            return value
        return max(value, other) if self.direction == "rising" else min(value, other)

    def _sees(self, now: Scalar, *, far: bool) -> bool:
        """Whether the value has a sampling error, if that counts. If the last had one, only a `far` one is asked."""
        if self.sure and (far or not self._has_error):
            self._has_error = now.error is not None
        return self._has_error or not self.sure

    def _within_error(self, now: Scalar, middle: float) -> bool:
        """Whether sampling error of the few sequences explains the value."""
        if not self.sure or now.error is None or middle <= 0 or now.value <= 0:
            return False
        return abs(math.log(now.value / middle)) <= self._sure * now.error
