"""A value against a fixed limit."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Limited, Verb


@dataclass(config=CLOSED, kw_only=True)
class Threshold(Limited):
    """The series, or its ratio to another one, is above or below a fixed limit. It is unknown between two values."""

    verbs: ClassVar[Mapping[str, Verb]] = {"above": Verb(number="above"), "below": Verb(number="below")}

    kind: Literal["threshold"] = "threshold"
    series: SeriesRef
    relative_to: SeriesRef | None = None

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._series = at.series(self.series, self.relative_to)
        self.looks_at = (self._series,)

    @property
    def limit(self) -> float:
        """The limit for this run's algorithm."""
        return self._above if self._above is not None else self._below or 0.0

    def update(self, observed: Observed) -> None:
        now = self._series.now
        if now is None or (now.quantum > 0 and abs(now.value - self.limit) < now.quantum / 2):
            self.holds = None
            return
        self.holds = self._is_beyond(now.value)
        self.began = (observed.step if self.began is None else self.began) if self.holds else None

    def reading(self) -> Reading:
        now = self._series.now
        if now is None:
            return self._series.unknown()
        if self.holds is None:
            return self._series.unknown(reason(Why.ROUNDED, series=self._series.name, quantum=now.quantum))
        return self._series.reading(self.holds, now.value)

    def state_dict(self) -> dict[str, Any]:
        return {"began": self.began}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.began = state["began"]
