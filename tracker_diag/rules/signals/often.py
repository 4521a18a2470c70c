"""How often another signal held recently."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, SHORT, Signal, from_short
from tracker_diag.rules.signals.baseline_ratio import BaselineRatio
from tracker_diag.rules.signals.out_of_range import OutOfRange
from tracker_diag.rules.signals.spike import Spike
from tracker_diag.rules.signals.threshold import Threshold


@dataclass(config=CLOSED, kw_only=True)
class Often(Signal):
    """A threshold, a ratio to the baseline, a spike or `OutOfRange` held at `count` of the last `steps` values.

    Use it for states that return without lasting, and for levels that noise crosses.
    """

    historical: ClassVar[bool] = True

    kind: Literal["often"] = "often"
    signal: Annotated[
        Annotated[Threshold | BaselineRatio | Spike | OutOfRange, Field(discriminator="kind")],
        BeforeValidator(from_short),
        SHORT,
    ]
    count: int = Field(ge=1)
    steps: int = Field(ge=2)
    anew: bool = False
    """Count a value only if the one before it did not hold, so that a lasting state counts once."""

    @property
    def series(self) -> SeriesRef:
        return self.signal.series

    @property
    def relative_to(self) -> SeriesRef | None:
        return self.signal.relative_to if isinstance(self.signal, Threshold) else None

    @model_validator(mode="after")
    def _possible(self) -> "Often":
        if self.count > self.steps:
            raise ValueError(f"count: {self.count} given, expected at most {self.steps}, the steps")
        return self

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._series, self._inner = at.series(self.series, self.relative_to), self.signal.start(at)
        self.looks_at = (self._series,)
        self._recent: deque[bool] = deque(maxlen=self.steps)
        self._held: deque[int] = deque(maxlen=self.steps)
        """The last steps at which it held, as many as `_recent` counts."""
        self._before = False
        """Whether it held at the previous value."""
        self._last: Reading | None = None
        """Its reading when it last held."""

    def update(self, observed: Observed) -> None:
        self._inner.update(observed)
        self.holds = None
        if self._series.now is None or self._inner.holds is None:
            return
        counts = self._inner.holds and not (self.anew and self._before)
        self._before = self._inner.holds
        self._recent.append(counts)
        if counts:
            self._held.append(observed.step)
            self._last = self._inner.reading()
        self._judge()

    def _judge(self) -> None:
        self.holds = sum(self._recent) >= self.count if len(self._recent) >= self.count else None

    def reading(self) -> Reading:
        if self._series.now is None:
            return self._series.unknown()
        inner = self._inner.reading()
        if self.holds is None:
            few = reason(Why.FEW_VALUES, have=len(self._recent), needed=self.count)
            return self._series.unknown(inner.unknown or few)
        onset = self._held[-sum(self._recent)] if self.holds else None
        shown = self._last if self.holds and self._last else inner
        return replace(shown, holds=self.holds, onset=onset)

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
