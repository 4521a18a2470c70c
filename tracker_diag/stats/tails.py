"""All that is known of one slice of one ratio pair over a window. Every statistic is a function of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.stats.gradient import SIZE, kept
from tracker_diag.stats.histogram import BINS, EDGES, QUANTILE_VALUES, quantiles
from tracker_diag.stats.kernel import kernel
from tracker_diag.stats.once import once
from tracker_diag.stats.pareto import pareto_k_of
from tracker_diag.stats.weights import WeightSums

NO_SIGNAL = 1e-6
"""A pair whose |log-ratio| never exceeds this is zero but for float noise: on-policy by construction."""

_SIGNAL_BIN = int(np.searchsorted(EDGES, NO_SIGNAL)) + 1
"""The first bin that is wholly above `NO_SIGNAL`."""

MIN_GROUPS = 4
"""Groups of sequences below which the jackknife tells nothing."""


class Estimate(NamedTuple):
    """A value with the number of samples that it rests on."""

    value: float
    n: int
    spread: Callable[[], float | None] | None = None
    """Computes the standard deviation of the logarithm of the value through the sampling of sequences, if asked for."""


_NONE = WeightSums.none()
_NO_SUMS, _NO_COUNTS = np.zeros(SIZE), np.zeros((2, BINS), np.int64)


@dataclass(frozen=True)
class SliceWindow:
    """All that is known of one slice of one pair over a window: what every statistic is a function of."""

    groups: IntArray | Callable[[], IntArray]
    """(G, …, 2, 4098) sketch of the tokens' log-ratios, by group of sequences, or what makes it.

    G = 1 if there are no groups.
    """
    tokens: WeightSums | None = None
    """Over the same log-ratios, where they are kept exactly."""
    sequences: WeightSums = _NONE
    """Over the log-ratios summed over each sequence's tokens in the slice."""
    sequence_counts: IntArray = field(default_factory=lambda: _NO_COUNTS)
    """(2, 4098) sketch of the same sums."""
    lengths: Float64Array = field(default_factory=lambda: _NO_SUMS[:2])
    """(2,) over the same sequences, of n tokens and a sum S there: the sums of n · S and of n²."""
    applied: Float64Array = field(default_factory=lambda: _NO_SUMS[:5])
    """(5,) of `applied_sums`."""
    gradient: Float64Array = field(default_factory=lambda: _NO_SUMS)
    """(13,) of `gradient_sums`, where advantages were given."""
    whole_gradient: Float64Array = field(default_factory=lambda: _NO_SUMS)
    """The same of all tokens of the pair."""
    reference: IntArray | None = None
    """(…, 4098) counts of |r| in the reference period, in as many parts as there are."""
    from_numerator: bool = False
    """Whether the tokens come from the first policy of the pair, as those of a ratio to a reference do."""
    clip: tuple[float, float] = (0.2, 0.2)
    """How far below and above 1 the trainer clips the ratio."""
    summed: IntArray | None = None
    """(2, 4098) of all groups together, where that is known."""
    steps: int | None = None
    """Steps that it reaches back, where these are more than those of its pair."""

    @once
    def by_group(self) -> IntArray:
        """(G, n, 2, 4098) `groups`, each of n parts."""
        groups = self.groups() if callable(self.groups) else self.groups
        return groups.reshape(len(groups), -1, 2, BINS)

    @once
    def counts(self) -> IntArray:
        """(2, 4098) of all groups together."""
        if self.summed is not None:
            return self.summed
        if self.by_group.size == 2 * BINS:  # one group alone
            return self.by_group.reshape(2, BINS)
        counts: IntArray = self.by_group.sum(axis=(0, 1))
        return counts

    @once
    def magnitudes(self) -> IntArray:
        """(4098,) counts of |r|."""
        magnitudes: IntArray = self.counts[0] + self.counts[1]
        return magnitudes

    @once
    def cumulated(self) -> IntArray:
        return self.magnitudes.cumsum()

    @once
    def n(self) -> int:
        return int(self.cumulated[-1])

    @once
    def then(self) -> IntArray:
        """(4098,) counts of |r| in the reference period; all 0 without one."""
        parts = np.zeros((1, BINS), np.int64) if self.reference is None else self.reference.reshape(-1, BINS)
        then: IntArray = parts[0] if len(parts) == 1 else parts.sum(axis=0)
        return then

    @once
    def pareto_k(self) -> float:
        return pareto_k_of(self.counts, self.n)

    @property
    def k1(self) -> float:
        return float(self.weights.mean if self.from_numerator else -self.weights.mean)

    @property
    def other_cells(self) -> "SliceWindow":
        """`reference` as a window: what came before, or of a cell what came of the others meanwhile."""
        return SliceWindow(np.stack([self.then, np.zeros_like(self.then)])[None])

    @property
    def sequence_dispersion(self) -> float:
        """Mean of (S − n · r̄)² over what independent tokens give it: n times their variance, and r̄ their mean.

        The mean of the tokens is not 0 where the weights have mean 1. So S differs from sequence to sequence by length
        alone: without r̄ the ratio would rise with the length of the longest.
        """
        tokens = self.weights
        independent = float(tokens.n * tokens.variance)
        mean, (products, squares) = float(tokens.mean), self.lengths
        # Of two large numbers that nearly cancel the difference is a rounding error, and never below 0.
        off = max(float(self.sequences.squares - 2 * mean * products + mean * mean * squares), 0.0)
        return off / independent if independent > 0 else math.nan

    @property
    def ess_applied(self) -> float:
        """Effective sample size of the applied weights, over n; NaN where all are 0."""
        n, total, squares = self.applied[:3]
        return float(total**2 / squares / n) if squares else math.nan

    def gradient_share(self, *, by_sequence: bool) -> float:
        """Part of Σ|w A| over all tokens that reach the optimiser; NaN where none do.

        `by_sequence`: where the loss is averaged over the tokens of each sequence first.
        """
        whole = kept(self.whole_gradient, by_sequence=by_sequence)
        return kept(self.gradient, by_sequence=by_sequence) / whole if whole > 0 else math.nan

    @once
    def weights(self) -> WeightSums:
        """`tokens`, or where they are not kept the same sums from the sketch."""
        if self.tokens is None:
            return WeightSums.of_counts(self.counts, from_numerator=self.from_numerator)
        return self.tokens

    def quantile(self, level: float) -> float:
        """That of |r| at `level`, as `histogram.quantiles` gives it; NaN without tokens."""
        rank = int(level * (self.n - 1)) + 1
        return float(QUANTILE_VALUES[self.cumulated.searchsorted(rank)]) if self.n else math.nan

    @property
    def largest(self) -> float:
        """The largest |r|, as `quantile` gives it; NaN without tokens."""
        return self.quantile(1.0)

    def without_each(self, level: float) -> Float64Array:
        """(g,) the quantile of |r| at `level`, without each of the g groups that have tokens."""
        by_group = self.by_group
        if (compiled := kernel()) and by_group.strides[2:] == (8 * BINS, 8):
            bins = np.empty(len(by_group), np.int64)
            stride, row_stride = (step // 8 for step in by_group.strides[:2])
            shape = len(by_group), stride, by_group.shape[1], row_stride
            return QUANTILE_VALUES[bins[: compiled.call("without_each", by_group, *shape, self.cumulated, level, bins)]]
        held = by_group.sum(axis=(1, 2)).cumsum(axis=1)
        cumulated = self.cumulated - held[held[:, -1] > 0]
        return QUANTILE_VALUES[[int(group.searchsorted(int(level * (group[-1] - 1)) + 1)) for group in cumulated]]

    def log_error(self, level: float) -> float | None:
        """Standard deviation of the log of the quantile at `level`, by the jackknife over groups of sequences.

        Delete-a-group jackknife (Kott 2001): whole sequences are left out, since tokens of one depend on
        each other. None with fewer than four groups or where a quantile has no logarithm.
        """
        if len(self.by_group) < MIN_GROUPS or not self.n:
            return None
        values = self.without_each(level)
        g = len(values)
        if g < MIN_GROUPS or 0.0 in values.tolist():
            return None
        logs = np.log(values)
        centred = logs - np.add.reduce(logs) / g  # as `mean` does, in a fifth of its time
        return math.sqrt((g - 1) / g * float(np.add.reduce(centred * centred)))


def cells_have_signal(index: IntArray) -> bool:
    """Whether any |log-ratio| exceeds float noise, of the flat indices, in ascending order, of counts (…, 4098)."""
    # The last is the largest of its row: nearly always it alone tells.
    return any(bool((some % BINS >= _SIGNAL_BIN).any()) for some in (index[-1:], index))


def tail_stretch(now: IntArray, then: IntArray) -> float:
    """Change of log(p99/p50) from `then` to `now`, counts (4098,) of |r|: by how much the tail stretched.

    Ratios of quantiles within a window cancel a change of scale, which is most of the variation between steps. 0.1
    means a tail 10 % longer relative to the body, within 4/257. It is the same to the last bit if a window is scaled by
    a power of two. NaN if a window is empty, or if a quantile is 0 or "at least 256", which have no logarithm. All
    equal is a ratio of 1, so an answer. Each window needs 2,000 values, 20 beyond p99: with fewer the answer is mostly
    noise.
    """

    def tail(counts: IntArray) -> float:
        middle, far = quantiles(counts, (0.5, 0.99))
        # The ratio first: it is the same to the last bit whatever power of two the values are scaled by.
        return math.log(far / middle) if 0.0 < middle <= far < QUANTILE_VALUES[-1] else math.nan

    return tail(now) - tail(then)
