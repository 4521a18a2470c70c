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
    kept: ClassVar[tuple[str, ...]] = ("_inner", "_recent", "_held", "_before", "_last")

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
        return getattr(self.signal, "relative_to", None)

    @model_validator(mode="after")
    def _possible(self) -> "Often":
        if self.count > self.steps:
            raise ValueError(f"count: {self.count} given, expected at most {self.steps}, the steps")
        return self

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._inner = self.signal.start(at)
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
        inner = self._inner
        super().rebaseline()
        self._inner = inner
        inner.rebaseline()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._last = Reading.of_state(state["_last"]) if state["_last"] else None
