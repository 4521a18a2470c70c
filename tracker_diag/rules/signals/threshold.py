"""A value against a fixed limit."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from tracker_diag.detect.means import BlockMeans
from tracker_diag.detect.robust import mann_kendall, theil_sen
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import LOST_AFTER, Place
from tracker_diag.rules.signals.base import CLOSED, Limited, Verb

FEWEST = 5
"""Values from which on a series may be on its way back."""
BLOCKS = 8
"""Means that it is judged by, at least, where there are as many values."""
LIKELY = 1.0
"""Mann–Kendall z from which on a series moves rather than not."""
SOON = 3.0
"""Times as long as so far, within which it is back at its pace."""
EVALUATIONS = frozenset({"eval_score", "evaluation", "eval_loss"})


@dataclass(config=CLOSED, kw_only=True)
class Threshold(Limited):
    """The series, or its ratio to another one, is above or below a fixed limit.

    It is unknown between two values. But an evaluation comes every few steps, and is valid until the next one.
    """

    verbs: ClassVar[Mapping[str, Verb]] = {"above": Verb(number="above"), "below": Verb(number="below")}
    kept: ClassVar[tuple[str, ...]] = ("_missed", "_lead", "_course")

    kind: Literal["threshold"] = "threshold"
    series: SeriesRef
    relative_to: SeriesRef | None = None

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._stays = self.relative_to is None and self._series.definition.name in EVALUATIONS
        self._missed = 0
        self._lead: int | None = 0
        """Values beyond the limit more than others, from the first value on; None once there were fewer."""
        self._course = BlockMeans()
        """The series until then."""

    def update(self, observed: Observed) -> None:
        now = self._series.now
        self._missed = 0 if now is not None else self._missed + 1
        if now is None and self._stays and self._missed <= LOST_AFTER:
            return
        if now is None or (now.quantum > 0 and abs(now.value - self.limit) < now.quantum / 2):
            self.holds = None
            return
        self.holds = self._is_beyond(now.value)
        if self._lead is not None and self._series.new:
            self._lead += 1 if self.holds else -1
            self._course.append(observed.step, now.value)
            if self._lead < 0:
                self._lead, self._course = None, BlockMeans()
        self.began = (observed.step if self.began is None else self.began) if self.holds else None

    @property
    def returns(self) -> bool:
        """Whether the series was beyond the limit from its first value on, and is on its way back.

        At its pace so far, it is back before three times as long. An agent that learns to call its tools is an
        example. If the series stays beyond the limit, it no longer returns.
        """
        means, sign = self._course.means, 1 if self.above is not None else -1
        if self._lead is None or len(means) < FEWEST:
            return False
        each = max(len(means) // BLOCKS, 1)
        starts = range(len(means) % each, len(means), each)
        beyond = [sign * (sum(means[at : at + each]) / each - self.limit) for at in starts]
        gained = -theil_sen(beyond) * (len(beyond) - 1)
        return mann_kendall(beyond) <= -LIKELY and median(beyond[-3:]) <= SOON * gained

    def reading(self) -> Reading:
        now = self._series.now
        if now is None:
            return replace(self._series.unknown(), holds=self.holds)
        if self.holds is None:
            return self._series.unknown(reason(Why.ROUNDED, series=self._series.name, quantum=now.quantum))
        return self._series.reading(self.holds, now.value)

    def rebaseline(self) -> None:
        self.began = None
