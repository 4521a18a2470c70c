"""The level of a series against its best so far."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Verb
from tracker_diag.rules.signals.over_the_run import OverTheRun

EARLY = 5
"""No fall is reported in the first of so many parts of a run: few rows show little of the noise."""


@dataclass(config=CLOSED, kw_only=True)
class Collapse(OverTheRun):
    """The series has lost its gain, up to its best level, and stays down: detect/course.py."""

    verbs: ClassVar[Mapping[str, Verb]] = {
        "collapses": Verb(required=False),
    }  # fmt: skip

    kind: Literal["collapse"] = "collapse"
    lost: float = Field(default=0.5, ge=0, le=1)
    """Part of its gain that must be lost. The loss must also be larger than its noise explains."""
    surer: float = Field(default=1.0, gt=0)
    """Factor to the limits of chance. Below 1, a less certain fall is enough."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._enough = (at.settings.expected_steps or 0) // EARLY
        self.of_outcome = self._series.definition.outcome

    def _decide(self) -> bool | None:
        return self._course.has_fallen if self._rows >= self._enough else None

    def _asks(self) -> tuple[float, float]:
        return self.lost, self.surer * self._limit

    def _decided_reading(self) -> Reading:
        fall = self._course.fall()
        if fall is None:  # rows came in blocks, of which there are fewer
            return self._series.unknown()
        now, best = self._in_unit(fall.now), self._in_unit(fall.best)
        onset = fall.onset if self.holds else None
        if not self.holds and (sinks := self._course.sinks()):
            onset, now = sinks[0], self._in_unit(sinks[1])
        return replace(self._series.reading(self.holds, now, best, onset), at=fall.best_step)
