"""Levels that are off: what a finding rests on lasts until its series is back, not only as long as it changes.

A hack that has become usual is still a hack; a tail that has stopped growing is still a tail.
"""

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any, ClassVar

from tracker_diag.detect.saved import Saved
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Series
from tracker_diag.rules.signals.base import Signal
from tracker_diag.rules.signals.threshold import Threshold

BACK = 2 / 3
"""Part of the way from the furthest level to the usual one, from which on a level is back."""
CLEAR = 0.2
"""A level is back if it is on the good side of a fixed limit by this part of it."""
VALUES = 5
"""Values of which a level is the median."""
LEAST = 1e-12
"""A positive series counts as at least this."""


class OffLevel(Saved):
    """The level of one series since it left what was usual. Positive series are held on a log scale.

    Args:
        usual: the usual level, or that beyond which it is well on the other side of a limit.
        back: part of the way there from the furthest level, from which on it is back.
    """

    kept: ClassVar[tuple[str, ...]] = ("_is_log", "_usual", "_furthest", "_back", "_recent")

    def __init__(self, series: Series, usual: float, value: float, back: float = BACK) -> None:
        self._series, self._back = series, back
        self._is_log = usual > 0 and value > 0
        self._usual, self._furthest = self._scaled(usual), self._scaled(value)
        self._recent: deque[float] = deque(maxlen=VALUES)

    @classmethod
    def at(cls, signal: Signal, reading: Reading) -> "OffLevel | None":
        """Where `signal` holds against a usual level of one series or a fixed limit; None for other signals."""
        if not signal.holds or len(signal.looks_at) != 1 or reading.value is None:
            return None
        if isinstance(signal, Threshold):
            limit = signal.limit
            clear = math.copysign(CLEAR * abs(limit), reading.value - limit)
            return cls(signal.looks_at[0], limit - clear, reading.value, back=1.0)
        return None if reading.baseline is None else cls(signal.looks_at[0], reading.baseline, reading.value)

    def update(self) -> None:
        """Take in the value of this step, if there is one."""
        if self._series.now is not None and self._series.new:
            self._recent.append(self._scaled(self._series.now.value))
            if self._off(self._level) > self._off(self._furthest):
                self._furthest = self._level

    @property
    def is_back(self) -> bool:
        return self._off(self._level) <= (1 - self._back) * self._off(self._furthest)

    @property
    def _level(self) -> float:
        return median(self._recent) if self._recent else self._furthest

    def _off(self, level: float) -> float:
        """How far `level` is from the usual one, in the direction in which the series has left it."""
        return (level - self._usual) * math.copysign(1.0, self._furthest - self._usual)

    def _scaled(self, value: float) -> float:
        return math.log(max(value, LEAST)) if self._is_log else value

    @classmethod
    def of_state(cls, series: Series, state: Mapping[str, Any]) -> "OffLevel":
        """The level that `state_dict` was taken of."""
        level = cls(series, 0.0, 0.0)
        level.load_state_dict(state)
        return level
