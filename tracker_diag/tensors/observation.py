"""Observation: what one batch adds to one ratio pair, reduced to counts and sums."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError
from tracker_diag.metrics.series import ALL, CONTEXT, DIMENSIONS, FIXED, NAMED_ROWS, PAIRS, Dimension, Pair
from tracker_diag.stats.arrays import Array, IntArray, namespace, stacked
from tracker_diag.stats.cells import without_groups
from tracker_diag.stats.gradient import SIZE, gradient_sums
from tracker_diag.stats.histogram import BINS, Sketch, sketch
from tracker_diag.stats.once import once
from tracker_diag.stats.tails import cells_have_signal
from tracker_diag.stats.weights import WeightSums, applied_sums
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.slices import Names, size
from tracker_diag.tensors.state import pack, pack_cells, unpack, unpack_cells

GROUPS = 8
"""Groups of sequences that `context` is split into, so that its sampling error can be computed."""

ROWS = FIXED["context"]
"""Of `Observation.tokens`, and, `GROUPS` of each, of the sketch of `context`."""

SEQUENCE_ROWS = (*CONTEXT, ALL)
"""Of `Observation.sequences`."""

SHAPES = ((7, 3), (7, 3), (3, 5 + SIZE), (2, 3))
"""Of `Observation.sums`."""


@dataclass(frozen=True)
class Observation:
    """What one observation adds to one ratio pair; `+` merges two, of micro-batches, of ranks or of steps.

    Arrays of numpy, or of torch where the tokens are on a device; `Arrival` brings those to the host.
    """

    sketches: Mapping[Dimension, Sketch]
    """A row per slice of the dimension; of `context` `GROUPS` rows per slice."""
    sequence_sketch: Sketch
    """3 rows, of the sums of `sequences`."""
    sums: Sequence[Array]
    """Of `SHAPES`, float64: those of `tokens`; those of `sequences`; (3, 5 + 13) of `applied_sums` and `gradient_sums`,
    as `tokens`, zeros where they were not given; and (2, 3) of `sequences`: over their tokens n and summed log-ratios S
    the sums of n · S and of n²."""

    @property
    def tokens(self) -> WeightSums:
        """(3,) exact sums over the tokens of each slice of `context`, and of those whose context is unknown."""
        return WeightSums(*self.sums[0])

    @property
    def sequences(self) -> WeightSums:
        """(3,) of both slices of `context` and of all: over the log-ratios summed over each sequence's tokens there."""
        return WeightSums(*self.sums[1])

    @classmethod
    def reduced(
        cls, batch: TokenBatch, pair: Pair, labels: Mapping[Dimension, Array],
        first_group: int = 0, clip: tuple[float, float] = (0.2, 0.2),
    ) -> "Observation":  # fmt: skip
        """Reduce the log-ratios of `pair`, with `labels` of `slices.label`.

        The jackknife's groups hold whole prompts, if they are given. Else they hold neighbouring sequences, as the
        samples of one prompt mostly are. They begin with `first_group`. `clip`: how far below and above 1 the ratio of
        the policy is clipped.
        """
        r = batch.log_ratio(pair)
        xp, context = namespace(r), labels["context"]
        drift = pair == "reference"  # its tokens come from the newer of the two policies
        member = xp.stack([context == row for row in range(len(ROWS))])

        if "prompt" in batch.labels:
            group = group_of_prompt(batch.labels["prompt"])
        else:
            group = batch.per_token(groups_in_order(batch, first_group))
        rows: dict[Dimension, Array] = {**labels, "context": context * GROUPS + group * (context < len(ROWS))}
        sizes = [rows_of(dimension) for dimension in rows]
        sketches = dict(zip(rows, sketch(r, list(rows.values()), sizes), strict=True))

        tokens = WeightSums.summed(r, member, from_numerator=drift).array()
        sums = [batch.by_sequence(xp.where(m, r, 0.0)) for m in member]
        lengths = [batch.by_sequence(m) for m in member]
        reached = np.zeros(SHAPES[2]) if xp is np else xp.zeros(SHAPES[2], dtype=xp.float64, device=r.device)
        applied, update = reached[:, :5], reached[:, 5:]
        if pair == pair_of_applied(batch):
            applied = xp.stack([applied_sums(batch.applied_weights, r, m) for m in member])
        if pair == "policy" and "advantages" in batch.labels:
            given, by, n = batch.labels["advantages"], multiplied(batch), xp.clip(sum(lengths), 1, None)
            share = batch.per_token(1 / n)
            update = gradient_sums(r, given, context, clip, by, rows=len(ROWS), share=share)
        return cls.built(sketches, tokens, sums, lengths, xp.concatenate([applied, update], 1))

    @classmethod
    def built(
        cls, sketches: Mapping[Dimension, Sketch], tokens: Array, sums: list[Array], lengths: list[Array],
        reached: Array,
    ) -> "Observation":  # fmt: skip
        """The observation of these parts.

        Args:
            tokens, reached: the first and third of its `sums`.
            sums, lengths: by `ROWS`, of each sequence the sum of its log-ratios there, and how many it has.
        """
        sums[-1], lengths[-1] = sum(sums), sum(lengths)  # all, in place of what is unknown
        xp = namespace(sums[0])
        present = [n > 0 for n in lengths]
        summed, number = stacked(sums), stacked(lengths)
        sequences = WeightSums.summed(summed, stacked(present)).array()
        finite = xp.isfinite(summed)
        summed, number = xp.where(finite, summed, 0.0), xp.where(finite, number, 0.0)
        products = stacked([(number * summed).sum(-1), (number * number).sum(-1)])
        row = [xp.where(m, i, len(sums)) for i, m in enumerate(present)]
        (of_sequences,) = sketch(xp.concatenate(sums), [xp.concatenate(row)], [len(sums)])
        return cls(sketches, of_sequences, (tokens, sequences, reached, products))

    def __add__(self, other: "Observation") -> "Observation":
        sketches = dict(self.sketches)
        for dimension, counted in other.sketches.items():
            sketches[dimension] = sketches[dimension] + counted if dimension in sketches else counted
        return Observation(sketches, self.sequence_sketch + other.sequence_sketch, added(self.sums, other.sums))

    def renamed(self, names: Names, agreed: Names) -> "Observation":
        """The same with the rows of `tool` and `env`, which are those of `names`, where `agreed` has them."""
        sketches: dict[Dimension, Sketch] = dict(self.sketches)
        for dimension, known in names.rows.items():
            if dimension in sketches:
                row = [agreed.row(dimension, name) for name in known]
                if row != [*range(len(known))]:
                    row += [NAMED_ROWS - 1] * (NAMED_ROWS - len(row))
                    sketches[dimension] = sketches[dimension].moved(np.array(row), NAMED_ROWS)
        return replace(self, sketches=sketches)

    def without_context(self) -> "Observation":
        """The same where nobody knows which tokens come after a tool: all are of the last of `ROWS`, and of no turn."""
        last = len(ROWS) - 1
        sketches: dict[Dimension, Sketch] = {name: sketch for name, sketch in self.sketches.items() if name != "turn"}
        unknown = last * GROUPS + np.arange(len(ROWS) * GROUPS) % GROUPS
        sketches["context"] = sketches["context"].moved(unknown, len(ROWS) * GROUPS)
        (index, count), nonfinite = self.sequence_sketch.cells, self.sequence_sketch.nonfinite.copy()
        of_all = index >= last * 2 * BINS
        nonfinite[:last] = 0
        tokens, sequences, reached, lengths = (np.array(part) for part in self.sums)
        empty = WeightSums.none((last,)).array()
        tokens[:, -1] = WeightSums.merged(tokens.T).array()
        tokens[:, :-1] = sequences[:, :-1] = empty
        reached[-1], reached[:-1], lengths[:, :-1] = reached.sum(0), 0.0, 0.0
        of_sequences = Sketch((index[of_all], count[of_all]), nonfinite)
        return Observation(sketches, of_sequences, (tokens, sequences, reached, lengths))

    def slice_alone(self, row: int) -> "Observation":
        """The same of one slice of `context` alone, on the host, in its own rows and in no other dimension."""
        context = _of_rows(self.sketches["context"], row * GROUPS, GROUPS)
        return Observation({"context": context}, _of_rows(self.sequence_sketch, row, 1), self.sums)

    @property
    def nonfinite(self) -> IntArray:
        """(3,) NaN and infinite log-ratios and applied weights, by `ROWS`."""
        by_slice: IntArray = self.sketches["context"].nonfinite.reshape(len(ROWS), GROUPS).sum(1)
        of_weights: IntArray = self.sums[2][:, 4].astype(np.int64)
        return by_slice + of_weights

    @once
    def of_slices(self) -> IntArray:
        """(3, 2, 4098) counts of `context`, the groups together; on the host."""
        counts = without_groups(self.sketches["context"].cells, len(ROWS), GROUPS, 2 * BINS)
        return counts.reshape(len(ROWS), 2, BINS)

    @once
    def signal(self) -> bool:
        """Whether any ratio differs from 1 by more than float noise; on the host."""
        return cells_have_signal(self.sketches["context"].cells[0])

    def arrays(self) -> list[Array]:
        """All counts and sums, in a fixed order."""
        sketches = (*self.sketches.values(), self.sequence_sketch)
        return [*(part for sketch in sketches for part in (sketch.counts, sketch.nonfinite)), *self.sums]

    def rebuilt(self, arrays: Iterator[Array]) -> "Observation":
        """The same observation with other `arrays`, in their order."""
        sketches: dict[Dimension, Sketch] = {name: Sketch(next(arrays), next(arrays)) for name in self.sketches}
        of_sequences = Sketch(next(arrays), next(arrays))
        return Observation(sketches, of_sequences, tuple(next(arrays) for _ in SHAPES))

    def state_dict(self) -> dict[str, Any]:
        """The observation in JSON values."""
        return {
            "sketches": {name: _packed(sketch) for name, sketch in self.sketches.items()},
            "of_sequences": _packed(self.sequence_sketch),
            "sums": [pack(part) for part in self.sums],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Observation":
        """The observation that `state_dict` was taken of."""
        saved = state["sketches"]
        if unknown := sorted(set(saved) - set(DIMENSIONS)):
            raise SourceError(f"dimension: {unknown[0]!r} given, expected one of {', '.join(DIMENSIONS)}")
        sketches: dict[Dimension, Sketch] = {
            name: _unpacked(saved[name], rows_of(name)) for name in DIMENSIONS if name in saved
        }
        sums = tuple(unpack(part).reshape(shape) for part, shape in zip(state["sums"], SHAPES, strict=True))
        return cls(sketches, _unpacked(state["of_sequences"], len(SEQUENCE_ROWS)), sums)


def added(sums: Sequence[Array], other: Sequence[Array]) -> list[Array]:
    """`sums` of two observations together."""
    both = list(zip(sums, other, strict=True))
    weights = ((WeightSums(*a) + WeightSums(*b)).array() for a, b in both[:2])
    return [*weights, *(a + b for a, b in both[2:])]


def add_observations(into: dict[Pair, Observation], observed: Mapping[Pair, Observation]) -> None:
    """Add what was `observed` to what is there of each pair."""
    for pair, observation in observed.items():
        into[pair] = into[pair] + observation if pair in into else observation


def renamed(observed: Mapping[Pair, Observation], names: Names, agreed: Names) -> dict[Pair, Observation]:
    """`observed`, whose rows are those of `names`, with those of `agreed`."""
    return {pair: observation.renamed(names, agreed) for pair, observation in observed.items()}


def packed(observed: Mapping[Pair, Observation]) -> dict[str, Any]:
    """`observed`, which is on the host, in JSON values."""
    return {pair: observation.state_dict() for pair, observation in observed.items()}


def unpacked(state: Mapping[str, Any]) -> dict[Pair, Observation]:
    """What `packed` was given."""
    return {pair: Observation.of_state(state[pair]) for pair in PAIRS if pair in state}


def _of_rows(counted: Sketch, first: int, rows: int) -> Sketch:
    """So many rows from `first` on, which becomes the first row."""
    (index, count), width = counted.cells, 2 * BINS
    start, end = index.searchsorted([first * width, (first + rows) * width])
    return Sketch((index[start:end] - first * width, count[start:end]), counted.nonfinite[first : first + rows])


def _packed(counted: Sketch) -> list[str]:
    return [*pack_cells(counted.cells), pack(counted.nonfinite)]


def _unpacked(saved: Sequence[object], rows: int) -> Sketch:
    *cells, nonfinite = saved
    return Sketch(unpack_cells(cells, rows), unpack(nonfinite))


def pair_of_applied(batch: TokenBatch) -> Pair | None:
    """The pair whose weights the applied ones are; None where none were given."""
    if batch.applied_weights is None:
        return None
    return "mismatch" if "mismatch" in batch.pairs else "policy"


def group_of_prompt(prompts: Array) -> Array:
    """The group of each of `prompts`, 0 to `GROUPS` − 1."""
    mixed = prompts * 2654435761  # Knuth's multiplier: ids that are all multiples of 8 part too
    return (mixed >> 16) % GROUPS


def groups_in_order(batch: TokenBatch, first: int) -> Array:
    """(sequences,) the group of each, if prompts are not given."""
    order = batch.arange(batch.sequences)
    if batch.ids is None:
        count: Any = max(batch.sequences, GROUPS)
    else:
        count = namespace(order).clip(batch.ids[-1] + 1, GROUPS, None)  # on a device it stays there
    return (order * GROUPS // count + first) % GROUPS


def multiplied(batch: TokenBatch) -> Array | None:
    """(N,) what multiplies the loss of each token besides its ratio: the weights against a mismatch, if given."""
    return batch.applied_weights if "mismatch" in batch.pairs else None


def rows_of(dimension: Dimension) -> int:
    """Rows of a dimension's sketch: one for each slice, of `context` one for each slice and group."""
    return size(dimension) * (GROUPS if dimension == "context" else 1)
