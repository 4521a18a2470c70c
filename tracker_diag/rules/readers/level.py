"""Where a series lies: against a limit, against its own baseline, against another series, or nowhere new."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import BaselineRatio, Correlation, Stuck, Threshold
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.readers.base import Place, Reader, horizon, limits, outside


class ThresholdReader(Reader):
    """A value against a fixed limit; it says nothing between two values."""

    def __init__(self, signal: Threshold, at: Place) -> None:
        self._series = at.series(signal.series, signal.relative_to)
        self.looks_at = (self._series,)
        self._above, self._below = limits(signal, at.algorithm)

    def read(self, observed: Observed) -> None:
        now = self._series.now
        unseen = now is None or (
            now.quantum > 0  # as few values have
            and any(
                limit is not None and abs(now.value - limit) < now.quantum / 2 for limit in (self._above, self._below)
            )
        )
        self.holds = None if now is None or unseen else outside(now.value, self._above, self._below)

    def reading(self) -> Reading:
        now = self._series.now
        if now is None:
            return self._series.unknown()
        if self.holds is None:
            return self._series.unknown(reason(Why.ROUNDED, series=self._series.name, quantum=now.quantum))
        return self._series.reading(self.holds, now.value)


class BaselineRatioReader(Reader):
    """A value over the mean of the series' own baseline, against a limit."""

    def __init__(self, signal: BaselineRatio, at: Place) -> None:
        self._series, self._bounds = at.series(signal.series), limits(signal, at.algorithm)
        self.looks_at = (self._series,)
        self._burn_in, self._steps = at.settings.short.burn_in, at.settings.short.baseline
        self._seen, self._total = 0, 0.0

    def read(self, observed: Observed) -> None:
        now, self.holds = self._series.now, None
        if now is None:
            return
        self._seen += 1
        if self._seen <= self._burn_in + self._steps:
            self._total += now.value if self._seen > self._burn_in else 0.0
        elif self._total:
            self.holds = outside(now.value / (self._total / self._steps), *self._bounds)

    def reading(self) -> Reading:
        now, needed = self._series.now, self._burn_in + self._steps
        if now is None:
            return self._series.unknown()
        if self._seen <= needed:
            return self._series.unknown(reason(Why.SHORT_BASELINE, have=self._seen, needed=needed))
        if self._total == 0:
            return self._series.unknown(reason(Why.ZERO_BASELINE))
        return self._series.reading(self.holds, now.value, self._total / self._steps)

    def rebaseline(self) -> None:
        self._seen, self._total = min(self._seen, self._burn_in), 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, "total": self._total}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen, self._total = state["seen"], state["total"]


class CorrelationReader(Reader):
    """Spearman's ρ, looked at anew after every fifth pair of values: it changes slowly and costs a sort."""

    EVERY = 5

    def __init__(self, signal: Correlation, at: Place) -> None:
        self._series, self._other = at.series(signal.series), at.series(signal.other)
        self.looks_at = (self._series, self._other)
        self._bounds = limits(signal, at.algorithm)
        self._recent: deque[tuple[float, float]] = deque(maxlen=horizon(signal.steps, at.settings, part=4, fewest=16))
        self._since = 0
        self._last: float | None = None

    def read(self, observed: Observed) -> None:
        one, two = self._series.now, self._other.now
        if one is not None and two is not None:
            self._recent.append((one.value, two.value))
            self._since += 1
        if len(self._recent) == self._recent.maxlen and (self._last is None or self._since >= self.EVERY):
            self._since, self._last = 0, _spearman(np.array(self._recent))
        self.holds = None if self._last is None else outside(self._last, *self._bounds)

    def reading(self) -> Reading:
        needed = self._recent.maxlen or 0
        said = Reading(
            "", f"{self._series.name} ~ {self._other.name}", None, keys=(*self._series.keys, *self._other.keys)
        )
        if not self._recent:
            return (self._series if self._series.now is None else self._other).unknown()
        if len(self._recent) < needed:
            return replace(said, unknown=reason(Why.FEW_OF_BOTH, have=len(self._recent), needed=needed))
        if self._last is None:
            return replace(said, unknown=reason(Why.STILL))
        return replace(said, holds=self.holds, value=self._last, n=len(self._recent))

    def rebaseline(self) -> None:
        self._recent.clear()
        self._last = None

    def state_dict(self) -> dict[str, Any]:
        return {"recent": [list(pair) for pair in self._recent], "since": self._since, "last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend((one, two) for one, two in state["recent"])
        self._since, self._last = state["since"], state["last"]


class StuckReader(Reader):
    """The spread of the last values."""

    def __init__(self, signal: Stuck, at: Place) -> None:
        self._series, self._within = at.series(signal.series), signal.within
        self.looks_at = (self._series,)
        self._recent: deque[float] = deque(maxlen=horizon(signal.steps, at.settings, part=4, fewest=8))
        self._quantum = 0.0

    def read(self, observed: Observed) -> None:
        now = self._series.now
        if now is not None:
            self._quantum = now.quantum
            self._recent.append(now.value)
            self._judge()

    @property
    def _full(self) -> bool:
        return len(self._recent) == self._recent.maxlen

    def _judge(self) -> None:
        spread = max(self._recent) - min(self._recent)
        unseen = spread <= self._within < spread + self._quantum
        self.holds = spread <= self._within if self._full and not unseen else None

    def reading(self) -> Reading:
        if not self._recent:
            return self._series.unknown()
        if not self._full:
            few = reason(Why.FEW_VALUES, have=len(self._recent), needed=self._recent.maxlen or 0)
            return self._series.unknown(few)
        if self.holds is None:
            return self._series.unknown(reason(Why.ROUNDED, series=self._series.name, quantum=self._quantum))
        return self._series.reading(self.holds, self._recent[-1])

    def rebaseline(self) -> None:
        self._recent.clear()
        self.holds = None

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self._recent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])
        if self._recent:
            self._judge()


def _spearman(values: Any) -> float | None:
    """Spearman's ρ of the columns of (n, 2), ties ranked in the middle; None where one column is constant."""
    ranks = np.stack([_ranks(column) for column in values.T])
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    scale = float(np.sqrt((centred**2).sum(axis=1).prod()))
    return float(centred[0] @ centred[1] / scale) if scale > 0 else None


def _ranks(values: Any) -> Any:
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[group]
