"""A steady change over the last values."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.detect.blocks import Direction
from tracker_diag.detect.robust import mann_kendall, theil_sen
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import LOST_AFTER, Place, horizon
from tracker_diag.rules.signals.base import CLOSED, Lasting, Material, Verb

BLOCKS = 8
FEWEST = 16
"""The fewest values of a trend: two for each of its blocks."""
STEADY = 2.0
"""A change is steady from this Mann–Kendall z of eight block means on; one in forty reach it by chance."""


@dataclass(config=CLOSED, kw_only=True)
class Trend(Material, Lasting):
    """A steady change over the last `steps` values: Mann–Kendall and Theil–Sen on the means of eight blocks.

    It needs no baseline, so it also sees a series that rises from its first value.
    """

    any_size: ClassVar[bool] = True
    verbs: ClassVar[Mapping[str, Verb]] = {
        "rises": Verb(number="change", times="factor", required=False),
        "falls": Verb({"direction": "falling"}, number="change", times="factor", required=False),
    }  # fmt: skip
    kept: ClassVar[tuple[str, ...]] = (
        "_size",
        "_early",
        "_rows",
        "_means",
        "_starts",
        "_block",
        "_block_start",
        "_changes",
    )

    kind: Literal["trend"] = "trend"
    series: SeriesRef
    relative_to: SeriesRef | None = None
    steps: int = Field(ge=8)
    direction: Direction = "rising"

    def begin(self, at: Place) -> None:
        super().begin(at)
        waits = at.settings.short_run and self.steps > FEWEST
        self._size = 0 if waits else self.steps // BLOCKS
        """Values of a block; 0 until the density of the series is known."""
        self._early: list[tuple[int, float]] = []
        """The values until then, with their steps."""
        self._rows = 0
        """Rows since the first value, while it is not known; a row may come in two calls."""
        self._counted: int | None = None
        """The last of their steps."""
        self._means: deque[float] = deque(maxlen=BLOCKS)
        self._starts: deque[int] = deque(maxlen=BLOCKS)
        self._block: list[float] = []
        self._block_start = 0
        # With earlier runs, a rise before the eighth block is judged as growth beyond them.
        self._changes: bool | None = False if at.earlier.values(self._series.keys) else None
        """Whether the last eight blocks show a change."""

    def update(self, observed: Observed) -> None:
        if (self._early or self._series.now is not None) and self._counted != observed.step:
            self._rows, self._counted = self._rows + 1, observed.step
        super().update(observed)
        self.holds = self._changes if self._missed <= LOST_AFTER else None

    def _answer(self, step: int, now: Scalar) -> bool | None:
        self._append(step, now.value) if self._size else self._wait(step, now.value)
        return self._changes

    def _evidence(self) -> Reading:
        if self.holds is None:
            have = len(self._means) * self._size + len(self._block) + len(self._early)
            return self._series.unknown(reason(Why.FEW_VALUES, have=have, needed=BLOCKS * self._size or FEWEST))
        if not self._means:  # an earlier run answers for the first values
            return self._series.reading(self.holds, self._series.now.value if self._series.now else None)
        onset = self._onset() if self.holds else None
        shown = self._series.reading(self.holds, self._means[-1], self._means[0], onset)
        return replace(shown, at=self._starts[0])

    def _wait(self, step: int, value: float) -> None:
        """Keep the first values of a run of known length. They show how many it will have."""
        self._early.append((step, value))
        if len(self._early) == FEWEST:
            density = FEWEST / self._rows
            values = horizon(self.steps, self._at.settings, part=2, fewest=FEWEST, density=density)
            self._size = max(values // BLOCKS, 1)
            early, self._early = self._early, []
            for early_step, early_value in early:
                self._append(early_step, early_value)

    def _append(self, step: int, value: float) -> None:
        if not self._block:
            self._block_start = step
        self._block.append(value)
        if len(self._block) == self._size:
            self._means.append(sum(self._block) / self._size)
            self._starts.append(self._block_start)
            self._block = []
            if len(self._means) == BLOCKS:
                self._changes = self._judge(list(self._means))

    def _judge(self, y: list[float]) -> bool:
        if self.factor:
            y = [math.log(max(mean, 1e-12)) for mean in y]
        if self.direction == "falling":
            y = [-mean for mean in y]
        least = math.log(self.factor) if self.factor else self.change or 0.0
        # The cheap test first: most series have not moved.
        if max(y[-3:]) - min(y[:3]) < least:
            return False
        return mann_kendall(y) >= STEADY and theil_sen(y) * (BLOCKS - 1) >= least

    def _onset(self) -> int:
        """The first step of the block at a quarter of the change."""
        means, change = list(self._means), self._means[-1] - self._means[0]
        begun = (start for mean, start in zip(means, self._starts, strict=True) if (mean - means[0]) / change >= 0.25)
        return next(begun, self._starts[-1]) if change else self._starts[0]

    def rebaseline(self) -> None:
        size, counted = self._size, self._counted
        super().rebaseline()
        self._size, self._counted, self._changes = size, counted, None
