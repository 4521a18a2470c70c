"""Observation: what one batch adds to one ratio pair, reduced to counts and sums."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracker_diag.metrics.series import ALL, CONTEXT, FIXED, NAMED_ROWS, Dimension, Pair
from tracker_diag.stats.arrays import Array, IntArray, namespace
from tracker_diag.stats.gradient import SIZE, gradient_sums
from tracker_diag.stats.histogram import BINS, Sketch, sketch
from tracker_diag.stats.tails import cells_have_signal
from tracker_diag.stats.weights import WeightSums, applied_sums
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.slices import Names, size
from tracker_diag.tensors.state import pack, unpack

GROUPS = 8
"""Groups of sequences that `context` is kept apart by, so that its sampling error can be told."""

ROWS = FIXED["context"]
"""Of `Observation.tokens` and `.applied`, and, `GROUPS` of each, of the sketch of `context`."""

SEQUENCE_ROWS = (*CONTEXT, ALL)
"""Of `Observation.sequences`."""

FLOAT_SHAPES = ((8, 3), (8, 3), (3, 18), (2, 3))
"""Of `Observation.floats`."""


@dataclass(frozen=True)
class Observation:
    """What one observation adds to one ratio pair; `+` merges two, of micro-batches, of ranks or of steps.

    Arrays of numpy, or of torch where the tokens are on a device; `Arrival` brings those to the host.
    """

    sketches: Mapping[Dimension, Sketch]
    """A row per slice of the dimension; of `context` `GROUPS` rows per slice."""
    tokens: WeightSums
    """(3,) exact sums over the tokens of each slice of `context`, and of those whose context is unknown."""
    sequences: WeightSums
    """(3,) of both slices of `context` and of all: over the log-ratios summed over each sequence's tokens there."""
    sequence_sketch: Sketch
    """3 rows, of the same sums."""
    applied: Array
    """(3, 5 + 13) of `applied_sums` and `gradient_sums`, as `tokens`; zeros where no applied weights were given, and
    no advantages or for another pair than policy."""
    lengths: Array
    """(2, 3) of `sequences`: over their tokens n and summed log-ratios S there, the sums of n · S and of n²."""

    @classmethod
    def of(
        cls,
        batch: TokenBatch,
        pair: Pair,
        labels: Mapping[Dimension, Array],
        first_group: int = 0,
        clip: tuple[float, float] = (0.2, 0.2),
    ) -> "Observation":
        """Reduce the log-ratios of `pair`, with `labels` of `slices.label`.

        The jackknife's groups hold whole prompts, where they are told, else sequences that stand next to each other,
        as the samples of one prompt mostly do; they begin with `first_group`. `clip`: how far below and above 1 the
        ratio of the policy is clipped.
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

        tokens = WeightSums.of(r, member, from_numerator=drift)
        sums = [batch.by_sequence(xp.where(m, r, 0.0)) for m in member]
        lengths = [batch.by_sequence(m) for m in member]
        applied = np.zeros((len(member), 5)) if xp is np else xp.zeros_like(tokens.array()[:5, :].T)
        if pair == pair_of_applied(batch):
            applied = xp.stack([applied_sums(batch.applied_weights, r, m) for m in member])
        update = xp.zeros_like(xp.concatenate([tokens.array(), tokens.array()])[:SIZE, :].T)
        if pair == "policy" and "advantages" in batch.labels:
            given, by, n = batch.labels["advantages"], multiplied(batch), xp.clip(sum(lengths), 1, None)
            share = batch.per_token(1 / n)
            update = gradient_sums(r, given, context, clip, by, rows=len(ROWS), share=share)
        return cls.built(sketches, tokens, sums, lengths, xp.concatenate([applied, update], 1))

    @classmethod
    def built(
        cls,
        sketches: Mapping[Dimension, Sketch],
        tokens: WeightSums,
        sums: list[Array],
        lengths: list[Array],
        applied: Array,
    ) -> "Observation":
        """The observation of these parts.

        Args:
            sums, lengths: by `ROWS`, of each sequence the sum of its log-ratios there, and how many it has.
        """
        sums[-1], lengths[-1] = sum(sums), sum(lengths)  # all, in place of what is unknown
        xp = namespace(sums[0])
        present = [n > 0 for n in lengths]
        summed, number = xp.stack(sums), xp.stack(lengths)
        sequences = WeightSums.of(summed, xp.stack(present))
        finite = xp.isfinite(summed)
        summed, number = xp.where(finite, summed, 0.0), xp.where(finite, number, 0.0)
        products = xp.stack([(number * summed).sum(-1), (number * number).sum(-1)])
        row = [xp.where(m, i, len(sums)) for i, m in enumerate(present)]
        (of_sequences,) = sketch(xp.concatenate(sums), [xp.concatenate(row)], [len(sums)])
        return cls(sketches, tokens, sequences, of_sequences, applied, products)

    def __add__(self, other: "Observation") -> "Observation":
        mine, theirs = dict(self.sketches), other.sketches
        for dimension, counted in theirs.items():
            mine[dimension] = mine[dimension] + counted if dimension in mine else counted
        return Observation(
            mine,
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.sequence_sketch + other.sequence_sketch,
            self.applied + other.applied,
            self.lengths + other.lengths,
        )

    def renamed(self, names: Names, agreed: Names) -> "Observation":
        """The same with the rows of `tool` and `env`, which are those of `names`, where `agreed` has them."""
        sketches: dict[Dimension, Sketch] = dict(self.sketches)
        for dimension, known in names.rows.items():
            if dimension in sketches:
                row = [agreed.row(dimension, name) for name in known]
                if row == [*range(len(known))]:
                    continue
                row += [NAMED_ROWS - 1] * (NAMED_ROWS - len(row))
                moved, given = Sketch.empty(NAMED_ROWS), sketches[dimension]
                np.add.at(moved.counts, row, given.counts)
                np.add.at(moved.nonfinite, row, given.nonfinite)
                sketches[dimension] = moved
        return replace(self, sketches=sketches)

    def without_context(self) -> "Observation":
        """The same where nobody knows which tokens come after a tool: all are of the last of `ROWS`, and of no turn."""
        given, context = self.sketches["context"], Sketch.empty(len(ROWS) * GROUPS)
        context.counts[-GROUPS:] = given.counts.reshape(len(ROWS), GROUPS, *given.counts.shape[1:]).sum(0)
        context.nonfinite[-GROUPS:] = given.nonfinite.reshape(len(ROWS), GROUPS).sum(0)

        empty = WeightSums.of(np.zeros(0), np.zeros((1, 0), bool)).array()
        tokens, sequences = empty.repeat(len(ROWS), 1), self.sequences.array().copy()
        tokens[:, -1] = WeightSums.merged(self.tokens.array().T).array()
        sequences[:, :-1] = empty
        of_sequences = Sketch.empty(len(SEQUENCE_ROWS))
        of_sequences.counts[-1] = self.sequence_sketch.counts[-1]
        of_sequences.nonfinite[-1] = self.sequence_sketch.nonfinite[-1]
        applied = np.zeros_like(self.applied)
        applied[-1] = self.applied.sum(0)
        sketches: dict[Dimension, Sketch] = {name: one for name, one in self.sketches.items() if name != "turn"}
        sketches["context"] = context
        lengths = self.lengths * np.array([0.0, 0.0, 1.0])
        return Observation(
            sketches, WeightSums.of_array(tokens), WeightSums.of_array(sequences), of_sequences, applied, lengths
        )

    @property
    def nonfinite(self) -> IntArray:
        """(3,) NaN and infinite log-ratios and applied weights, by `ROWS`."""
        by_slice: IntArray = self.sketches["context"].nonfinite.reshape(len(ROWS), GROUPS).sum(1)
        of_weights: IntArray = self.applied[:, 4].astype(np.int64)
        return by_slice + of_weights

    @property
    def signal(self) -> bool:
        """Whether any ratio differs from 1 by more than float noise."""
        return cells_have_signal(self.sketches["context"].cells[0])

    @property
    def after_tool(self) -> bool:
        """Whether any token comes after a tool result."""
        first, last = (row * GROUPS * 2 * BINS for row in (1, 2))  # of post_tool
        index = self.sketches["context"].cells[0]
        return bool(index.searchsorted(last) > index.searchsorted(first))

    def integers(self) -> list[Array]:
        """All counts, in a fixed order."""
        return [a for one in (*self.sketches.values(), self.sequence_sketch) for a in (one.counts, one.nonfinite)]

    def floats(self) -> list[Array]:
        """All float64 sums, in a fixed order."""
        return [self.tokens.array(), self.sequences.array(), self.applied, self.lengths]

    def rebuilt(self, integers: Iterator[Array], floats: Iterator[Array]) -> "Observation":
        """The same observation with other arrays, in the order of `integers` and `floats`."""
        sketches: dict[Dimension, Sketch] = {
            dimension: Sketch(next(integers), next(integers)) for dimension in self.sketches
        }
        of_sequences = Sketch(next(integers), next(integers))
        tokens, sequences = WeightSums.of_array(next(floats)), WeightSums.of_array(next(floats))
        return Observation(sketches, tokens, sequences, of_sequences, next(floats), next(floats))

    def state_dict(self) -> dict[str, Any]:
        """The observation in JSON values."""
        counted: dict[str, Sketch] = {str(name): one for name, one in self.sketches.items()}
        counted["of_sequences"] = self.sequence_sketch
        return {
            "sketches": {name: [*map(pack, one.cells), pack(one.nonfinite)] for name, one in counted.items()},
            "floats": [pack(part) for part in self.floats()],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Observation":
        """The observation that `state_dict` was taken of."""
        sketches: dict[Any, Sketch] = {}
        for name, packed in state["sketches"].items():
            index, count, nonfinite = (unpack(part) for part in packed)
            sketches[name] = Sketch.of_cells((index, count), nonfinite)
        of_sequences = sketches.pop("of_sequences")
        tokens, sequences, *sums = (unpack(part) for part in state["floats"])
        return cls(sketches, WeightSums.of_array(tokens), WeightSums.of_array(sequences), of_sequences, *sums)


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
    """(sequences,) the group of each, where prompts are not told."""
    order = batch.arange(batch.sequences)
    if batch.ids is None:
        count: Any = max(batch.sequences, GROUPS)
    else:
        count = namespace(order).clip(batch.ids[-1] + 1, GROUPS, None)  # on a device it stays there
    return (order * GROUPS // count + first) % GROUPS


def multiplied(batch: TokenBatch) -> Array | None:
    """(N,) by what the loss of each token is multiplied beside its ratio: the weights against a mismatch, if given."""
    return batch.applied_weights if "mismatch" in batch.pairs else None


def rows_of(dimension: Dimension) -> int:
    """Rows of a dimension's sketch: one for each slice, of `context` one for each slice and group."""
    return size(dimension) * (GROUPS if dimension == "context" else 1)
