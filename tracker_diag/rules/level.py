"""Levels that are off: what a finding rests on lasts until its series is back, not only as long as it changes.

A hack that has become usual is still a hack; a tail that has stopped growing is still a tail.
"""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Series
from tracker_diag.rules.signals.base import Signal

BACK = 2 / 3
"""Part of the way from the furthest level to the usual one, from which on a level is back."""
VALUES = 5
"""Values of which a level is the median."""
LEAST = 1e-12
"""A positive series counts as at least this."""


class OffLevel:
    """The level of one series since it left what was usual. Positive series are held on a log scale."""

    def __init__(self, series: Series, usual: float, value: float) -> None:
        self._series = series
        self._is_log = usual > 0 and value > 0
        self._usual, self._furthest = self._scaled(usual), self._scaled(value)
        self._recent: deque[float] = deque(maxlen=VALUES)

    @classmethod
    def at(cls, signal: Signal, reading: Reading) -> "OffLevel | None":
        """Where `signal` holds against a usual level of one series; None for other signals."""
        if not signal.holds or len(signal.looks_at) != 1 or reading.value is None or reading.baseline is None:
            return None
        return cls(signal.looks_at[0], reading.baseline, reading.value)

    def update(self) -> None:
        """Take in the value of this step, if there is one."""
        if self._series.now is not None and self._series.new:
            self._recent.append(self._scaled(self._series.now.value))
            if self._off(self._level) > self._off(self._furthest):
                self._furthest = self._level

    @property
    def is_back(self) -> bool:
        return self._off(self._level) <= (1 - BACK) * self._off(self._furthest)

    @property
    def _level(self) -> float:
        return median(self._recent) if self._recent else self._furthest

    def _off(self, level: float) -> float:
        """How far `level` is from the usual one, in the direction in which the series has left it."""
        return (level - self._usual) * math.copysign(1.0, self._furthest - self._usual)

    def _scaled(self, value: float) -> float:
        return math.log(max(value, LEAST)) if self._is_log else value

    def state_dict(self) -> dict[str, Any]:
        """All that `of_state` needs, in JSON values."""
        return {"log": self._is_log, "usual": self._usual, "furthest": self._furthest, "recent": list(self._recent)}

    @classmethod
    def of_state(cls, series: Series, state: Mapping[str, Any]) -> "OffLevel":
        """The level that `state_dict` was taken of."""
        level = cls(series, 0.0, 0.0)
        level._is_log, level._usual, level._furthest = state["log"], state["usual"], state["furthest"]
        level._recent.extend(state["recent"])
        return level
