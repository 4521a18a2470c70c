"""What every reader shares: what is observed at a step, one series in it, and a state that can be saved."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.metrics.reasons import Reason, Why, reason
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import Pair
from tracker_diag.records import Scalar
from tracker_diag.rules.earlier import Earlier
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import Limit, Limited, SeriesRef, SliceName
from tracker_diag.rules.observed import Observed

LOST_AFTER = 100
"""Evaluations without a value after which a series is not seen any more."""


class Reader(ABC):
    """One signal on one pair and slice: call `read` once a step, in order.

    Where more of a step comes later it is called again, if any of its series has come only now.
    """

    holds: bool | None = None
    """Whether the signal holds at this step; None where it cannot see."""
    looks_at: "Sequence[Series]" = ()
    """Its series. A reader that has none may be called with one step as often as one likes."""

    @abstractmethod
    def read(self, observed: Observed) -> None:
        """Take in one step, of which the series have been read."""

    @abstractmethod
    def reading(self) -> Reading:
        """What `holds` rests on; made when a finding asks for it, as at most steps none does."""

    def rebaseline(self) -> None:  # noqa: B027  # most signals have no baseline, and no state
        """Forget what was normal."""

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on where `state` was taken."""


class Known(dict[str, "Series"]):
    """The series that readers look at, by name."""

    observed: Observed | None = None
    """The last step that came, for those that have no value of it too."""

    def read(self, observed: Observed, *, again: bool) -> None:
        """Read every series at one step; `again` if more has come of the last one."""
        self.observed = observed
        for series in self.values():
            series.read(observed, again=again)


class Series:
    """One series, or the ratio of two, read for all the signals that look at it once a step, or if it has a value."""

    now: Scalar | None = None
    """The value at this step; None where there is none."""
    new: bool = False
    """Whether it has come with the last call."""

    def __init__(
        self, ref: SeriesRef, over: SeriesRef | None, pair: Pair | None, slice: SliceName, known: Known
    ) -> None:
        self.definition = ref.definition
        self.keys = [ref.key(pair, slice)] + ([over.key(pair, slice)] if over else [])
        self.name = " / ".join(self.keys)
        self._known = known

    def read(self, observed: Observed, *, again: bool = False) -> None:
        """Take in one step, or what came of it later."""
        had = self.now is not None and again
        self.now = observed.series.get(self.keys[0])
        if self.now is not None and len(self.keys) == 2:
            self.now = self._ratio(self.now, observed.series.get(self.keys[1]))
        self.new = self.now is not None and not had

    def reading(
        self, holds: bool | None, value: float | None = None, baseline: float | None = None, onset: int | None = None
    ) -> Reading:
        """What a signal says of this series now."""
        n = self.now.n if self.now else None
        return Reading("", self.name, holds, value, baseline, n, onset, keys=tuple(self.keys))

    def unknown(self, why: Reason | None = None) -> Reading:
        """A reading that says why there is none."""
        return Reading("", self.name, None, unknown=why or self._why(), keys=tuple(self.keys))

    def _ratio(self, over: Scalar, under: Scalar | None) -> Scalar | None:
        if under is None or under.value == 0:
            return None
        # Errors of the logarithm: those of a ratio add up, as the two are sampled apart.
        known = over.error is not None and under.error is not None
        error = math.hypot(over.error or 0.0, under.error or 0.0) if known else None
        return Scalar(self.name, over.value / under.value, min(over.n or 0, under.n or 0) or None, error)

    def _why(self) -> Reason:
        observed = self._known.observed
        if observed is None:
            return reason(Why.NO_STEP)
        missing = next((key for key in self.keys if key not in observed.series), None)
        return reason(Why.ZERO, series=self.keys[-1]) if missing is None else observed.why(missing)


@dataclass(frozen=True)
class Place:
    """What a reader reads for: the rule's pair and slice, the detectors' settings, the run's algorithm."""

    pair: Pair | None
    slice: SliceName
    settings: GrowthSettings
    algorithm: Algorithm | None = None
    earlier: Earlier = field(default_factory=Earlier)
    """Runs that went well."""
    known: Known = field(default_factory=Known)
    """Series that other readers look at."""

    def series(self, ref: SeriesRef, over: SeriesRef | None = None) -> Series:
        """The series `ref` here, or its ratio to `over`."""
        series = Series(ref, over, self.pair, self.slice, self.known)
        return self.known.setdefault(series.name, series)


def horizon(values: int, settings: GrowthSettings, *, part: int, fewest: int, density: float = 1.0) -> int:
    """How many values a signal looks at in a run of the expected length.

    That is `values`; in a short run one in `part` of its rows, `fewest` at least. `density` is the share of the rows at
    which the series comes.
    """
    if settings.expected_steps is None or not settings.short_run:
        return values
    return min(values, max(fewest, int(settings.expected_steps * density) // part))


def limits(node: Limited, algorithm: Algorithm | None) -> tuple[float | None, float | None]:
    """Above and below of `node` for a run of `algorithm`."""
    return _of(node.above, algorithm), _of(node.below, algorithm)


def _of(limit: Limit | None, algorithm: Algorithm | None) -> float | None:
    if isinstance(limit, dict):
        return limit.get(algorithm or "other", limit["other"])
    return limit


def outside(value: float, above: float | None, below: float | None) -> bool:
    """Whether `value` lies beyond the limit that is given."""
    return (above is not None and value > above) or (below is not None and value < below)
