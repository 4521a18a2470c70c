"""The statistics of one slice of one ratio pair, each only where its number of samples supports it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.stats.histogram import BINS, EDGES, QUANTILE_VALUES
from tracker_diag.stats.pareto import hill, pareto_k_of
from tracker_diag.stats.shape import ks_distance, qq_slope, tail_stretch, wasserstein
from tracker_diag.stats.weights import WeightSums, clip_fraction

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MIN_TOKENS = 200
MIN_SEQUENCES = 50
NO_SIGNAL = 1e-6
"""A pair whose |log-ratio| never exceeds this is zero but for float noise: on-policy by construction."""

_SIGNAL_BIN = int(np.searchsorted(EDGES, NO_SIGNAL)) + 1
"""The first bin that lies wholly above `NO_SIGNAL`."""

MIN_GROUPS = 4
"""Groups of sequences below which the jackknife tells nothing."""


@dataclass(frozen=True)
class Estimate:
    """A value with the number of samples that it rests on."""

    value: float
    n: int
    error: float | None = None
    """Standard deviation of the logarithm of the value through the sampling of sequences, where it is known."""


@dataclass(frozen=True)
class SliceWindow:
    """All that is known of one slice of one pair over a window: what every statistic is a function of."""

    groups: IntArray
    """(G, 2, 4098) sketch of the tokens' log-ratios, by group of sequences; G = 1 where they are not kept apart."""
    tokens: WeightSums | None = None
    """Over the same log-ratios, where they are kept exactly."""
    sequences: WeightSums | None = None
    """Over the log-ratios summed over each sequence's tokens in the slice."""
    sequence_counts: IntArray | None = None
    """(2, 4098) sketch of the same sums."""
    applied: Float64Array | None = None
    """(5,) of `applied_sums`."""
    reference: IntArray | None = None
    """(…, 4098) counts of |r| in the reference period, in as many parts as there are."""
    from_numerator: bool = False
    """Whether the tokens come from the first policy of the pair, as those of a ratio to a reference do."""
    clip: tuple[float, float] = (0.2, 0.2)
    """How far below and above 1 the trainer clips the ratio."""

    @cached_property
    def counts(self) -> IntArray:
        counts: IntArray = self.groups.sum(axis=0)
        return counts

    @cached_property
    def magnitudes(self) -> IntArray:
        magnitudes: IntArray = self.counts.sum(axis=0)
        return magnitudes

    @cached_property
    def n(self) -> int:
        return int(self.magnitudes.sum())

    @property
    def k1(self) -> float:
        return float(self.weights.mean if self.from_numerator else -self.weights.mean)

    @cached_property
    def cumulated(self) -> IntArray:
        cumulated: IntArray = np.cumsum(self.magnitudes)
        return cumulated

    @cached_property
    def then(self) -> IntArray | None:
        """(4098,) counts of |r| in the reference period."""
        return None if self.reference is None else self.reference.reshape(-1, BINS).sum(axis=0)

    @cached_property
    def weights(self) -> WeightSums:
        """`tokens`, or where they are not kept the same sums from the sketch."""
        if self.tokens is None:
            return WeightSums.of_counts(self.counts, from_numerator=self.from_numerator)
        return self.tokens

    def quantile(self, level: float) -> float:
        """That of |r| at `level`, as `histogram.quantiles` gives it; NaN without tokens."""
        rank = int(level * (self.n - 1)) + 1
        return float(QUANTILE_VALUES[np.searchsorted(self.cumulated, rank)]) if self.n else math.nan

    @cached_property
    def leave_one_out(self) -> tuple[IntArray, Float64Array]:
        """(g, b) cumulative counts of |r| in the b bins that are not empty, without each of the g groups that have any.

        And (b,) what a quantile in each of these bins is answered with.
        """
        filled = np.flatnonzero(self.magnitudes != 0)
        by_group = self.groups.take(filled, axis=-1).sum(axis=1)
        held = by_group[by_group.any(axis=1)]
        return np.cumsum(self.magnitudes[filled] - held, axis=1), QUANTILE_VALUES[filled]

    def log_error(self, level: float) -> float | None:
        """Standard deviation of the log of the quantile at `level`, by the jackknife over groups of sequences.

        Delete-a-group jackknife (Kott 2001): whole sequences are left out, since tokens of one depend on
        each other. None with fewer than four groups or where a quantile has no logarithm.
        """
        if len(self.groups) < MIN_GROUPS:
            return None
        cumulated, answers = self.leave_one_out
        g = len(cumulated)
        if g < MIN_GROUPS:
            return None
        ranks = (level * (cumulated[:, -1] - 1)).astype(np.int64) + 1
        values = answers[np.count_nonzero(cumulated < ranks[:, None], axis=1)]
        if not values.all():
            return None
        logs = np.log(values)
        return float(math.sqrt((g - 1) / g * np.square(logs - logs.mean()).sum()))


