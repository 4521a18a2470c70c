"""How often another signal has held of late."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import Often
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.readers.base import Place, Reader


class OftenReader(Reader):
    """Counts what `inner` says at values; it says nothing between two."""

    def __init__(self, signal: Often, inner: Reader, at: Place) -> None:
        self._series, self._inner, self._count = at.series(signal.series, signal.relative_to), inner, signal.count
        self.looks_at = (self._series,)
        self._recent: deque[bool] = deque(maxlen=signal.steps)
        self._held: deque[int] = deque(maxlen=signal.steps)
        """The steps at which it held; as many of the last as `_recent` tells."""

    def read(self, observed: Observed) -> None:
        self._inner.read(observed)
        self.holds = None
        if self._series.now is None or self._inner.holds is None:
            return
        self._recent.append(self._inner.holds)
        if self._inner.holds:
            self._held.append(observed.step)
        self._judge()

    def _judge(self) -> None:
        self.holds = sum(self._recent) >= self._count if len(self._recent) >= self._count else None

    def reading(self) -> Reading:
        if self._series.now is None:
            return self._series.unknown()
        inner = self._inner.reading()
        if self.holds is None:
            few = reason(Why.FEW_VALUES, have=len(self._recent), needed=self._count)
            return self._series.unknown(inner.unknown or few)
        onset = self._held[-sum(self._recent)] if self.holds else None
        return replace(inner, holds=self.holds, onset=onset)

    def rebaseline(self) -> None:
        self._inner.rebaseline()
        self._recent.clear()
        self._held.clear()
        self.holds = None

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self._inner.state_dict(), "recent": list(self._recent), "held": list(self._held)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._held.clear()
        self._held.extend(state["held"])
        self._judge()
