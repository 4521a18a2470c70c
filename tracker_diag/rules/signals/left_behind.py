"""A series that does not follow another one."""

from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from tracker_diag.detect.following import FEWEST, Following, following
from tracker_diag.detect.means import BlockMeans
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Signal

CEILING = 0.9
"""Above this, a score between 0 and 1 has no room to follow. A fall from there still counts."""


@dataclass(config=CLOSED, kw_only=True)
class LeftBehind(Signal):
    """The series stays behind while `other` gains: detect/following.py."""

    historical: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ("_leader", "_follower")

    kind: Literal["left_behind"] = "left_behind"
    series: SeriesRef
    """The series that does not follow, such as an evaluation."""
    other: SeriesRef
    """The series that it should follow, such as the training reward."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._signs = [-1.0 if each.definition.worse == "higher" else 1.0 for each in self.looks_at]
        self._follower, self._leader = BlockMeans(), BlockMeans()
        self._more = False
        """Whether a block has ended since the last judgement."""
        self._last: Following | None = None
        self._parted: Following | None = None
        """Where the two separated, until they meet again."""

    def update(self, observed: Observed) -> None:
        for series, means, sign in zip(self.looks_at, (self._follower, self._leader), self._signs, strict=True):
            if series.new and series.now is not None:
                self._more |= means.append(observed.step, sign * series.now.value)
        if self._series.new and self._more:
            self._judge()
            self._more = False

    def _judge(self) -> None:
        self._last = last = following(self._leader, self._follower)
        if last is None:
            self.holds = None
            return
        if last.behind and not (CEILING < last.before <= 1 and last.now > CEILING):
            self._parted = self._parted or last
        elif self._parted and self._parted.is_over(last):
            self._parted = None
        self.holds = self._parted is not None

    def reading(self) -> Reading:
        if self._last is None:
            have = len(self._follower.means)
            if not have and self._series.now is None:
                return self._series.unknown()
            lacking = self._other if have and not self._leader.means else self._series
            return lacking.unknown(reason(Why.FEW_VALUES, have=have, needed=FEWEST))
        since, sign = self._parted or self._last, self._signs[0]
        onset = since.began if self.holds else None
        shown = self._series.reading(self.holds, sign * self._last.now, sign * since.before, onset)
        return replace(shown, n=None, at=since.step)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"parted": self._parted and list(astuple(self._parted))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._parted = Following(*state["parted"]) if state["parted"] else None
        if self._follower.means:
            self._judge()
