"""What every reader shares: what is observed at a step, one series in it, and a state that can be saved."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker_diag.batch import Pair
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.findings import Reading
from tracker_diag.rules.nodes import Algorithm, Limit, Limited, SeriesRef, SliceName

LOST_AFTER = 100
"""Evaluations without a value after which a series is not seen any more."""


@dataclass(frozen=True)
class Observed:
    """All that the rules see of one step."""

    step: int
    series: Mapping[str, Scalar]
    """Finite values, by the name of their series."""
    non_finite: tuple[str, ...] = ()
    """Series that were NaN or infinite at this step."""
    absent: Mapping[str, str] | None = None
    """Why a pair, a slice of it or a series has no value, by name."""
    checked: bool = True
    """Whether any metric or tensor was looked at."""
    missing: Mapping[str, int] | None = None
    """Steps since a rank was last heard of, by rank and host."""
    config: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings of the run as they are now, by dotted name."""
    fired: Mapping[str, int] = field(default_factory=dict[str, int])
    """The step at which each rule last fired, by its id."""

    def why(self, prefixes: Sequence[str]) -> str:
        """Why there is no value of a series, from its key and what that begins with, the longest first."""
        if self.absent:
            for prefix in prefixes:
                if prefix in self.absent:
                    return self.absent[prefix]
        return f"no series {prefixes[0]}"


class Reader(ABC):
    """One signal on one pair and slice: call `read` once a step, in order."""

    @abstractmethod
    def read(self, observed: Observed) -> Reading:
        """What the signal says at this step."""

    def rebaseline(self) -> None:  # noqa: B027  # most signals have no baseline, and no state
        """Forget what was normal."""

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Go on where `state` was taken."""


class Series:
    """One series, or the ratio of two, as a signal reads it."""

    def __init__(self, ref: SeriesRef, over: SeriesRef | None, pair: Pair | None, slice: SliceName) -> None:
        self.definition = ref.definition
        self.keys = [ref.key(pair, slice)] + ([over.key(pair, slice)] if over else [])
        self.name = " / ".join(self.keys)
        self._prefixes = [_prefixes(key) for key in self.keys]
        self._none = Reading("", self.name, None, note="no step yet")

    def read(self, observed: Observed) -> Scalar | None:
        """The value at this step; None where there is none."""
        scalar = observed.series.get(self.keys[0])
        if scalar is None:
            self._say(observed.why(self._prefixes[0]))
            return None
        if len(self.keys) == 1:
            return scalar
        under = observed.series.get(self.keys[1])
        if under is None or under.value == 0:
            self._say(observed.why(self._prefixes[1]) if under is None else f"{self.keys[1]} is 0")
            return None
        # Errors of the logarithm: those of a ratio add up, as the two are sampled apart.
        known = scalar.error is not None and under.error is not None
        error = math.hypot(scalar.error or 0.0, under.error or 0.0) if known else None
        return Scalar(self.name, scalar.value / under.value, min(scalar.n or 0, under.n or 0) or None, error)

    def _say(self, note: str) -> None:
        if self._none.note != note:
            self._none = Reading("", self.name, None, note=note)

    def unknown(self, note: str = "") -> Reading:
        """A reading that says why there is none."""
        return Reading("", self.name, None, note=note) if note else self._none


@dataclass(frozen=True)
class Place:
    """What a reader reads for: the rule's pair and slice, the detectors' settings, the run's algorithm."""

    pair: Pair | None
    slice: SliceName
    settings: GrowthSettings
    algorithm: Algorithm | None = None

    def series(self, ref: SeriesRef, over: SeriesRef | None = None) -> Series:
        """The series `ref` here, or its ratio to `over`."""
        return Series(ref, over, self.pair, self.slice)


def _prefixes(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


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
