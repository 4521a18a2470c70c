"""Cells: of an array of counts those that are not 0, as most are."""

from typing import TypeAlias

import numpy as np

from tracker_diag.stats.arrays import IntArray, RowArray, starts_of
from tracker_diag.stats.kernel import kernel

Cells: TypeAlias = tuple[IntArray, IntArray]
"""Flat indices in ascending order, and the counts there."""


def sparse(counts: IntArray | RowArray) -> Cells:
    """Index and value of the cells of `counts`, flattened, that are not 0."""
    flat = counts.reshape(-1)
    index = np.flatnonzero(flat != 0)
    return index, flat[index].astype(np.int64, copy=False)


def counted(index: RowArray) -> Cells:
    """The cells of counts to which each of `index`, which is sorted, has added one."""
    first = starts_of(index)
    count = np.empty_like(first)
    np.subtract(first[1:], first[:-1], out=count[:-1])
    count[-1:] = index.size - first[-1:]
    return index[first].astype(np.int64), count


def summed(index: IntArray, count: IntArray) -> Cells:
    """The cells of counts to which each `count` was added at its `index`, in any order."""
    order = index.argsort(kind="stable")  # fast, as they come in a few rising runs
    index, count = index[order], count[order]
    first = starts_of(index)
    return index[first], np.add.reduceat(count, first)


def merged(first: Cells, second: Cells) -> Cells:
    """The sum of two arrays of one shape, all three as `sparse` gives them."""
    return summed(np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1])))


def add_sparse(into: IntArray, cells: Cells, sign: int = 1, *, distinct: bool = True) -> None:
    """Add `cells` of `sparse` to `into`, in place. Where an index may occur twice, it is not `distinct`."""
    if compiled := kernel():
        compiled.call("add", into, len(cells[0]), *cells, sign)
    elif distinct:
        into.reshape(-1)[cells[0]] += sign * cells[1]
    else:
        np.add.at(into.reshape(-1), cells[0], sign * cells[1])


def without_groups(cells: Cells, rows: int, groups: int, width: int) -> IntArray:
    """(rows, width) counts of `cells` of (rows, groups, width), the groups together."""
    row, (index, count) = np.arange(rows * groups), cells
    parts = index.searchsorted(width * np.arange(len(row) + 1))
    ahead = width * (row - row // groups)
    counts = np.zeros((rows, width), np.int64)
    add_sparse(counts, (index - ahead.repeat(parts[1:] - parts[:-1]), count), distinct=False)
    return counts
