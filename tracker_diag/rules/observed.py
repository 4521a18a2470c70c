"""What the rules see of one step: plain values, whoever read them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracker_diag.records import Scalar


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
