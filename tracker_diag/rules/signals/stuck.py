"""The spread of the last values."""

from collections import deque
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place, horizon
from tracker_diag.rules.signals.base import CLOSED, Signal, Verb


@dataclass(config=CLOSED, kw_only=True)
class Stuck(Signal):
    """The series has not changed by more than `within` over the last `steps` values."""

    historical: ClassVar[bool] = True
    verbs: ClassVar[Mapping[str, Verb]] = {"stays_within": Verb(number="within")}
    kept: ClassVar[tuple[str, ...]] = ("_recent", "_steps", "_quantum")

    kind: Literal["stuck"] = "stuck"
    series: SeriesRef
    steps: int = Field(ge=5)
    within: float = Field(default=0.0, ge=0)

    def begin(self, at: Place) -> None:
        super().begin(at)
        most = horizon(self.steps, at.settings, part=4, fewest=8)
        self._recent: deque[float] = deque(maxlen=most)
        self._steps: deque[int] = deque(maxlen=most)
        self._quantum = 0.0

    def update(self, observed: Observed) -> None:
        now = self._series.now
        if now is not None:
            self._quantum = now.quantum
            self._recent.append(now.value)
            self._steps.append(observed.step)
            spread = max(self._recent) - min(self._recent)
            unseen = spread <= self.within < spread + self._quantum
            self.holds = spread <= self.within if self._full and not unseen else None
            if self.holds is not None:
                self.began = (self._steps[0] if self.began is None else self.began) if self.holds else None

    @property
    def _full(self) -> bool:
        return len(self._recent) == self._recent.maxlen

    def reading(self) -> Reading:
        if not self._recent:
            return self._series.unknown()
        if not self._full:
            few = reason(Why.FEW_VALUES, have=len(self._recent), needed=self._recent.maxlen or 0)
            return self._series.unknown(few)
        if self.holds is None:
            return self._series.unknown(reason(Why.ROUNDED, series=self._series.name, quantum=self._quantum))
        return self._series.reading(self.holds, self._recent[-1])
