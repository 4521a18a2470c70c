"""What has become of a series over the whole run."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracker_diag.detect.course import FEWEST, Course
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import Collapse
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.readers.base import LOST_AFTER, Place, Reader


class CollapseReader(Reader):
    """The level of a series against its best so far; between two values it says what it last said."""

    def __init__(self, signal: Collapse, at: Place) -> None:
        self._series = at.series(signal.series)
        self.looks_at = (self._series,)
        self._lost = signal.lost
        self._course = self._anew()
        self._last_step, self._missed = 0, 0

    def read(self, observed: Observed) -> None:
        now = self._series.now
        if now is None:
            self._missed += 1
        else:
            self._missed, self._last_step = 0, observed.step
            self._course.add(observed.step, now.value)
        self.holds = self._course.has_fallen if self._missed <= LOST_AFTER else None

    def reading(self) -> Reading:
        if self._course.rows == 0:
            return self._series.unknown()
        if self._missed > LOST_AFTER:
            return self._series.unknown(reason(Why.LOST, step=self._last_step))
        fall = self._course.fall()
        if fall is None:
            return self._series.unknown(reason(Why.FEW_VALUES, have=self._course.rows, needed=FEWEST))
        said = self._series.reading(self.holds, fall.now, fall.best, fall.onset if self.holds else None)
        return replace(said, at=fall.best_step)

    def rebaseline(self) -> None:
        self._course, self.holds = self._anew(), None

    def state_dict(self) -> dict[str, Any]:
        return {"course": self._course.state_dict(), "missed": self._missed, "step": self._last_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._course.load_state_dict(state["course"])
        self._missed, self._last_step = state["missed"], state["step"]
        self.holds = self._course.has_fallen if self._missed <= LOST_AFTER else None

    def _anew(self) -> Course:
        return Course(rising=self._series.definition.worse != "higher", lost=self._lost)
