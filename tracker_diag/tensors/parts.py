"""Parts: a batch on the host is reduced some sequences at a time, by its model tokens alone.

What is masked, most of a padded batch, is neither copied nor computed, and temporaries stay in the cache.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.metrics.series import FIRST, PAIRS, Dimension, Pair
from tracker_diag.stats.arrays import Array, BoolArray, Float64Array, IntArray, RowArray
from tracker_diag.stats.gradient import SIZE, gradient_sums
from tracker_diag.stats.histogram import Tally
from tracker_diag.stats.weights import TOTAL, WeightSums, applied_sums, stretch_sums, sums_by_row
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.observation import (
    GROUPS,
    ROWS,
    Observation,
    group_of_prompt,
    groups_in_order,
    multiplied,
    pair_of_applied,
    rows_of,
)
from tracker_diag.tensors.slices import Names, Told, beginnings, rows_told

PART = 1 << 16
"""Tokens of a part, masked ones among them, or one sequence."""


def observations(
    batch: TokenBatch,
    names: Names,
    first_group: int = 0,
    most: int = PART,
    clip: tuple[float, float] = (0.2, 0.2),
) -> dict[Pair, Observation]:
    """What `Observation.reduced` makes of each pair of `batch`, which is on the host.

    Counts are the same, sums are to rounding.
    """
    reduced: dict[Pair, _Reduced] = {pair: _Reduced(batch, pair, clip) for pair in batch.pairs}
    in_order, prompts, begun = groups_in_order(batch, first_group), batch.labels.get("prompt"), beginnings(batch)
    lengths = np.zeros((len(ROWS), batch.sequences))
    for part in parts(batch, most):
        rows = rows_told(batch, names, part.told(*begun), part.picked)
        context = rows["context"]
        rows["context"] = context * GROUPS + part.groups(in_order, prompts)
        labels: dict[Dimension, Any] = {dimension: row.astype(np.int32, copy=False) for dimension, row in rows.items()}
        stretches = Stretches.cut(part, context)
        np.add.at(lengths, (stretches.context, stretches.sequence), _lengths(stretches.starts, len(part.at)))
        for reduction in reduced.values():
            reduction.add(part, labels, stretches)
    return {pair: reduction.observation(lengths) for pair, reduction in reduced.items()}


def contexts(batch: TokenBatch, names: Names) -> RowArray:
    """The row of `context` of each model token, in their order, as `label` gives it."""
    begun = beginnings(batch)
    rows = (rows_told(batch, names, part.told(*begun), part.picked)["context"] for part in parts(batch))
    return np.concatenate([row.astype(np.int32, copy=False) for row in rows])


def parts(batch: TokenBatch, most: int = PART) -> "Iterator[Part]":
    """The parts of `batch` that have model tokens; of `most` tokens, or of one sequence."""
    n = len(batch.model_mask)
    begins = np.arange(0, n, batch.width) if batch.ids is None else np.flatnonzero(np.diff(batch.ids, prepend=-1))
    edges, first = np.append(begins, n), 0
    while first < len(begins):
        last = max(int(edges.searchsorted(edges[first] + most, "right")) - 1, first + 1)
        begin, end = int(edges[first]), int(edges[last])
        at = np.flatnonzero(batch.model_mask[begin:end])
        if len(at):
            at += begin
            starts = at.searchsorted(edges[first : last + 1])
            has = np.flatnonzero(starts[1:] > starts[:-1])
            yield Part(batch, begin, end, at, starts[has], has + first)
        first = last


@dataclass(frozen=True)
class Part:
    """The model tokens of some sequences that stand next to each other."""

    batch: TokenBatch
    begin: int
    end: int
    at: IntArray
    """(n,) where its model tokens stand in the batch, between `begin` and `end`."""
    starts: IntArray
    """(s,) which of them are the first of a sequence; it has no other sequences."""
    numbers: IntArray
    """(s,) the numbers of these sequences in the batch."""

    def picked(self, values: Any) -> Any:
        """(n,) what its tokens have, of `values` (N,) of the batch."""
        return values[self.begin : self.end] if len(self.at) == self.end - self.begin else values[self.at]

    def told(self, begins: Array | None, unknown: Array | None) -> Told:
        """What the masks tell, as `label` takes it from them; the two of `beginnings`."""
        part, n, alone = slice(self.begin, self.end), len(self.at), np.empty(len(self.at), np.bool_)
        np.not_equal(self.at[1:] - self.at[:-1], 1, out=alone[1:])
        alone[self.starts] = True
        # Runs, of tokens next to each other in one sequence: what stands between two of them is all that tells.
        runs = np.flatnonzero(alone)
        at, lengths, first = self.at[runs] - self.begin, _lengths(runs, n), runs.searchsorted(self.starts)
        first = np.repeat(first, _lengths(first, len(runs)))  # the first run of the sequence of each
        tool = np.flatnonzero(self.batch.response_mask[part] & ~self.batch.model_mask[part])
        answers = tool.searchsorted(at)

        def is_late() -> BoolArray:
            new = first == np.arange(len(runs))
            new[1:] |= answers[1:] != answers[:-1]
            begun, late = runs[new], np.ones(n, np.bool_)
            early = begun[:, None] + np.arange(FIRST)
            late[early[early < (begun + _lengths(begun, n))[:, None]]] = False
            return late

        def turns() -> IntArray:
            begun = tool[np.diff(tool, prepend=-2) != 1].searchsorted(at)
            return np.repeat(begun - begun[first], lengths)

        begins, unknown = (None if flags is None else self.picked(flags) for flags in (begins, unknown))
        return Told(np.repeat(answers != answers[first], lengths), is_late, turns, begins, unknown)

    def groups(self, in_order: IntArray, prompts: IntArray | None) -> IntArray:
        """(n,) the jackknife's group of each token, with those of all sequences in their order."""
        if prompts is not None:
            groups: IntArray = group_of_prompt(self.picked(prompts))
            return groups
        return np.repeat(in_order[self.numbers], _lengths(self.starts, len(self.at)))

    def log_ratio(self, pair: Pair) -> Any:
        """(n,) log-ratio r of `pair` in nats."""
        new, old = (self.picked(self.batch.logprobs[name]) for name in PAIRS[pair])
        with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is counted, not dropped
            return new - old


