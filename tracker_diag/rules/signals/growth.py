"""Growth against a frozen baseline."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.detect.blocks import Direction, Scale
from tracker_diag.detect.growth import GrowthDetector
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.metrics.statistics import OF_STEP
from tracker_diag.records import Scalar
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Lasting, Verb


@dataclass(config=CLOSED, kw_only=True)
class Growth(Lasting):
    """Sustained change for the worse against the series' own frozen baseline."""

    verbs: ClassVar[Mapping[str, Verb]] = {
        "grows": Verb(times="factor", required=False),
        "shrinks": Verb({"direction": "falling"}, times="factor", required=False),
    }  # fmt: skip
    kept: ClassVar[tuple[str, ...]] = ("_detector", "_last")

    kind: Literal["growth"] = "growth"
    series: SeriesRef
    relative_to: SeriesRef | None = None
    """Use the ratio of the series to this one, so that a joint move does not count."""
    direction: Direction = "rising"
    factor: float | None = Field(default=None, gt=1)
    """The series must be at this multiple of its baseline if rising, or divided by it if falling."""
    each: float | None = Field(default=None, gt=1)
    """The same for the value of each step. Between bursts, the signal then does not hold."""
    anew: bool = False
    """Count only growth beyond every level from which the series has returned. Later crests of a wave do not count."""

    def begin(self, at: Place) -> None:
        super().begin(at)
        # A ratio of two positive series is positive, and halving it is as much as doubling it.
        metric = self._series.definition
        self._scale: Scale = "log" if self.relative_to else metric.scale
        self._disjoint = disjoint = all(ref is None or ref.stat in OF_STEP for ref in (self.series, self.relative_to))
        alike = self._scale, self.direction, disjoint
        if alike not in self._series.growth:  # signals with other factors share it
            self._series.growth[alike] = GrowthDetector(
                at.settings, self._scale, self.direction, metric.matters, disjoint,
                earlier=at.earlier.values(self._series.keys) if self._scale == "log" else (),
            )  # fmt: skip
        self._detector = self._series.growth[alike]
        self._last: tuple[float, int | None] = 0.0, None
        """The last value, and what it is made of."""
        self._missed_at: int | None = None
        """The last step that counts as missed. If its value comes in a later call, it was not."""

    @property
    def ready(self) -> bool:
        """Whether it has a baseline."""
        return self._detector.decides.ready

    def update(self, observed: Observed) -> None:
        super().update(observed)
        if self._missed:
            self._missed_at = observed.step

    def _answer(self, step: int, now: Scalar) -> bool | None:
        """Whether the series has grown, and by enough."""
        self._last = now.value, now.n
        # A slice with few tokens has a value only every few steps. Its baseline lasts as many steps as any other.
        if self._detector.step != step:
            missed = self._missed - (self._missed_at == step)
            steps = missed + 1 if self._disjoint else 1
            error = now.error if self._scale == "log" and self._detector.takes_error(steps) else None
            self._detector.update(step, now.value, error, steps)
        by = self._detector.decides
        if not by.holds or by.value is None:
            return by.holds
        grown = self._is_off(by.value, self.factor) and self._is_off(now.value, self.each)
        return grown and (by.is_new or not self.anew)

    def _evidence(self) -> Reading:
        (value, n), by = self._last, self._detector.decides
        shown = self._series.reading(self.holds, value, by.baseline, by.onset)
        if self.holds is not None:
            lacks = None
        elif by.undetectable is not None:
            lacks = reason(Why.NOISY_BASELINE, factor=by.undetectable)
        else:
            lacks = reason(Why.SHORT_BASELINE, have=by.seen, needed=by.needed)
        return replace(shown, n=n, unknown=lacks)

    def _is_off(self, value: float, factor: float | None) -> bool:
        """Whether `value` differs from the baseline by `factor`; without a factor, always."""
        baseline = self._detector.decides.baseline
        if factor is None or baseline is None:
            return True
        return value >= factor * baseline if self.direction == "rising" else value * factor <= baseline

    def rebaseline(self) -> None:
        self._detector.rebaseline()
        self.holds = None
