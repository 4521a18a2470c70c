"""A series that does not follow another one."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, Literal

from pydantic.dataclasses import dataclass

from tracker_diag.detect.following import FEWEST, Following, following
from tracker_diag.detect.means import BlockMeans
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place, Series
from tracker_diag.rules.signals.base import CLOSED, Signal

CEILING = 0.9
"""Above this, a score between 0 and 1 has no room to follow. A fall from there still counts."""


@dataclass(config=CLOSED, kw_only=True)
class LeftBehind(Signal):
    """The series stays behind while `other` gains: detect/following.py."""

    historical: ClassVar[bool] = True

    kind: Literal["left_behind"] = "left_behind"
    series: SeriesRef
    """The series that does not follow, such as an evaluation."""
    other: SeriesRef
    """The series that it should follow, such as the training reward."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._series, self._other = at.series(self.series), at.series(self.other)
        self.looks_at = (self._series, self._other)
        self._signs = [-1.0 if each.definition.worse == "higher" else 1.0 for each in (self._series, self._other)]
        self._kept = [BlockMeans(), BlockMeans()]
        self._more = False
        """Whether a block has ended since the last judgement."""
        self._last: Following | None = None
        self._parted: Following | None = None
        """Where the two separated, until they meet again."""

    def update(self, observed: Observed) -> None:
        for series, kept, sign in zip((self._series, self._other), self._kept, self._signs, strict=True):
            if series.new and series.now is not None:
                self._more |= kept.append(observed.step, sign * series.now.value)
        if self._series.new and self._more:
            self._judge()
            self._more = False

    def _judge(self) -> None:
        kept, other = self._kept
        self._last = last = following(other, kept)
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
            lacking = self._lacking()
            few = reason(Why.FEW_VALUES, have=len(self._kept[0].means), needed=FEWEST)
            return lacking.unknown(None if lacking.now is None and not self._kept[0].means else few)
        since, now = self._parted or self._last, self._signs[0] * self._last.now
        onset = since.step if self.holds else None
        shown = Reading(
            "", self._series.name, self.holds, now, self._signs[0] * since.before, onset=onset, at=since.step
        )
        return replace(shown, keys=tuple(self._series.keys))

    def _lacking(self) -> Series:
        return self._other if self._kept[0].means and not self._kept[1].means else self._series

    def rebaseline(self) -> None:
        self._kept, self._last, self._parted, self.holds = [BlockMeans(), BlockMeans()], None, None, None

    def state_dict(self) -> dict[str, Any]:
        parted = asdict(self._parted) if self._parted else None
        return {"kept": [kept.state_dict() for kept in self._kept], "parted": parted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = [BlockMeans(**kept) for kept in state["kept"]]
        self._parted = Following(**state["parted"]) if state["parted"] else None
        if self._kept[0].means:
            self._judge()
