"""A value far outside the range of all values before it."""

from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Signal

FEWEST = 20
"""Values that make a range."""


@dataclass(config=CLOSED, kw_only=True)
class OutOfRange(Signal):
    """The value is beyond all earlier ones, on either side, by `ranges` times their whole range and by `change`.

    Learning moves a mean through the values in between. A single sample on another scale does not.
    """

    historical: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ("_lowest", "_highest", "_count", "_last")

    kind: Literal["out_of_range"] = "out_of_range"
    series: SeriesRef
    ranges: float = Field(gt=0)
    change: float = Field(gt=0, description="In the series' own unit.")

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._lowest, self._highest, self._count = 0.0, 0.0, 0
        self._last: tuple[float, float, int] | None = None
        """The last value that was judged, the nearest earlier one, and its step."""

    def update(self, observed: Observed) -> None:
        now = self._series.now
        if now is None:
            self.holds = None if self._last is None else False
            return
        if self._count >= FEWEST:
            nearest = min(max(now.value, self._lowest), self._highest)
            beyond, spread = abs(now.value - nearest), self._highest - self._lowest
            self.holds = beyond > self.change and beyond > self.ranges * spread > 0
            self._last = now.value, nearest, observed.step
        first = self._count == 0
        self._lowest = now.value if first else min(now.value, self._lowest)
        self._highest = now.value if first else max(now.value, self._highest)
        self._count += 1

    def reading(self) -> Reading:
        if self._last is None:
            few = reason(Why.FEW_VALUES, have=self._count, needed=FEWEST)
            return self._series.unknown(None if self._series.now is None else few)
        value, nearest, step = self._last
        return self._series.reading(self.holds, value, nearest, step if self.holds else None)
