"""Windows: the last K observed steps merged, and the frozen reference period, for one ratio pair."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracker_diag.errors import StateError
from tracker_diag.metrics.series import ALL, CELLS, CONTEXT, DIMENSIONS, NAMED_ROWS, Dimension, Pair
from tracker_diag.metrics.statistics import statistic
from tracker_diag.stats.arrays import Array, Float64Array, IntArray, namespace
from tracker_diag.stats.histogram import BINS, Sketch, sketch
from tracker_diag.stats.tails import SliceWindow, has_signal
from tracker_diag.stats.weights import WeightSums, applied_sums
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.fresh import Fresh, FreshCells
from tracker_diag.tensors.slices import Names, size
from tracker_diag.tensors.state import add_sparse, merged, pack, sparse, unpack

GROUPS = 8
"""Groups of sequences that `context` is kept apart by, so that its sampling error can be told."""

_SEQUENCE_ROWS = (*CONTEXT, ALL)

FLOAT_SHAPES = ((8, 2), (8, 3), (2, 5))
"""Of `Observation.floats`."""


@dataclass(frozen=True)
class Observation:
    """What one observation adds to one ratio pair; `+` merges two, of micro-batches, of ranks or of steps.

    Arrays of numpy, or of torch where the tokens are on a device; `Arrival` brings those to the host.
    """

    sketches: Mapping[Dimension, Sketch]
    """A row per slice of the dimension; of `context` `GROUPS` rows per slice."""
    tokens: WeightSums
    """(2,) exact sums over the tokens of each slice of `context`."""
    sequences: WeightSums
    """(3,) of `context`'s slices and of all: over the log-ratios summed over each sequence's tokens there."""
    sequence_sketch: Sketch
    """3 rows, of the same sums."""
    applied: Array
    """(2, 5) of `applied_sums`, by slice of `context`; zeros where no applied weights were given."""

    @classmethod
    def of(
        cls, batch: TokenBatch, pair: Pair, labels: Mapping[Dimension, Array], first_group: int = 0
    ) -> "Observation":
        """Reduce the log-ratios of `pair`, with `labels` of `slices.label`.

        The sequences go to the groups in turn, beginning with `first_group`.
        """
        r = batch.log_ratio(pair)
        xp, context = namespace(r), labels["context"]
        drift = pair == "reference"  # its tokens come from the newer of the two policies
        member = xp.stack([context == row for row in range(len(CONTEXT))])

        group = batch.per_token((batch.arange(batch.sequences) + first_group) % GROUPS)
        rows: dict[Dimension, Array] = {**labels, "context": context * GROUPS + group * (context < len(CONTEXT))}
        sizes = [rows_of(dimension) for dimension in rows]
        sketches = dict(zip(rows, sketch(r, list(rows.values()), sizes), strict=True))

        tokens = WeightSums.of(r, member, from_numerator=drift)
        sums = [batch.by_sequence(xp.where(m, r, 0.0)) for m in member]
        present = [batch.by_sequence(m) > 0 for m in member]
        sums, present = [*sums, sums[0] + sums[1]], [*present, present[0] | present[1]]
        sequences = WeightSums.of(xp.stack(sums), xp.stack(present))
        row = [xp.where(m, i, len(sums)) for i, m in enumerate(present)]
        (of_sequences,) = sketch(xp.concatenate(sums), [xp.concatenate(row)], [len(sums)])

        applied = xp.zeros_like(tokens.array()[:5, :].T)
        if batch.applied_weights is not None and pair == ("mismatch" if "mismatch" in batch.pairs else "policy"):
            applied = xp.stack([applied_sums(batch.applied_weights, r, m) for m in member])
        return cls(sketches, tokens, sequences, of_sequences, applied)

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
        )

    def renamed(self, names: Names, agreed: Names) -> "Observation":
        """The same with the rows of `tool` and `env`, which are those of `names`, where `agreed` has them."""
        sketches: dict[Dimension, Sketch] = dict(self.sketches)
        for dimension, known in names.rows.items():
            if dimension in sketches:
                row = [agreed.row(dimension, name) for name in known]
                row += [NAMED_ROWS - 1] * (NAMED_ROWS - len(row))
                moved, given = Sketch.empty(NAMED_ROWS), sketches[dimension]
                np.add.at(moved.counts, row, given.counts)
                np.add.at(moved.nonfinite, row, given.nonfinite)
                sketches[dimension] = moved
        return replace(self, sketches=sketches)

    @property
    def nonfinite(self) -> IntArray:
        """(2,) NaN and infinite log-ratios and applied weights, by slice of `context`."""
        by_slice: IntArray = self.sketches["context"].nonfinite.reshape(len(CONTEXT), GROUPS).sum(1)
        of_weights: IntArray = self.applied[:, 4].astype(np.int64)
        return by_slice + of_weights

    @property
    def signal(self) -> bool:
        """Whether any ratio differs from 1 by more than float noise."""
        return has_signal(self.sketches["context"].counts)

    def integers(self) -> list[Array]:
        """All counts, in a fixed order."""
        return [a for one in (*self.sketches.values(), self.sequence_sketch) for a in (one.counts, one.nonfinite)]

    def floats(self) -> list[Array]:
        """All float64 sums, in a fixed order."""
        return [self.tokens.array(), self.sequences.array(), self.applied]

    def rebuilt(self, integers: Iterator[Array], floats: Iterator[Array]) -> "Observation":
        """The same observation with other arrays, in the order of `integers` and `floats`."""
        sketches: dict[Dimension, Sketch] = {
            dimension: Sketch(next(integers), next(integers)) for dimension in self.sketches
        }
        of_sequences = Sketch(next(integers), next(integers))
        tokens, sequences = WeightSums.of_array(next(floats)), WeightSums.of_array(next(floats))
        return Observation(sketches, tokens, sequences, of_sequences, next(floats))

    def state_dict(self) -> dict[str, Any]:
        """The observation in JSON values."""
        counted: dict[str, Sketch] = {str(name): one for name, one in self.sketches.items()}
        counted["of_sequences"] = self.sequence_sketch
        return {
            "sketches": {name: [*map(pack, sparse(one.counts)), pack(one.nonfinite)] for name, one in counted.items()},
            "floats": [pack(part) for part in self.floats()],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Observation":
        """The observation that `state_dict` was taken of."""
        sketches: dict[Any, Sketch] = {}
        for name, packed in state["sketches"].items():
            index, count, nonfinite = (unpack(part) for part in packed)
            one = Sketch.empty(len(nonfinite))
            add_sparse(one.counts, (index, count))
            sketches[name] = Sketch(one.counts, nonfinite)
        of_sequences = sketches.pop("of_sequences")
        tokens, sequences, applied = (unpack(part) for part in state["floats"])
        return cls(sketches, WeightSums.of_array(tokens), WeightSums.of_array(sequences), of_sequences, applied)


def rows_of(dimension: Dimension) -> int:
    """Rows of a dimension's sketch: one for each slice, of `context` one for each slice and group."""
    return size(dimension) * (GROUPS if dimension == "context" else 1)


