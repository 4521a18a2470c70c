"""A batch on the host is cut into segments, and reduced some of them at a time.

What is masked, most of a padded batch, is not computed, and temporaries stay in the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from tracker_diag.metrics.series import FIRST, PAIRS, Dimension, Pair
from tracker_diag.stats.arrays import Array, BoolArray, Float64Array, IntArray, RowArray
from tracker_diag.stats.gradient import SIZE
from tracker_diag.stats.segments import Segments, Sums, applied_of, pulls_of
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
from tracker_diag.tensors.slices import Names, beginnings, label, rows_given, rows_of_history

STEADY = 64
"""Tokens for each segment that a label adds, at least; such a label is looked up by segment, others by token."""
AT_ONCE = 1 << 18
"""Tokens that are reduced at once, masked ones among them, or one segment."""


def reduced(
    batch: TokenBatch, names: Names, first_group: int, clip: tuple[float, float],
    labels: Mapping[Dimension, Array] | None = None,
) -> dict[Pair, Observation]:  # fmt: skip
    """What each pair of `batch` comes to, where the batch is: the same bits in every process of a kind.

    `labels` are those of `slices.label`, where they are made already; a batch on the host needs none.
    """
    if not batch.is_on_device:
        return observations(batch, names, first_group, clip=clip)
    labels = label(batch, names) if labels is None else labels
    return {pair: Observation.reduced(batch, pair, labels, first_group, clip) for pair in batch.pairs}


def observations(
    batch: TokenBatch, names: Names, first_group: int = 0, at_once: int = AT_ONCE,
    clip: tuple[float, float] = (0.2, 0.2),
) -> dict[Pair, Observation]:  # fmt: skip
    """What `Observation.reduced` makes of each pair of `batch`, which is on the host.

    Counts are the same, sums are to rounding.
    """
    segments, of_masks, steady = cut(batch)
    if "prompt" in batch.labels:
        group = group_of_prompt(batch.labels["prompt"][segments.begin])
    else:
        group = groups_in_order(batch, first_group)[segments.sequence]
    of_labels = rows_given(batch, names, {name: batch.labels[name][segments.begin] for name in steady})
    rows = _narrow({**of_masks, **of_labels, "context": of_masks["context"] * GROUPS + group})
    rest = {name: values for name, values in batch.labels.items() if name not in steady}
    lengths = np.zeros((len(ROWS), batch.sequences))
    np.add.at(lengths, (segments.context, segments.sequence), segments.lengths)
    parts: list[_Part] = []
    for first, last in _together(segments, at_once):
        tokens = slice(int(segments.begin[first]), int(segments.end[last - 1]))
        of_tokens = rows_given(batch, names, {name: values[tokens] for name, values in rest.items()})
        here = {dimension: row[first:last] for dimension, row in rows.items()} | _narrow(of_tokens)
        parts.append((tokens, segments.part(first, last), here))
    return {pair: _observed(batch, pair, parts, lengths, clip) for pair in batch.pairs}


_Part: TypeAlias = tuple[slice, Segments, dict[Dimension, RowArray]]
"""Tokens of a batch, the segments among them, and by dimension the row of each of these segments or tokens."""


def _observed(
    batch: TokenBatch, pair: Pair, parts: Sequence[_Part], lengths: Float64Array, clip: tuple[float, float]
) -> Observation:
    """What `parts` of a batch come to; `lengths` says of each row and sequence how many tokens it has."""
    new, old = (batch.logprobs[name] for name in PAIRS[pair])
    drift = pair == "reference"  # its tokens come from the newer of the two policies
    sums = Sums([rows_of(name) for name in parts[0][2]], len(ROWS), batch.sequences, from_numerator=drift)
    weights = batch.applied_weights if pair == pair_of_applied(batch) else None
    applied, update, sizes = np.zeros((len(ROWS), 5)), np.zeros((len(ROWS), SIZE)), lengths.sum(0)
    advantages, by = batch.labels.get("advantages") if pair == "policy" else None, multiplied(batch)
    for tokens, segments, rows in parts:
        both = new[tokens], old[tokens]
        sums.include(*both, segments, list(rows.values()))
        if weights is not None:
            applied += applied_of(both, segments, weights[tokens], len(ROWS))
        if advantages is not None:
            share, given = 1 / sizes[segments.sequence], (advantages[tokens], None if by is None else by[tokens])
            update += pulls_of(both, segments, given, share, clip=clip, contexts=len(ROWS))
    sketches = dict(zip(parts[0][2], sums.tally.sketches(), strict=True))
    reached = np.concatenate([applied, update], axis=1)
    return Observation.built(sketches, sums.weights, list(sums.of_sequences), list(lengths), reached)


def cut(batch: TokenBatch) -> tuple[Segments, dict[Dimension, Array], list[str]]:
    """The model tokens of `batch`; by dimension the row of each segment, as far as masks tell; and steady labels.

    A segment is of one row of each of these dimensions, and has one value of each of these labels.
    """
    model, n, flags = batch.model_mask, len(batch.model_mask), beginnings(batch)
    new = np.zeros(n, np.bool_)
    if batch.ids is None:
        new[:: batch.width] = True
    for values in (batch.ids, model, batch.after_tool, batch.labels.get("prompt"), *flags):
        if values is not None:
            new[1:] |= values[1:] != values[:-1]
    steady: list[str] = []
    for name, values in batch.labels.items():
        changed = values[1:] != values[:-1]
        if np.count_nonzero(changed & ~new[1:]) * STEADY <= n:
            new[1:] |= changed
            steady.append(name)
    new[0] = True
    begin = np.flatnonzero(new)
    end, sampled = np.append(begin[1:], n), model[begin]
    begin, end = begin[sampled], end[sampled]
    sequence = begin // (batch.width or 1) if batch.ids is None else batch.ids[begin]
    turns: IntArray = np.zeros(len(begin), np.int64)
    late: IntArray | BoolArray = np.zeros(0, np.bool_)
    if batch.after_tool is None:
        turns = _answers(batch, begin, end)
        turns -= turns[sequence.searchsorted(sequence)]  # what is before a sequence's first model token is its prompt
        begin, end, sequence, turns, late = _cut_late(begin, end, sequence, turns)

    begins, unknown, after = (None if part is None else part[begin] for part in (*flags, batch.after_tool))
    rows = rows_of_history(batch, turns > 0, lambda: late, lambda: turns, flags=(begins, unknown), after_tool=after)
    return Segments(begin, end, rows["context"].astype(np.int64), sequence.astype(np.int64, copy=False)), rows, steady


def _answers(batch: TokenBatch, begin: IntArray, end: IntArray) -> IntArray:
    """(q,) how many times tools have answered in the batch before each segment."""
    if batch.given_response is None:  # every gap is an answer
        gaps: IntArray = np.append(0, begin[1:] != end[:-1]).cumsum()
        return gaps
    tool = batch.given_response & ~batch.model_mask
    return (np.flatnonzero(tool[1:] & ~tool[:-1]) + 1).searchsorted(begin)


def _cut_late(
    begin: IntArray, end: IntArray, sequence: IntArray, turns: IntArray
) -> tuple[IntArray, IntArray, IntArray, IntArray, BoolArray]:
    """The same cut behind the first `FIRST` tokens of each turn, and whether they are later ones."""
    before = (end - begin).cumsum() - (end - begin)
    new = np.ones(len(begin), np.bool_)
    new[1:] = (turns[1:] != turns[:-1]) | (sequence[1:] != sequence[:-1])
    first = before[new]  # tokens before each turn
    places = first + FIRST
    places = places[places < np.append(first[1:], before[-1] + end[-1] - begin[-1])]
    where = before.searchsorted(places, "right") - 1
    inside = places > before[where]
    where, places = where[inside], places[inside]
    times = np.ones(len(begin), np.int64)
    times[where] = 2
    cuts, of_turn = begin[where] + places - before[where], first[new.cumsum() - 1]
    begin, end, before, of_turn = (part.repeat(times) for part in (begin, end, before, of_turn))
    at = where + np.arange(len(where))
    end[at] = begin[at + 1] = cuts
    before[at + 1] = places
    return begin, end, sequence.repeat(times), turns.repeat(times), before - of_turn >= FIRST


def _together(segments: Segments, at_once: int) -> Iterator[tuple[int, int]]:
    """Ranges of segments whose tokens, masked ones between them with them, are no more than `at_once`, or one."""
    first, begin, end = 0, segments.begin, segments.end
    while first < len(begin):
        last = max(int(end.searchsorted(begin[first] + at_once, "right")), first + 1)
        yield first, last
        first = last


def _narrow(rows: Mapping[Dimension, Array]) -> dict[Dimension, RowArray]:
    return {dimension: np.ascontiguousarray(row, np.int32) for dimension, row in rows.items()}
