"""Parts: a batch on the host is reduced some sequences at a time, by its model tokens alone.

What is masked, most of a padded batch, is neither copied nor computed, and temporaries stay in the cache.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.metrics.series import FIRST, PAIRS, Dimension, Pair
from tracker_diag.stats.arrays import Array, BoolArray, Float64Array, IntArray
from tracker_diag.stats.histogram import Sketch, Tally, sketch
from tracker_diag.stats.once import once
from tracker_diag.stats.weights import WeightSums, applied_sums
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.observation import (
    GROUPS,
    ROWS,
    Observation,
    group_of_prompt,
    groups_in_order,
    pair_of_applied,
    rows_of,
)
from tracker_diag.tensors.slices import Names, Told, before, beginnings, rows_told

PART = 1 << 16
"""Tokens of a part, masked ones among them, or one sequence."""


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

    def of(self, values: Any) -> Any:
        """(n,) what its tokens have, of `values` (N,) of the batch."""
        whole = len(self.at) == self.end - self.begin
        return values[self.begin : self.end] if whole else values[self.at]

    @once
    def first(self) -> IntArray:
        """(n,) which token is the first of the sequence of each."""
        return np.repeat(self.starts, np.diff(self.starts, append=len(self.at)))

    def told(self, begins: Array | None, unknown: Array | None) -> Told:
        """What the masks tell, as `label` takes it from them; the two of `beginnings`."""
        part, n = slice(self.begin, self.end), len(self.at)
        tool, at = self.batch.response_mask[part] & ~self.batch.model_mask[part], self.at - self.begin
        answers = tool.cumsum(dtype=np.int32)[at]
        new = np.zeros(n, np.bool_)  # whether a tool has answered since the token before, of the same sequence
        np.not_equal(answers[1:], answers[:-1], out=new[1:])
        new[self.starts] = False

        def is_late() -> BoolArray:
            begun, order = new.copy(), np.arange(n)
            begun[self.starts] = True
            late: BoolArray = order - np.maximum.accumulate(begun * order) >= FIRST
            return late

        def turns() -> IntArray:
            begun = (tool & ~before(tool)).cumsum(dtype=np.int32)[at]
            return begun - begun[self.first]

        begins, unknown = (None if one is None else self.of(one) for one in (begins, unknown))
        return Told(answers != answers[self.first], is_late, turns, begins, unknown)

    def log_ratio(self, pair: Pair) -> Any:
        """(n,) log-ratio r of `pair` in nats."""
        new, old = (self.of(self.batch.logprobs[name]) for name in PAIRS[pair])
        with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is counted, not dropped
            return new - old

    def groups(self, in_order: IntArray, prompts: IntArray | None) -> IntArray:
        """(n,) the jackknife's group of each token, with those of all sequences in their order."""
        if prompts is not None:
            return group_of_prompt(self.of(prompts))
        return np.repeat(in_order[self.numbers], np.diff(self.starts, append=len(self.at)))

    def sums(self, r: Any, member: BoolArray) -> Float64Array:
        """(s,) float64 sums of `r` (n,) over each sequence's tokens that are `member` (n,).

        Where the part is the whole batch, of all sequences, and added up as `TokenBatch.by_sequence` does.
        """
        if self.is_whole:
            spread = np.zeros(self.end, r.dtype)
            spread[self.at[member]] = r[member]
            return self.batch.by_sequence(spread)
        of = r if member.all() else np.where(member, r, 0.0)
        sums: Float64Array = np.add.reduceat(of.astype(np.float64, copy=False), self.starts)
        return sums

    def present(self, member: BoolArray) -> BoolArray:
        """(s,) whether a sequence, of those of `sums`, has a token that is `member` (n,)."""
        has: BoolArray = np.logical_or.reduceat(member, self.starts)
        if not self.is_whole:
            return has
        found = np.zeros(self.batch.sequences, np.bool_)
        found[self.numbers] = has
        return found

    @property
    def is_whole(self) -> bool:
        return self.end - self.begin == len(self.batch.model_mask)


def parts(batch: TokenBatch, most: int = PART) -> Iterator[Part]:
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


def observations(batch: TokenBatch, names: Names, first_group: int = 0, most: int = PART) -> dict[Pair, Observation]:
    """What `Observation.of` makes of each pair of `batch`, which is on the host.

    Counts are the same. So are sums in a batch of one part; in others they are to rounding.
    """
    reduced = {pair: _Reduced(pair) for pair in batch.pairs}
    in_order, prompts, begun = groups_in_order(batch, first_group), batch.labels.get("prompt"), beginnings(batch)
    applied = pair_of_applied(batch)
    for part in parts(batch, most):
        labels: dict[Dimension, Any] = {
            dimension: row.astype(np.int32, copy=False)
            for dimension, row in rows_told(batch, names, part.told(*begun), part.of).items()
        }
        context = labels["context"]
        member = np.stack([context == row for row in range(len(ROWS))])
        present = np.stack([part.present(of) for of in member])
        rows = {**labels, "context": context * GROUPS + part.groups(in_order, prompts)}
        for pair, one in reduced.items():
            one.add(part, rows, member, present, batch.applied_weights if pair == applied else None)
    return {pair: one.observation() for pair, one in reduced.items()}


class _Reduced:
    """What the parts of a batch have come to so far, of one pair."""

    def __init__(self, pair: Pair) -> None:
        self._pair: Pair = pair
        self._sketches: dict[Dimension, Sketch] = {}
        self._tally: Tally | None = None
        self._dimensions: list[Dimension] = []
        self._tokens: list[Float64Array] = []
        self._sums: list[Float64Array] = []
        self._present: list[BoolArray] = []
        self._applied = np.zeros((len(ROWS), 5))

    def add(
        self, part: Part, rows: Mapping[Dimension, Any], member: BoolArray, present: BoolArray, applied: Array | None
    ) -> None:
        """Take in `part`, with the rows of its tokens, and by `ROWS` which are there and which sequences have any."""
        r = part.log_ratio(self._pair)
        sizes = [rows_of(dimension) for dimension in rows]
        if part.is_whole:
            self._sketches = dict(zip(rows, sketch(r, list(rows.values()), sizes), strict=True))
        else:
            self._dimensions, self._tally = list(rows), self._tally or Tally(sizes)
            self._tally.add(r, list(rows.values()))
        self._tokens.append(WeightSums.of(r, member, from_numerator=self._pair == "reference").array())
        none = np.zeros(present.shape[1])
        self._sums.append(
            np.stack([part.sums(r, of) if any_.any() else none for of, any_ in zip(member, present, strict=True)])
        )
        self._present.append(present)
        if applied is not None:
            self._applied += np.stack([applied_sums(part.of(applied), r, of) for of in member])

    def observation(self) -> Observation:
        """What all of them come to."""
        if self._tally:
            self._sketches = dict(zip(self._dimensions, self._tally.sketches(), strict=True))
        tokens = WeightSums.of_array(self._tokens[0])
        if len(self._tokens) > 1:
            tokens = WeightSums.merged(np.stack(self._tokens))
        sums, present = (np.concatenate(parts, axis=1) for parts in (self._sums, self._present))
        return Observation.built(self._sketches, tokens, list(sums), list(present), self._applied)
