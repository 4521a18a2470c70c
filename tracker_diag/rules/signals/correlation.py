"""Spearman's correlation of two series."""

import math
from collections import deque
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.detect.noise import ranks_of
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place, horizon
from tracker_diag.rules.signals.base import CLOSED, Limited
from tracker_diag.stats.arrays import Float64Array

EVERY = 5
"""Pairs of values after which it is computed again. It changes slowly and costs a sort."""


@dataclass(config=CLOSED, kw_only=True)
class Correlation(Limited):
    """Spearman's correlation of two series over the last `steps` at which both had a value."""

    historical: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ("_recent", "_since", "_last")

    kind: Literal["correlation"] = "correlation"
    series: SeriesRef
    other: SeriesRef
    steps: int = Field(ge=10)

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._recent: deque[tuple[float, float]] = deque(maxlen=horizon(self.steps, at.settings, part=4, fewest=16))
        self._since = 0
        self._last: float | None = None

    def update(self, observed: Observed) -> None:
        now, other = self._series.now, self._other.now
        if now is not None and other is not None:
            self._recent.append((now.value, other.value))
            self._since += 1
        if len(self._recent) == self._recent.maxlen and (self._last is None or self._since >= EVERY):
            self._since, self._last = 0, _spearman(np.array([*zip(*self._recent, strict=True)]))
        self.holds = None if self._last is None else self._is_beyond(self._last)

    def reading(self) -> Reading:
        needed = self._recent.maxlen or 0
        shown = Reading(
            "", f"{self._series.name} ~ {self._other.name}", None, keys=(*self._series.keys, *self._other.keys)
        )
        if not self._recent:
            return (self._series if self._series.now is None else self._other).unknown()
        if len(self._recent) < needed:
            return replace(shown, unknown=reason(Why.FEW_OF_BOTH, have=len(self._recent), needed=needed))
        if self._last is None:
            return replace(shown, unknown=reason(Why.STILL))
        return replace(shown, holds=self.holds, value=self._last, n=len(self._recent))


def _spearman(values: Float64Array) -> float | None:
    """Spearman's ρ of both rows of `values`, ties ranked in the middle; None if one row is constant."""
    first, second = (ranks_of(row) - len(row) / 2 for row in values)
    scale = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / scale if scale > 0 else None
