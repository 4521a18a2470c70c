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
        self._series, self._inner, self._signal = at.series(signal.series, signal.relative_to), inner, signal
        self.looks_at = (self._series,)
        self._recent: deque[bool] = deque(maxlen=signal.steps)
        self._held: deque[int] = deque(maxlen=signal.steps)
        """The steps at which it held; as many of the last as `_recent` tells."""
        self._before = False
        """Whether it held at the value before."""
        self._last: Reading | None = None
        """What it said when it held last."""

    def read(self, observed: Observed) -> None:
        self._inner.read(observed)
        self.holds = None
        if self._series.now is None or self._inner.holds is None:
            return
        counts = self._inner.holds and not (self._signal.anew and self._before)
        self._before = self._inner.holds
        self._recent.append(counts)
        if counts:
            self._held.append(observed.step)
            self._last = self._inner.reading()
        self._judge()

    def _judge(self) -> None:
        count = self._signal.count
        self.holds = sum(self._recent) >= count if len(self._recent) >= count else None

    def reading(self) -> Reading:
        if self._series.now is None:
            return self._series.unknown()
        inner = self._inner.reading()
        if self.holds is None:
            few = reason(Why.FEW_VALUES, have=len(self._recent), needed=self._signal.count)
            return self._series.unknown(inner.unknown or few)
        onset = self._held[-sum(self._recent)] if self.holds else None
        said = self._last if self.holds and self._last else inner
        return replace(said, holds=self.holds, onset=onset)

    def rebaseline(self) -> None:
        self._inner.rebaseline()
        self._recent.clear()
        self._held.clear()
        self._before, self.holds, self._last = False, None, None

    def state_dict(self) -> dict[str, Any]:
        counted = {"recent": list(self._recent), "held": list(self._held), "before": self._before}
        last = self._last.state_dict() if self._last else None
        return {"inner": self._inner.state_dict(), "last": last, **counted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._inner.load_state_dict(state["inner"])
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._held.clear()
        self._held.extend(state["held"])
        self._before = state["before"]
        self._last = Reading.of_state(state["last"]) if state["last"] else None
        self._judge()
