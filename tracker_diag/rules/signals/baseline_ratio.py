"""A value divided by the mean, or by one of the largest values, of the series' baseline, against a limit."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Limited, Verb


@dataclass(config=CLOSED, kw_only=True)
class BaselineRatio(Limited):
    """The series divided by its frozen baseline, its mean or a large value, is above or below a limit."""

    historical: ClassVar[bool] = True
    verbs: ClassVar[Mapping[str, Verb]] = {
        "over_baseline": Verb(number="above", times="above"), "under_baseline": Verb(number="below", times="below"),
    }  # fmt: skip
    kept: ClassVar[tuple[str, ...]] = ("_seen", "_sum", "_top")

    kind: Literal["baseline_ratio"] = "baseline_ratio"
    series: SeriesRef
    largest: int | None = Field(default=None, ge=1)
    """Divide by this largest value of the baseline, 3 for the third. Bursts from the start then do not count as new."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._burn_in, self._steps = at.settings.short.burn_in, at.settings.short.baseline
        self._seen, self._sum, self._top = 0, 0.0, list[float]()

    def update(self, observed: Observed) -> None:
        now, self.holds = self._series.now, None
        if now is None:
            return
        self._seen += 1
        if self._seen > self._burn_in + self._steps:
            self.holds = self._is_beyond(now.value / self._baseline) if self._sum else None
        elif self._seen > self._burn_in:
            self._sum += now.value
            self._top = sorted([*self._top, now.value], reverse=True)[: self.largest or 0]

    @property
    def _baseline(self) -> float:
        return self._top[-1] if self._top else self._sum / self._steps

    def reading(self) -> Reading:
        now, needed = self._series.now, self._burn_in + self._steps
        if now is None:
            return self._series.unknown()
        if self._seen <= needed:
            return self._series.unknown(reason(Why.SHORT_BASELINE, have=self._seen, needed=needed))
        if self._sum == 0:
            return self._series.unknown(reason(Why.ZERO_BASELINE))
        return self._series.reading(self.holds, now.value, self._baseline)

    def rebaseline(self) -> None:
        seen = min(self._seen, self._burn_in)
        super().rebaseline()
        self._seen = seen
