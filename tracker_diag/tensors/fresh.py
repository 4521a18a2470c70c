"""Fresh: the tokens of one pair that came since a value was last taken of them, for the detectors.

A window of eight steps shares seven of them with the one before: what it shows lags, and moves too smoothly for
a detector to tell noise from change. What detectors read shares no token with the value before.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from tracker_diag.metrics.series import CONTEXT, NAMED_ROWS
from tracker_diag.stats.arrays import IntArray
from tracker_diag.stats.cells import Cells, add_sparse, sparse, without_groups
from tracker_diag.stats.histogram import BINS
from tracker_diag.stats.tails import SliceWindow, cells_have_signal
from tracker_diag.tensors.state import pack_cells, unpack_cells

ROWS = len(CONTEXT)


class _SinceLast(ABC):
    """What came of each row since its last value. In a step a row gives one value, once it has enough."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._reported: set[Any] = set()
        """Rows of which this step has given a value: what comes of it later is of the next one."""

    def begin(self) -> None:
        """A new step begins."""
        self._reported.clear()

    @abstractmethod
    def clear(self) -> None:
        """Forget what came."""


class Fresh(_SinceLast):
    """Cells by slice of `context`, each kept until there are `needed` tokens: one step's as a rule."""

    def __init__(self, groups: int, needed: int) -> None:
        super().__init__(needed)
        self._groups = groups
        self._starts = groups * 2 * BINS * np.arange(ROWS + 1)
        """Where each slice begins in the counts of `context`."""
        self.clear()

    def clear(self) -> None:
        self._cells: list[list[Cells]] = [[] for _ in range(ROWS)]
        """Of each slice the cells (groups, 2, 4098) that have come."""
        self._counts = np.zeros((ROWS, 2, BINS), np.int64)
        """The groups together."""

    def count(self, cells: Cells, of_slices: IntArray) -> None:
        """Count the `sparse` cells (2 × groups, 2, 4098) of `context`; not what is unknown, behind them.

        Nor a slice without signal: a p95 of 0 by construction would be taken for how calm the slice can be.
        `of_slices` (2 or more, 2, 4098): the counts of each slice.
        """
        index, count = cells
        for row, (start, end) in enumerate(pairwise(index.searchsorted(self._starts))):
            if cells_have_signal(index[start:end]):
                self._cells[row].append((index[start:end] - self._starts[row], count[start:end]))
                self._counts[row] += of_slices[row]

    def take_ready(self) -> dict[str, SliceWindow]:
        """Those slices that have enough tokens. Each takes its cells along, so they are forgotten here."""
        enough_now: dict[str, SliceWindow] = {}
        for row, name in enumerate(CONTEXT):
            of_slice = SliceWindow(
                partial(_dense, self._cells[row], (self._groups, 2, BINS)), summed=self._counts[row].copy()
            )
            if of_slice.n >= self._needed and name not in self._reported:
                enough_now[name] = of_slice
                self._cells[row], self._counts[row] = [], 0
                self._reported.add(name)
        return enough_now

    def state_dict(self) -> dict[str, Any]:
        shape = (self._groups, 2, BINS)
        cells = sparse(np.stack([_dense(of_slice, shape) for of_slice in self._cells]))
        return {"cells": pack_cells(cells), "reported": sorted(self._reported)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        cells = unpack_cells(state["cells"], ROWS * self._groups)
        self.count(cells, without_groups(cells, ROWS, self._groups, 2 * BINS).reshape(ROWS, 2, BINS))
        self._reported = set(state["reported"])


class FreshCells(_SinceLast):
    """The same for a dimension whose cells appear at run time, each with the tokens of the other cells."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self._of_cell, self._other_cells = np.zeros((2, NAMED_ROWS, BINS), np.int64)
        self._tokens = np.zeros((2, NAMED_ROWS), np.int64)
        """Of each row, and of all others."""

    def clear(self) -> None:
        for counts in (self._of_cell, self._other_cells, self._tokens):
            counts[:] = 0

    def count(self, cells: Cells) -> None:
        """Count the `sparse` cells (NAMED_ROWS, 2, 4098) of the dimension."""
        (row, column), count = np.divmod(cells[0], 2 * BINS), cells[1]
        column %= BINS
        place, of_all = row * BINS + column, np.zeros(BINS, np.int64)
        np.add.at(self._of_cell.reshape(-1), place, count)
        np.add.at(of_all, column, count)
        self._other_cells += of_all
        np.subtract.at(self._other_cells.reshape(-1), place, count)
        came = np.zeros(NAMED_ROWS, np.int64)
        np.add.at(came, row, count)
        self._tokens += (came, came.sum() - came)

    def take_ready(self) -> dict[int, SliceWindow]:
        """By row the cells that have enough tokens, as have the others; all of them are forgotten for that cell.

        The reference of each is the tokens of the other cells in the same time.
        """
        enough = (self._tokens >= self._needed).all(axis=0)
        windows: dict[int, SliceWindow] = {}
        for row in map(int, np.flatnonzero(enough)):
            if row not in self._reported:
                counts = np.stack([self._of_cell[row], np.zeros_like(self._of_cell[row])])
                windows[row] = SliceWindow(counts[None], reference=self._other_cells[row].copy())
                self._of_cell[row], self._other_cells[row], self._tokens[:, row] = 0, 0, 0
                self._reported.add(row)
        return windows

    def state_dict(self) -> dict[str, Any]:
        of_cell, other_cells = (pack_cells(sparse(counts)) for counts in (self._of_cell, self._other_cells))
        return {"of_cell": of_cell, "other_cells": other_cells, "reported": sorted(self._reported)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        for name, into in (("of_cell", self._of_cell), ("other_cells", self._other_cells)):
            add_sparse(into, unpack_cells(state[name], NAMED_ROWS // 2))
        self._tokens[:] = self._of_cell.sum(axis=1), self._other_cells.sum(axis=1)
        self._reported = set(state["reported"])


def _dense(cells: Iterable[Cells], shape: tuple[int, ...]) -> IntArray:
    """Counts of `shape` that all `cells` add up to."""
    counts = np.zeros(shape, np.int64)
    for part in cells:
        add_sparse(counts, part)
    return counts