def by_group(counts: IntArray) -> dict[str, IntArray]:
    """(GROUPS, 2, 4098) of each slice of `context`, and of `all`, from (2 × GROUPS, 2, 4098)."""
    parts = counts.reshape(len(CONTEXT), GROUPS, 2, BINS)
    by_slice: dict[str, IntArray] = dict(zip(CONTEXT, parts, strict=True))
    return by_slice | {ALL: parts.sum(axis=0)}


@dataclass(frozen=True)
class _Step:
    """One step of the window; of its counts the cells that are not 0, since most are."""

    cells: dict[Dimension, tuple[IntArray, IntArray]]
    of_sequences: tuple[IntArray, IntArray]
    floats: list[Float64Array]
    """Those of `Observation.floats`."""

    @classmethod
    def of(cls, observed: Observation) -> "_Step":
        cells: dict[Dimension, tuple[IntArray, IntArray]] = {
            dimension: sparse(counted.counts) for dimension, counted in observed.sketches.items()
        }
        return cls(cells, sparse(observed.sequence_sketch.counts), observed.floats())

    def __add__(self, other: "_Step") -> "_Step":
        cells = dict(self.cells)
        for dimension, part in other.cells.items():
            cells[dimension] = merged(cells[dimension], part) if dimension in cells else part
        tokens, sequences, applied = zip(self.floats, other.floats, strict=True)
        floats = [WeightSums.merged(np.stack(both)).array() for both in (tokens, sequences)]
        return _Step(cells, merged(self.of_sequences, other.of_sequences), [*floats, applied[0] + applied[1]])


