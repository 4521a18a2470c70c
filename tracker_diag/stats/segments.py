"""Segments of a batch on the host: what their log-ratios count and sum up to, by the kernel or by numpy."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracker_diag.stats.arrays import Array, Float64Array, FloatArray, IntArray, RowArray
from tracker_diag.stats.gradient import MOST, SIZE, gradient_sums, log_limits
from tracker_diag.stats.histogram import FEW, Tally
from tracker_diag.stats.kernel import kernel
from tracker_diag.stats.weights import FIELDS, LARGEST, MODIFIED, WeightSums, applied_sums

SMALL = 4.0
"""Nats: a weight is then known to 1e-14, whatever the others are."""
TOTAL = FIELDS.index("total")


class Segments(NamedTuple):
    """Tokens next to each other that are of one sequence and one context, (q,) int64 each; none is empty."""

    begin: IntArray
    end: IntArray
    """Of each segment the first of its tokens, and the one after its last."""
    context: IntArray
    """The row of sums that it belongs to."""
    sequence: IntArray

    @property
    def lengths(self) -> IntArray:
        return self.end - self.begin

    def part(self, first: int, last: int) -> "Segments":
        """The segments from `first` up to `last`, with their tokens counted from the first of them."""
        begin, end, context, sequence = (part[first:last] for part in self)
        return Segments(begin - begin[0], end - begin[0], context, sequence)

    def tokens(self) -> IntArray:
        """(n,) where their tokens are."""
        lengths = self.lengths
        before = lengths.cumsum() - lengths
        tokens: IntArray = np.arange(lengths.sum()) + (self.begin - before).repeat(lengths)
        return tokens


class Sums:
    """What the log-ratios of segments have come to so far.

    Args:
        sizes: how many rows each partition has that they are counted into.
        contexts, sequences: how many there are.
        from_numerator: as in `WeightSums.summed`.
    """

    def __init__(self, sizes: Sequence[int], contexts: int, sequences: int, *, from_numerator: bool) -> None:
        self.tally = Tally(sizes)
        self._sums = np.ascontiguousarray(WeightSums.none((contexts,)).array().T)
        self.of_sequences = np.zeros((contexts, sequences))
        """Sums of r, in nats, by context and sequence; NaN and inf are among them."""
        self._from_numerator = from_numerator

    @property
    def weights(self) -> Float64Array:
        """(7, contexts) an `array` of `WeightSums`."""
        return self._sums.T

    def include(self, new: FloatArray, old: FloatArray, segments: Segments, rows: Sequence[RowArray]) -> None:
        """Take in the log-ratios of `segments`.

        Args:
            new, old: (N,) log-probabilities in nats, whose difference is r.
            rows: of each partition the row of each segment, (q,), or of each token, (N,); int32.
        """
        lengths, counted = segments.lengths, self.tally
        if (compiled := kernel()) and lengths.sum() > FEW:
            sizes = np.array([len(part) for part in counted.nonfinite])
            by_token = np.array([len(part) != len(lengths) for part in rows], np.uint8)
            compiled.call(
                "fold", *_contiguous((new, old)), self._from_numerator, len(lengths), *segments,
                self.of_sequences.shape[1], len(rows), rows, by_token, sizes, counted.counts, counted.nonfinite,
                self._sums, self.of_sequences,
            )  # fmt: skip
            return
        tokens = segments.tokens()
        with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is counted, not dropped
            r = new[tokens] - old[tokens]
        labels = [part.repeat(lengths) if len(part) == len(lengths) else part[tokens] for part in rows]
        counted.count(r, labels)
        starts, contexts = lengths.cumsum() - lengths, len(self._sums)
        summed = stretch_sums(r, starts, from_numerator=self._from_numerator)
        if summed is not None:
            total, weights = summed[TOTAL], sums_by_row(summed, segments.context, contexts)
        else:
            member = segments.context.repeat(lengths) == np.arange(contexts)[:, None]
            weights = WeightSums.summed(r, member, from_numerator=self._from_numerator).array()
            with np.errstate(invalid="ignore"):
                total = np.add.reduceat(r.astype(np.float64, copy=False), starts)
        np.add.at(self.of_sequences, (segments.context, segments.sequence), total)
        self._sums[:] = (WeightSums(*self._sums.T) + WeightSums(*weights)).array().T


def pulls_of(
    pair: Sequence[FloatArray], segments: Segments, multiplied: tuple[Array, Array | None], share: Float64Array, *,
    clip: tuple[float, float], contexts: int,
) -> Float64Array:  # fmt: skip
    """(contexts, 13) `gradient_sums` of `segments`, whose log-ratios are the difference of the `pair` (N,).

    Args:
        multiplied: (N,) advantages, and the weights that the loss is multiplied by, if any.
        share: (q,) 1 over the number of model tokens of each segment's sequence.
    """
    if compiled := kernel():
        sums = np.zeros((contexts, SIZE))
        given = [None if part is None else np.ascontiguousarray(part, np.float64) for part in (share, *multiplied)]
        where = (len(share), *segments[:3])
        compiled.call("pulls", *_contiguous(pair), *where, *given, *log_limits(clip), MOST, sums)
        return sums
    r, context = _of_tokens(pair, segments)
    advantages, by = (None if part is None else part[segments.tokens()] for part in multiplied)
    of_tokens = share.repeat(segments.lengths)
    pulls: Float64Array = gradient_sums(r, advantages, context, clip, by, rows=contexts, share=of_tokens)
    return pulls


def applied_of(pair: Sequence[FloatArray], segments: Segments, applied: Array, contexts: int) -> Float64Array:
    """(contexts, 5) `applied_sums` of `segments`; `applied` (N,) are the weights that the optimiser used."""
    if compiled := kernel():
        sums, weights = np.zeros((contexts, 5)), np.ascontiguousarray(applied, np.float64)
        where = (len(segments.begin), *segments[:3])
        compiled.call("applied", *_contiguous(pair), *where, weights, MODIFIED, LARGEST, sums)
        return sums
    r, context = _of_tokens(pair, segments)
    return np.stack([applied_sums(applied[segments.tokens()], r, context == row) for row in range(contexts)])


def _contiguous(pair: Sequence[Array]) -> tuple[Array, Array, bool]:
    """Both log-probabilities of a pair in one dtype, and whether that is float64."""
    wide = np.float64 in (pair[0].dtype, pair[1].dtype)
    new, old = (np.ascontiguousarray(part, np.float64 if wide else np.float32) for part in pair)
    return new, old, wide


def _of_tokens(pair: Sequence[FloatArray], segments: Segments) -> tuple[FloatArray, IntArray]:
    """(n,) log-ratio and context of each token of `segments`."""
    new, old = (part[segments.tokens()] for part in pair)
    with np.errstate(invalid="ignore"):
        return new - old, segments.context.repeat(segments.lengths)


def stretch_sums(log_weights: FloatArray, starts: IntArray, *, from_numerator: bool) -> Float64Array | None:
    """What `WeightSums` are made of, of the stretches of `log_weights` (n,) that begin at `starts` (q,); on the host.

    Returns:
        (7, q): n, the largest r, and sums: of w − 1, (w − 1)², r, r² and the k3 terms. They are not
        relative to the largest weight. So None if any r is not finite, or so large or small that they had to be.
    """
    r, over = log_weights.astype(np.float64, copy=False), np.add.reduceat
    low, high = float(r.min()), float(r.max())
    if not -SMALL < low <= high < SMALL:  # NaN is neither
        return None
    n = np.diff(starts, append=len(r)).astype(np.float64)
    excess = np.expm1(r)
    k3 = over(np.expm1(-r) + r if from_numerator else excess - r, starts)
    largest = np.maximum.reduceat(r, starts)
    return np.stack([n, largest, *(over(part, starts) for part in (excess, excess * excess, r, r * r)), k3])


def sums_by_row(stretches: Float64Array, rows: IntArray, size: int) -> Float64Array:
    """(7, size), an `array` of `WeightSums`: those `stretches` (7, q) together that have the same of `rows` (q,)."""
    sums: Float64Array = WeightSums.none((size,)).array()
    for row in range(size):
        mine = rows == row
        if mine.any():
            n, excess, squared, total, squares, k3 = (
                float(np.add.reduce(part[mine])) for i, part in enumerate(stretches) if i != 1
            )
            largest = float(stretches[1][mine].max())
            scale = math.exp(-largest)
            first, second = scale * (n + excess), scale * scale * (n + 2 * excess + squared)
            sums[:, row] = (n, largest, first, second, total, squares, k3)
    return sums
