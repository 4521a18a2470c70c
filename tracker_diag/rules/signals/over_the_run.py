"""The course of a series over the whole run, shared by collapse and gain."""

import math
from abc import abstractmethod
from typing import ClassVar

from pydantic.dataclasses import dataclass

from tracker_diag.detect.course import FEWEST
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place, SharedCourse
from tracker_diag.rules.signals.base import CLOSED, Lasting

USUAL = 5.0
"""Deviations beyond which chance is rare enough, at the usual number of runs between false alarms."""
LEAST = 1e-6
"""A loss counts as at least this."""


@dataclass(config=CLOSED, kw_only=True)
class OverTheRun(Lasting):
    """A signal on the course of a series."""

    kept: ClassVar[tuple[str, ...]] = ("_course", "_begun")

    series: SeriesRef

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._needed = FEWEST
        """Values that it needs."""
        self._enough = 0
        """Rows of the run that it needs, with or without a value."""
        self._limit = at.settings.limit(USUAL) / USUAL
        self._is_loss = self._series.definition.unit == "loss"
        """A loss falls by factors, so its gains and losses are measured on a log scale."""
        asks, worse = self._asks(), self._series.definition.worse
        new = SharedCourse(rising=worse != "higher", lost=asks[0], surer=asks[1])
        self._course = self._series.courses.setdefault(asks, new)
        self._begun = at.table.rows
        """Rows of the run before this signal started or restarted."""

    @property
    def _rows(self) -> int:
        return self._at.table.rows - self._begun

    def _answer(self, step: int, now: Scalar) -> bool | None:
        self._course.append(step, math.log(max(now.value, LEAST)) if self._is_loss else now.value)
        self._count()
        return self._decide()

    def _count(self) -> None:
        """Count what the signal needs from each row."""

    @abstractmethod
    def _decide(self) -> bool | None:
        """Whether the signal holds."""

    @abstractmethod
    def _decided_reading(self) -> Reading:
        """The reading, if there are enough rows."""

    def _evidence(self) -> Reading:
        if self._course.rows < self._needed:
            return self._series.unknown(reason(Why.FEW_VALUES, have=self._course.rows, needed=self._needed))
        if self.holds is None and self._rows < self._enough:
            return self._series.unknown(reason(Why.FEW_STEPS, have=self._rows, needed=self._enough))
        return self._decided_reading()

    def rebaseline(self) -> None:
        self._course.restart()
        super().rebaseline()

    def _in_unit(self, level: float) -> float:
        """A level of the course in the series' own unit."""
        return math.exp(level) if self._is_loss else level

    def _asks(self) -> tuple[float, float]:
        """The part of a gain that is lost after a fall, and the factor to the limits of chance."""
        return 0.5, self._limit
