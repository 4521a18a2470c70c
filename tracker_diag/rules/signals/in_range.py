"""Where a series is between the lowest value of one series and the highest of another."""

from collections import deque
from statistics import fmean
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Lasting, Limited

RECENT = 8
"""Values of the series whose mean counts, so that one that is off by chance decides nothing."""


@dataclass(config=CLOSED, kw_only=True)
class InRange(Limited, Lasting):
    """The series is above or below a share of its range.

    0 is the lowest value of `lowest` so far, 1 the highest of `highest`. It is unknown until these two differ. A new
    baseline does not change the range.
    """

    historical: ClassVar[bool] = False
    kept: ClassVar[tuple[str, ...]] = ("_low", "_high", "_recent")

    kind: Literal["in_range"] = "in_range"
    series: SeriesRef
    lowest: SeriesRef
    highest: SeriesRef

    def refs(self) -> list[SeriesRef]:
        return [self.series, self.lowest, self.highest]

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._ends = at.series(self.lowest), at.series(self.highest)
        self.looks_at = (self._series, *self._ends)
        self._low: float | None = None
        self._high: float | None = None
        self._recent: deque[float] = deque(maxlen=RECENT)

    def update(self, observed: Observed) -> None:
        low, high = (series.now for series in self._ends)
        if low is not None:
            self._low = low.value if self._low is None else min(self._low, low.value)
        if high is not None:
            self._high = high.value if self._high is None else max(self._high, high.value)
        super().update(observed)

    def _answer(self, step: int, now: Scalar) -> bool | None:
        if step != self._last_step:
            self._recent.append(now.value)
        share = self._share
        return None if share is None else self._is_beyond(share)

    @property
    def _share(self) -> float | None:
        if self._low is None or self._high is None or not self._low < self._high:
            return None
        return (fmean(self._recent) - self._low) / (self._high - self._low)

    def _evidence(self) -> Reading:
        if self._share is None:
            if missing := [series for series in self._ends if series.missing]:
                return missing[0].unknown()
            low, high = (series.name for series in self._ends)
            return self._series.unknown(reason(Why.NO_RANGE, lowest=low, highest=high))
        return self._series.reading(self.holds, self._share)
