"""A step as a window keeps it: of its counts the cells that are not 0, and its sums."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError
from tracker_diag.metrics.series import DIMENSIONS, Dimension
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.stats.cells import Cells, merged
from tracker_diag.stats.histogram import BINS
from tracker_diag.stats.once import once
from tracker_diag.stats.tails import cells_have_signal
from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors.observation import FLOAT_SHAPES, GROUPS, SEQUENCE_ROWS, Observation, rows_of
from tracker_diag.tensors.state import pack, unpack


@dataclass(frozen=True)
class CountedStep:
    """One step of the window; of its counts the cells that are not 0, since most are."""

    cells: dict[Dimension, Cells]
    of_sequences: Cells
    floats: list[Float64Array]
    """Those of `Observation.floats`."""

    @once
    def signal(self) -> bool:
        """Whether any ratio differs from 1 by more than float noise."""
        return cells_have_signal(self.cells["context"][0])

    @once
    def by_slice(self) -> Cells:
        """The cells of `context` without its groups; an index occurs once for each group that has it."""
        index, count = self.cells["context"]
        row, rest = np.divmod(index, 2 * BINS)
        return row // GROUPS * (2 * BINS) + rest, count

    @classmethod
    def of(cls, observed: Observation) -> "CountedStep":
        cells: dict[Dimension, Cells] = {name: counted.cells for name, counted in observed.sketches.items()}
        return cls(cells, observed.sequence_sketch.cells, observed.floats())

    def __add__(self, other: "CountedStep") -> "CountedStep":
        cells = dict(self.cells)
        for dimension, part in other.cells.items():
            cells[dimension] = merged(cells[dimension], part) if dimension in cells else part
        tokens, sequences, *sums = zip(self.floats, other.floats, strict=True)
        floats = [WeightSums.merged(np.stack(both)).array() for both in (tokens, sequences)]
        floats += [mine + theirs for mine, theirs in sums]
        return CountedStep(cells, merged(self.of_sequences, other.of_sequences), floats)

    def of_slice(self, row: int) -> "CountedStep":
        """The same of one slice of `context` alone, in its own rows and in no other dimension."""
        context, sequences = _rows(self.cells["context"], row * GROUPS, GROUPS), _rows(self.of_sequences, row, 1)
        return CountedStep({"context": context}, sequences, self.floats)

    def state_dict(self) -> dict[str, Any]:
        return {
            "cells": {dimension: [pack(part) for part in cells] for dimension, cells in self.cells.items()},
            "of_sequences": [pack(part) for part in self.of_sequences],
            "floats": [pack(part) for part in self.floats],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "CountedStep":
        """The step that `state_dict` was taken of."""
        floats = [unpack(part).reshape(shape) for part, shape in zip(state["floats"], FLOAT_SHAPES, strict=True)]
        return cls(cells_by_dimension(state["cells"]), _cells(state["of_sequences"], len(SEQUENCE_ROWS)), floats)


def cells_by_dimension(packed: Mapping[str, Sequence[object]]) -> dict[Dimension, Cells]:
    """The cells of a saved state, whose indices are within the rows of their dimension."""
    if unknown := sorted(set(packed) - set(DIMENSIONS)):
        raise SourceError(f"dimension: {unknown[0]!r} given, expected one of {', '.join(DIMENSIONS)}")
    return {name: _cells(packed[name], rows_of(name)) for name in DIMENSIONS if name in packed}


def _rows(cells: Cells, first: int, rows: int) -> Cells:
    """Those of `cells` that are in so many rows from `first` on, which becomes the first row."""
    (index, count), size = cells, 2 * BINS
    start, end = index.searchsorted([first * size, (first + rows) * size])
    return index[start:end] - first * size, count[start:end]


def _cells(packed: Sequence[object], rows: int) -> Cells:
    index, count = (unpack(part) for part in packed)
    if index.shape != count.shape or (len(index) and (index.min() < 0 or index.max() >= rows * 2 * BINS)):
        raise SourceError(f"cells: {len(index)} of {rows} rows given, expected indices within them")
    return index, count
