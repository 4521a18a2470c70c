"""What the rules see of a step: plain values, from any source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tracker_diag.metrics.reasons import Reason, no_series
from tracker_diag.metrics.series import Pair, Rank, SeriesKey, StatKey
from tracker_diag.records import Scalar
from tracker_diag.stats.attribution import Carrier


def no_carriers(pair: Pair, name: str) -> tuple[Carrier, ...]:  # noqa: ARG001  # one of the calls that tell
    """Of a run without tensors."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What is known of a step besides its values."""

    absent: Mapping[Pair, Reason] = field(default_factory=dict[Pair, Reason])
    """Pairs of which there are no values at all, and why."""
    lacking: Callable[[StatKey], Reason] = no_series
    """Why a statistic has no value, where its pair has some."""
    checked: bool = True
    """Whether there was any metric, tensor or sample."""
    missing: Mapping[Rank, int] | None = None
    """Steps since a rank was last heard of; None where ranks do not report through a store."""
    carriers: Callable[[Pair, str], tuple[Carrier, ...]] = no_carriers
    """Which cells carry the growth of a slice's tail, where tensors tell it."""


@dataclass(frozen=True)
class Observed(Circumstances):
    """All that the rules see of one step so far; where more of it comes later, that is a further one of the step."""

    step: int
    series: Mapping[SeriesKey, Scalar]
    """Finite values, by the key of their series."""
    non_finite: tuple[str, ...] = ()
    """Series that were NaN or infinite at this step."""
    config: Mapping[str, object] = field(default_factory=dict[str, object])
    """Settings of the run as they are now, by dotted name."""
    fired: Mapping[str, int] = field(default_factory=dict[str, int])
    """The step at which each rule last fired, by its id."""
    since_last: int = 1
    """Steps of the training from the one that was seen before to this one."""

    def why(self, key: SeriesKey) -> Reason:
        """Why the series `key` has no value."""
        if not isinstance(key, StatKey):
            return no_series(key)
        return self.absent.get(key.pair) or self.lacking(key)
