"""What has become of a series over the whole run."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracker_diag.detect.course import FEWEST, SHORTEST, SURE, Course
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import Collapse, Gain, SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.readers.base import LOST_AFTER, Place, Reader

LEAST = 1e-6
"""A loss counts as at least this."""
MOSTLY = 0.8
"""Part of a run's rows after which a series that has never risen is said not to."""
EARLY = 5
"""A fall is not told in the first of so many parts of a run: its few rows say little of the noise."""
UNKNOWN_LENGTH = 1250
"""Rows that a run is taken to have, where nobody knows."""
LEVELS = 12
"""Rows from which on a series can be said never to have risen: four levels of three rows each."""


class CourseReader(Reader):
    """The course of a series; between two values it says what it last said."""

    needed = FEWEST
    """Values from which on it can say something."""
    _enough = 0
    """Rows of the run, with a value or without, from which on it can."""

    def __init__(self, series: SeriesRef, at: Place, lost: float = 0.5, surer: float = 1.0) -> None:
        self._series = at.series(series)
        self.looks_at = (self._series,)
        self._lost, self._surer = lost, surer * at.settings.limit(SURE) / SURE
        self._is_loss = self._series.definition.unit == "loss"
        """Of a loss half is lost when it has come half the way back on a log scale: it falls by factors."""
        self._course = self._anew()
        self._last_step, self._missed, self._rows = 0, 0, 0

    def read(self, observed: Observed) -> None:
        now = self._series.now
        self._rows += 1
        if now is None:
            self._missed += 1
            if self._missed > LOST_AFTER:
                self.holds = None
        else:
            self._missed, self._last_step = 0, observed.step
            self._course.add(observed.step, math.log(max(now.value, LEAST)) if self._is_loss else now.value)
            self._count()
            self.holds = self._says()

    def _count(self) -> None:
        """Keep what the signal needs to know of each row."""

    @abstractmethod
    def _says(self) -> bool | None:
        """Whether the signal holds of the course."""

    @abstractmethod
    def _told(self) -> Reading:
        """The reading, where there are rows enough."""

    def reading(self) -> Reading:
        if self._course.rows == 0:
            return self._series.unknown()
        if self._missed > LOST_AFTER:
            return self._series.unknown(reason(Why.LOST, step=self._last_step))
        if self._course.rows < self.needed:
            return self._series.unknown(reason(Why.FEW_VALUES, have=self._course.rows, needed=self.needed))
        if self.holds is None and self._rows < self._enough:
            return self._series.unknown(reason(Why.FEW_STEPS, have=self._rows, needed=self._enough))
        return self._told()

    def rebaseline(self) -> None:
        self._course, self.holds, self._rows = self._anew(), None, 0

    def state_dict(self) -> dict[str, Any]:
        counts = {"missed": self._missed, "step": self._last_step, "rows": self._rows}
        return {"course": self._course.state_dict(), "holds": self.holds, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._course.load_state_dict(state["course"])
        self._missed, self._last_step, self._rows = state["missed"], state["step"], state["rows"]
        self.holds = state["holds"]
        self.holds = self._says() if self._course.rows and self._missed <= LOST_AFTER else None

    def _in_unit(self, level: float) -> float:
        """A level of the course in the series' own unit."""
        return math.exp(level) if self._is_loss else level

    def _anew(self) -> Course:
        return Course(rising=self._series.definition.worse != "higher", lost=self._lost, surer=self._surer)


class CollapseReader(CourseReader):
    """The level of a series against its best so far."""

    def __init__(self, signal: Collapse, at: Place) -> None:
        super().__init__(signal.series, at, signal.lost, signal.surer)
        self._enough = (at.settings.expected_steps or 0) // EARLY
        self.of_outcome = self._series.definition.outcome

    def _says(self) -> bool | None:
        return self._course.has_fallen if self._rows >= self._enough else None

    def _told(self) -> Reading:
        fall = self._course.fall()
        if fall is None:  # rows came in blocks, of which there are fewer
            return self._series.unknown()
        now, best = self._in_unit(fall.now), self._in_unit(fall.best)
        onset = fall.onset if self.holds else None
        if not self.holds and (sinks := self._course.sinks()):
            onset, now = sinks[0], self._in_unit(sinks[1])
        return replace(self._series.reading(self.holds, now, best, onset), at=fall.best_step)


class GainReader(CourseReader):
    """The level of a series against its first one."""

    def __init__(self, signal: Gain, at: Place) -> None:
        self._never, self._sure = signal.never, signal.sure
        self._too_early = False if signal.else_no else None
        if signal.never:
            self._enough = int(MOSTLY * (at.settings.expected_steps or UNKNOWN_LENGTH))
            self.needed = LEVELS
        self._risen, self._judged = 0, 0
        """Rows at which it had risen, and all at which that could be told."""
        self._lapsed = SHORTEST
        """Rows since it last throve: as many as make a level, and it does no more."""
        super().__init__(signal.series, at)

    def _count(self) -> None:
        if self._never or self._sure or (gain := self._course.gain()) is None:
            return
        self._judged += 1
        self._risen += gain.rose
        # A rise that most rows have told is one, if the noise hides it now.
        thrives = gain.keeps and (gain.rose or 2 * self._risen > self._judged)
        self._lapsed = 0 if thrives else self._lapsed + 1

    def _says(self) -> bool | None:
        if self._course.rows < self.needed or self._rows < self._enough:
            return self._too_early
        if not self._never and not self._sure:
            return self._lapsed < SHORTEST if self._judged else self._too_early
        gain = self._course.gain()
        if gain is None:
            return self._too_early
        if self._sure:
            return gain.surely and gain.firmly
        # What has never risen is said to have once it has for sure.
        return not gain.surely and (self.holds or self._course.never_rose() or self._course.ends_as_it_began())

    def _told(self) -> Reading:
        gain = self._course.gain()
        if gain is None:
            return self._series.unknown()
        return self._series.reading(self.holds, self._in_unit(gain.now), self._in_unit(gain.first))

    def rebaseline(self) -> None:
        super().rebaseline()
        self._risen, self._judged, self._lapsed = 0, 0, SHORTEST

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"throve": [self._risen, self._judged, self._lapsed]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._risen, self._judged, self._lapsed = state["throve"]
        super().load_state_dict(state)
