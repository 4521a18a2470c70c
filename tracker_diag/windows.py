"""Windows: the last K observed steps merged, and the frozen reference period, for one ratio pair."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import cast

import numpy as np

from tracker_diag.arrays import Float64Array, IntArray, RowArray
from tracker_diag.batch import Pair, TokenBatch
from tracker_diag.slices import ALL, CONTEXT
from tracker_diag.stats.histogram import Sketch, sketch
from tracker_diag.stats.tails import Estimate, has_signal, slice_statistics
from tracker_diag.stats.weights import WeightSums


@dataclass(frozen=True)
class Observation:
    """What one observation adds to one ratio pair; `+` merges two, of micro-batches or of steps."""

    sketch: Sketch
    """A row per slice of `CONTEXT`; `all` is their sum."""
    tokens: Mapping[str, WeightSums]
    """By slice and `all`: over the log-ratios of its model tokens."""
    sequences: Mapping[str, WeightSums]
    """By slice and `all`: over the log-ratios summed over each sequence's model tokens there."""

    @classmethod
    def of(cls, batch: TokenBatch, pair: Pair, row: RowArray) -> "Observation":
        """Reduce the log-ratios of `pair`, with `row` (N,) from `label_context`."""
        r = batch.log_ratio(pair)
        rows = len(CONTEXT)
        drift = pair == "reference"  # its tokens come from the newer of the two policies
        tokens: dict[str, WeightSums] = {
            name: WeightSums.of(r[row == index], from_numerator=drift) for index, name in enumerate(CONTEXT)
        }
        tokens[ALL] = reduce(add, tokens.values())
        # One pass over the tokens: (S, rows + 1) sums by sequence and row, the last one that of the masked tokens.
        cell = batch.sequence * (rows + 1) + row
        size = (int(batch.sequence[-1]) + 1) * (rows + 1)
        totals = cast("Float64Array", np.bincount(cell, weights=r, minlength=size))  # numpy's types know no weights
        sums = totals.reshape(-1, rows + 1)[:, :rows]
        present = np.bincount(cell, minlength=size).reshape(-1, rows + 1)[:, :rows] > 0
        sequences: dict[str, WeightSums] = {
            name: WeightSums.of(sums[present[:, index], index]) for index, name in enumerate(CONTEXT)
        }
        sequences[ALL] = WeightSums.of(sums.sum(axis=1)[present.any(axis=1)])
        return cls(sketch(r, row, rows), tokens, sequences)

    def __add__(self, other: "Observation") -> "Observation":
        return Observation(
            self.sketch + other.sketch,
            {name: sums + other.tokens[name] for name, sums in self.tokens.items()},
            {name: sums + other.sequences[name] for name, sums in self.sequences.items()},
        )


def slice_counts(merged: Sketch) -> dict[str, IntArray]:
    """(2, 4098) counts of each slice, and of `all`, which is their sum."""
    by_slice: dict[str, IntArray] = dict(zip(CONTEXT, merged.counts, strict=True))
    return by_slice | {ALL: merged.counts.sum(axis=0)}


class PairWindow:
    """The rolling window and the baseline of one ratio pair. Memory is K steps, whatever the run's length."""

    def __init__(self, steps: int, burn_in: int, baseline: int) -> None:
        self._recent: deque[Observation] = deque(maxlen=steps)
        self._first, self._last = burn_in, burn_in + baseline
        self._with_signal = 0
        self.signal = False
        """Whether any ratio in the window differs from 1 by more than float noise."""
        self.total = Sketch.empty(len(CONTEXT))
        """Merge of the last K steps."""
        self.baseline = Sketch.empty(len(CONTEXT))
        """Merge of the steps `burn_in` … `burn_in + baseline`, counted from the pair's first signal."""

    def push(self, observed: Observation) -> None:
        """Take in one step; the oldest leaves the window."""
        if len(self._recent) == self._recent.maxlen:
            self.total -= self._recent[0].sketch
        self._recent.append(observed)
        self.total += observed.sketch
        self.signal = has_signal(self.total.counts)
        if has_signal(observed.sketch.counts):
            if self._first <= self._with_signal < self._last:
                self.baseline += observed.sketch
            self._with_signal += 1

    def statistics(self) -> dict[str, dict[str, Estimate]]:
        """Statistics over the window by slice and `all`, each only where its samples support it."""
        return {
            name: slice_statistics(
                counts,
                reduce(add, (observed.tokens[name] for observed in self._recent)),
                reduce(add, (observed.sequences[name] for observed in self._recent)),
            )
            for name, counts in slice_counts(self.total).items()
        }