class PairWindow:
    """The rolling window and the baseline of one ratio pair. Memory is K steps, whatever the run's length."""

    def __init__(
        self, pair: Pair, steps: int, burn_in: int, baseline: int, clip: tuple[float, float] = (0.2, 0.2)
    ) -> None:
        self._pair: Pair = pair
        self._recent: deque[_Step] = deque(maxlen=steps)
        self._burn_in, self._steps = burn_in, baseline
        self._clip = clip
        self.with_signal = 0  # steps in which it was above float noise
        self._reference_steps, self._reference_tokens = 0, 0
        self._in_reference = False  # whether the last step belongs to the reference period
        self.signal = False
        """Whether any ratio in the window differs from 1 by more than float noise."""
        self.total: dict[Dimension, IntArray] = {}
        """Merge of the last K steps: (rows, 2, 4098) by dimension."""
        self.baseline: dict[Dimension, IntArray] = {}
        """Merge of the reference period, which begins `burn_in` steps after the pair's first signal and lasts
        until it has `baseline` steps and the tokens that a p99 needs."""
        self._of_sequences = np.zeros((len(_SEQUENCE_ROWS), 2, BINS), np.int64)
        self._context: dict[str, SliceWindow] = {}
        """Of `context`, while no step comes."""
        self._fresh = Fresh(GROUPS, statistic("p95_step").needs)
        self._fresh_cells: dict[Dimension, FreshCells] = {}

    def push(self, observed: Observation) -> None:
        """Take in one step; the oldest leaves the window."""
        if len(self._recent) == self._recent.maxlen:
            oldest = self._recent[0]
            for dimension, cells in oldest.cells.items():
                add_sparse(self.total[dimension], cells, -1)
            add_sparse(self._of_sequences, oldest.of_sequences, -1)
        step = _Step.of(observed)
        self._recent.append(step)
        for one in self._all_fresh:
            one.begin()
        self._count(step)
        self._in_reference = False
        if observed.signal:
            self.with_signal += 1
            done = self._reference_steps >= self._steps and self._reference_tokens >= statistic("p99").needs
            self._in_reference = self.with_signal > self._burn_in and not done
            self._reference_steps += self._in_reference
            self._refer(step)

    def amend(self, observed: Observation) -> None:
        """Add to the last step what came of it later."""
        if not self._recent:
            self.push(observed)
            return
        step = _Step.of(observed)
        self._recent.append(self._recent.pop() + step)
        self._count(step)
        self._refer(step)

    def _count(self, step: _Step) -> None:
        """Add `step` to the sums over the window."""
        self._context = {}
        _add(self.total, step.cells)
        add_sparse(self._of_sequences, step.of_sequences)
        self._fresh.add(step.cells["context"])
        for dimension in CELLS:
            if dimension in step.cells:
                if dimension not in self._fresh_cells:
                    self._fresh_cells[dimension] = FreshCells(statistic("excess_step").needs)
                self._fresh_cells[dimension].add(step.cells[dimension])
        self.signal = has_signal(self.total["context"])

    def _refer(self, step: _Step) -> None:
        """Add `step` to the reference period, if the last one belongs there."""
        if self._in_reference:
            _add(self.baseline, step.cells)
            self._reference_tokens += int(step.cells["context"][1].sum())

    def rebaseline(self) -> None:
        """Begin anew with the next step that has a signal: window too, or old steps would be in the new baseline."""
        self._recent.clear()
        self.total, self._context, self.signal, self._in_reference = {}, {}, False, False
        self._of_sequences[:] = 0
        for one in self._all_fresh:
            one.clear()
        self.baseline, self._reference_steps, self._reference_tokens = {}, 0, 0
        self.with_signal = max(self.with_signal, self._burn_in)

    @property
    def _all_fresh(self) -> Iterable[Fresh | FreshCells]:
        return (self._fresh, *self._fresh_cells.values())

    def fresh(self, names: Names) -> dict[str, SliceWindow]:
        """The tokens since this was last called, of those slices of `context` and those cells that have enough."""
        found = self._fresh.take()
        for dimension, one in self._fresh_cells.items():
            cells = one.take()
            found |= {name: cells[row] for name, row in names.slices(dimension).items() if row in cells}
        return found

    def slices(self, names: Names, only: Collection[str] | None = None) -> dict[str, SliceWindow]:
        """The window of each slice that has tokens, of those in `only` if that is given, and of all of `context`."""
        found = dict(self.context)
        for dimension in DIMENSIONS:
            if dimension != "context" and dimension in self.total:
                counts, reference = self.total[dimension], self.baseline.get(dimension)
                for name, row in names.slices(dimension).items():
                    if (only is None or name in only) and counts[row].any():
                        found[name] = SliceWindow(
                            counts[row][None],
                            reference=None if reference is None else reference[row],
                            from_numerator=self._pair == "reference",
                            clip=self._clip,
                        )
        return found

    @property
    def context(self) -> dict[str, SliceWindow]:
        """The window of each slice of `context` and of `all`; none before the first step."""
        if self._context or not self.total:
            return self._context
        tokens, sequences = (WeightSums.merged(np.stack([step.floats[i] for step in self._recent])) for i in (0, 1))
        applied = sum((step.floats[2] for step in self._recent), np.zeros(1))
        of_slice = [tokens[0], tokens[1], tokens[0] + tokens[1]]
        then = self.baseline["context"].reshape(len(CONTEXT), GROUPS, 2, BINS) if self.baseline else None
        reference = [None] * 3 if then is None else [*then, then]
        self._context = {
            name: SliceWindow(
                groups,
                of_slice[i],
                sequences[i],
                self._of_sequences[i],
                applied[i] if i < len(CONTEXT) else applied.sum(axis=0),
                reference[i],
                self._pair == "reference",
                self._clip,
            )
            for i, (name, groups) in enumerate(by_group(self.total["context"]).items())
        }
        return self._context

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {
            "recent": [_step_state(step) for step in self._recent],
            "baseline": {dimension: [pack(part) for part in sparse(c)] for dimension, c in self.baseline.items()},
            "with_signal": self.with_signal,
            "reference_steps": self._reference_steps,
            "in_reference": self._in_reference,
            "fresh": self._fresh.state_dict(),
            "fresh_cells": {dimension: one.state_dict() for dimension, one in self._fresh_cells.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; of a window that was longer then, the last steps."""
        steps = [_step_of(one) for one in state["recent"]]
        self._recent.clear()
        self._recent.extend(steps)
        self.total, self.baseline, self._context, self.signal = {}, {}, {}, False
        self._of_sequences[:] = 0
        for step in self._recent:
            self._count(step)
        _add(self.baseline, _by_dimension(state["baseline"]))
        self._reference_tokens = int(self.baseline["context"].sum()) if self.baseline else 0
        self.with_signal, self._reference_steps = state["with_signal"], state["reference_steps"]
        self._in_reference = state["in_reference"]
        self._fresh.load_state_dict(state["fresh"])
        self._fresh_cells = {}
        for dimension in CELLS:
            if dimension in state["fresh_cells"]:
                self._fresh_cells[dimension] = FreshCells(statistic("excess_step").needs)
                self._fresh_cells[dimension].load_state_dict(state["fresh_cells"][dimension])


def _add(into: dict[Dimension, IntArray], cells: Mapping[Dimension, tuple[IntArray, IntArray]]) -> None:
    for dimension, part in cells.items():
        if dimension not in into:
            into[dimension] = np.zeros((rows_of(dimension), 2, BINS), np.int64)
        add_sparse(into[dimension], part)


def _step_state(step: _Step) -> dict[str, Any]:
    return {
        "cells": {dimension: [pack(part) for part in cells] for dimension, cells in step.cells.items()},
        "of_sequences": [pack(part) for part in step.of_sequences],
        "floats": [pack(part) for part in step.floats],
    }


def _step_of(state: Mapping[str, Any]) -> _Step:
    floats = [unpack(part).reshape(shape) for part, shape in zip(state["floats"], FLOAT_SHAPES, strict=True)]
    return _Step(_by_dimension(state["cells"]), _cells(state["of_sequences"], len(_SEQUENCE_ROWS)), floats)


def _by_dimension(packed: Mapping[str, Sequence[object]]) -> dict[Dimension, tuple[IntArray, IntArray]]:
    if unknown := sorted(set(packed) - set(DIMENSIONS)):
        raise StateError(f"dimension: {unknown[0]!r} given, expected one of {', '.join(DIMENSIONS)}")
    return {name: _cells(packed[name], rows_of(name)) for name in DIMENSIONS if name in packed}


def _cells(packed: Sequence[object], rows: int) -> tuple[IntArray, IntArray]:
    index, count = (unpack(part) for part in packed)
    if index.shape != count.shape or (len(index) and (index.min() < 0 or index.max() >= rows * 2 * BINS)):
        raise StateError(f"cells: {len(index)} of {rows} rows given, expected indices within them")
    return index, count