@dataclass(frozen=True)
class Stretches:
    """Tokens of a part that stand next to each other in one sequence and one slice of `context`."""

    starts: IntArray
    """(q,) the first token of each."""
    sequence: IntArray
    """(q,) the number of its sequence in the batch."""
    context: IntArray
    """(q,) its row of `ROWS`."""
    of_token: IntArray
    """(n,) the same of each token."""

    @classmethod
    def cut(cls, part: Part, context: Any) -> "Stretches":
        new = np.empty(len(context), np.bool_)
        np.not_equal(context[1:], context[:-1], out=new[1:])
        new[part.starts] = True
        starts = np.flatnonzero(new)
        return cls(starts, part.numbers[part.starts.searchsorted(starts, "right") - 1], context[starts], context)


class _Reduced:
    """What the parts of a batch have come to so far, of one pair."""

    def __init__(self, batch: TokenBatch, pair: Pair, clip: tuple[float, float]) -> None:
        self._pair: Pair = pair
        self._drift = pair == "reference"  # its tokens come from the newer of the two policies
        self._weights = batch.applied_weights if pair == pair_of_applied(batch) else None
        self._tally: Tally | None = None
        self._dimensions: list[Dimension] = []
        self._tokens: list[Float64Array] = []
        self._sums = np.zeros((len(ROWS), batch.sequences))
        self._applied, self._update = np.zeros((len(ROWS), 5)), np.zeros((len(ROWS), SIZE))
        self._clip, self._multiplied = clip, multiplied(batch)
        self._advantages = batch.labels.get("advantages") if pair == "policy" else None

    def add(self, part: Part, labels: Mapping[Dimension, Any], stretches: Stretches) -> None:
        """Take in `part`, with the rows of its tokens."""
        r, rows, sizes = part.log_ratio(self._pair), list(labels.values()), [rows_of(name) for name in labels]
        self._dimensions, self._tally = list(labels), self._tally or Tally(sizes)
        self._tally.add(r, rows)
        summed = stretch_sums(r, stretches.starts, from_numerator=self._drift)
        if summed is not None:
            self._tokens.append(sums_by_row(summed, stretches.context, len(ROWS)))
            np.add.at(self._sums, (stretches.context, stretches.sequence), summed[TOTAL])
        else:
            member = np.stack([stretches.of_token == row for row in range(len(ROWS))])
            self._tokens.append(WeightSums.summed(r, member, from_numerator=self._drift).array())
            with np.errstate(invalid="ignore"):
                total = np.add.reduceat(r.astype(np.float64, copy=False), stretches.starts)
            np.add.at(self._sums, (stretches.context, stretches.sequence), total)
        if self._weights is not None:
            applied = part.picked(self._weights)
            self._applied += np.stack([applied_sums(applied, r, stretches.of_token == row) for row in range(len(ROWS))])
        if self._advantages is not None:
            by = None if self._multiplied is None else part.picked(self._multiplied)
            advantages, lengths = part.picked(self._advantages), _lengths(part.starts, len(part.at))
            self._update += gradient_sums(
                r, advantages, stretches.of_token, self._clip, by, rows=len(ROWS), share=np.repeat(1 / lengths, lengths)
            )

    def observation(self, lengths: Float64Array) -> Observation:
        """What all of them come to; `lengths` says of each row and sequence how many tokens it has."""
        counted = self._tally.sketches() if self._tally else []
        sketches = dict(zip(self._dimensions, counted, strict=True))
        merged = WeightSums.merged(np.stack(self._tokens)).array()
        reached = np.concatenate([self._applied, self._update], axis=1)
        return Observation.built(sketches, merged, list(self._sums), list(lengths), reached)


def _lengths(starts: IntArray, n: int) -> IntArray:
    """How many of `n` there are from each of `starts` to the next."""
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = n - starts[-1:]
    return lengths
