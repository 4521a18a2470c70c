"""A value against a fixed limit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import LOST_AFTER, Place
from tracker_diag.rules.signals.base import CLOSED, Limited, Verb

EVALUATIONS = frozenset({"eval_score", "evaluation", "eval_loss"})


@dataclass(config=CLOSED, kw_only=True)
class Threshold(Limited):
    """The series, or its ratio to another one, is above or below a fixed limit.

    It is unknown between two values. But an evaluation comes every few steps, and is valid until the next one.
    """

    verbs: ClassVar[Mapping[str, Verb]] = {"above": Verb(number="above"), "below": Verb(number="below")}
    kept: ClassVar[tuple[str, ...]] = ("_missed",)

    kind: Literal["threshold"] = "threshold"
    series: SeriesRef
    relative_to: SeriesRef | None = None

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._stays = self.relative_to is None and self._series.definition.name in EVALUATIONS
        self._missed = 0

    def update(self, observed: Observed) -> None:
        now = self._series.now
        self._missed = 0 if now is not None else self._missed + 1
        if now is None and self._stays and self._missed <= LOST_AFTER:
            return
        if now is None or (now.quantum > 0 and abs(now.value - self.limit) < now.quantum / 2):
            self.holds = None
            return
        self.holds = self._is_beyond(now.value)
        self.began = (observed.step if self.began is None else self.began) if self.holds else None

    def reading(self) -> Reading:
        now = self._series.now
        if now is None:
            return replace(self._series.unknown(), holds=self.holds)
        if self.holds is None:
            return self._series.unknown(reason(Why.ROUNDED, series=self._series.name, quantum=now.quantum))
        return self._series.reading(self.holds, now.value)

    def rebaseline(self) -> None:
        self.began = None