def _quantile(stat: str) -> Callable[[SliceWindow], Estimate]:
    level = QUANTILES[stat]
    return lambda of: Estimate(of.quantile(level), of.n, of.log_error(level))


def _token(value: Callable[[SliceWindow], float]) -> Callable[[SliceWindow], Estimate]:
    return lambda of: Estimate(float(value(of)), of.n)


def _sequence(value: Callable[[WeightSums, IntArray], float]) -> Callable[[SliceWindow], Estimate | None]:
    def estimate(of: SliceWindow) -> Estimate | None:
        if of.sequences is None or of.sequence_counts is None or of.sequences.n < MIN_SEQUENCES:
            return None
        return Estimate(float(value(of.sequences, of.sequence_counts)), int(of.sequences.n))

    return estimate


def _applied(value: Callable[[Float64Array], float]) -> Callable[[SliceWindow], Estimate | None]:
    def estimate(of: SliceWindow) -> Estimate | None:
        known = of.applied is not None and of.applied[0] >= MIN_TOKENS
        return Estimate(float(value(of.applied)), int(of.applied[0])) if known and of.applied is not None else None

    return estimate


def _change(value: Callable[[IntArray, IntArray], float]) -> Callable[[SliceWindow], Estimate | None]:
    def estimate(of: SliceWindow) -> Estimate | None:
        if of.then is None or of.then.sum() < tokens_needed("p99") or of.n < tokens_needed("p99"):
            return None
        return Estimate(value(of.magnitudes, of.then), of.n)

    return estimate


STATISTICS: dict[str, Callable[[SliceWindow], Estimate | None]] = {
    "p50": _quantile("p50"),
    "p95": _quantile("p95"),
    "p99": _quantile("p99"),
    "ess": _token(lambda of: of.weights.ess),
    "ess_perplexity": _token(lambda of: of.weights.ess_perplexity),
    "max_weight_share": _token(lambda of: of.weights.max_weight_share),
    "chi2": _token(lambda of: of.weights.chi2),
    "k1": _token(lambda of: of.k1),
    "k2": _token(lambda of: of.weights.k2),
    "k3": _token(lambda of: of.weights.kl_k3),
    "clip_fraction": _token(lambda of: clip_fraction(of.counts, *of.clip)),
    "pareto_k": _token(lambda of: pareto_k_of(of.counts)),
    "pareto_k_inverse": _token(lambda of: pareto_k_of(of.counts[::-1])),
    "hill": _token(lambda of: hill(of.magnitudes)),
    "ess_sequence": _sequence(lambda sums, _: sums.ess),
    "pareto_k_sequence": _sequence(lambda _, counts: pareto_k_of(counts)),
    "ess_applied": _applied(lambda sums: sums[1] ** 2 / sums[2] / sums[0] if sums[2] else math.nan),
    "modified_fraction": _applied(lambda sums: sums[3] / sums[0]),
    "tail_stretch": _change(tail_stretch),
    "qq_slope": _change(qq_slope),
    "wasserstein": _change(wasserstein),
    "ks": _change(ks_distance),
    "count": _token(lambda of: of.n),
}
"""Every statistic of a slice by its name in the registry of metrics."""


@cache
def tokens_needed(stat: str) -> int:
    """Tokens below which `stat` is not reported: 200, and for a quantile 20 beyond it."""
    return max(MIN_TOKENS, round(20 / (1 - QUANTILES[stat]))) if stat in QUANTILES else MIN_TOKENS


def has_signal(counts: IntArray) -> bool:
    """Whether any |log-ratio| of `counts` (…, 4098) exceeds float noise."""
    return bool(counts[..., _SIGNAL_BIN:].any())


def slice_statistics(of: SliceWindow, stats: Iterable[str] = STATISTICS) -> dict[str, Estimate]:
    """Those of `stats` that the samples support, by name; none of them is NaN."""
    found: dict[str, Estimate] = {}
    for stat in stats:
        by_sequence = stat.endswith("_sequence")
        if stat != "count" and not by_sequence and of.n < tokens_needed(stat):
            continue
        estimate = STATISTICS[stat](of)
        if estimate is not None and not math.isnan(estimate.value):
            found[stat] = estimate
    return found
