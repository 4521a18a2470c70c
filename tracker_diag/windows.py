"""Windows: the last K observed steps merged, and the frozen reference period, for one ratio pair."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from tracker_diag.arrays import Float64Array, IntArray
from tracker_diag.batch import Pair, TokenBatch
from tracker_diag.slices import ALL, CONTEXT, Slice
from tracker_diag.stats.histogram import Sketch, sketch
from tracker_diag.stats.tails import has_signal

ROWS = (*CONTEXT, ALL)


@dataclass(frozen=True)
class Observation:
    """What one observation adds to one ratio pair: a sketch of its tokens, the sums of its sequences."""

    sketch: Sketch
    sequence_sums: dict[str, Float64Array]
    """By slice and `all`: (S,) log-ratio summed over each sequence's model tokens there, in nats."""

    @classmethod
    def of(cls, batch: TokenBatch, pair: Pair, row: IntArray) -> "Observation":
        """Reduce the log-ratios of `pair`, with `row` (N,) from `label_context`."""
        r = batch.log_ratio(pair)
        masks = {name: row == index for index, name in enumerate(CONTEXT)} | {ALL: batch.model_mask}
        sums: dict[str, Float64Array] = {}
        for name, mask in masks.items():
            present = np.bincount(batch.sequence[mask]) > 0
            sums[name] = np.bincount(batch.sequence[mask], weights=r[mask])[present].astype(np.float64, copy=False)
        return cls(sketch(r, row, len(CONTEXT)), sums)

    def __add__(self, other: "Observation") -> "Observation":
        sums = {name: np.concatenate([self.sequence_sums[name], other.sequence_sums[name]]) for name in ROWS}
        return Observation(self.sketch + other.sketch, sums)


def slice_counts(merged: Sketch) -> dict[str | Slice, IntArray]:
    """(2, 4098) counts of each slice, and of `all`, which is their sum."""
    by_slice: dict[str | Slice, IntArray] = dict(zip(CONTEXT, merged.counts, strict=True))
    return by_slice | {ALL: merged.counts.sum(axis=0)}


class PairWindow:
    """The rolling window and the baseline of one ratio pair. Memory is K steps, whatever the run's length."""

    def __init__(self, steps: int, burn_in: int, baseline: int) -> None:
        self._recent: deque[Observation] = deque(maxlen=steps)
        self._first, self._last = burn_in, burn_in + baseline
        self._with_signal = 0
        self.total = Sketch.empty(len(CONTEXT))
        self.baseline = Sketch.empty(len(CONTEXT))
        """Merge of the steps `burn_in` … `burn_in + baseline`, counted from the pair's first signal."""

    def push(self, observed: Observation) -> None:
        """Take in one step; the oldest leaves the window."""
        if len(self._recent) == self._recent.maxlen:
            self.total -= self._recent[0].sketch
        self._recent.append(observed)
        self.total += observed.sketch
        if has_signal(observed.sketch.counts):
            if self._first <= self._with_signal < self._last:
                self.baseline += observed.sketch
            self._with_signal += 1

    def sequence_sums(self, name: str) -> Float64Array:
        """(S,) sums of all sequences in the window that have tokens in the slice `name`."""
        return np.concatenate([observed.sequence_sums[name] for observed in self._recent])
