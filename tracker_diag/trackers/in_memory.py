"""Runs that are in memory already: a list of rows, or a data frame."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.keys import CLOCKS, STEPS, flat, put_records
from tracker_diag.trackers.rows import Rows

DENSE = 2 / 3  # share of rows with a number above which a column was logged in each row
FEWEST = 3
"""Numbers that a column has at least, for its NaN to be distinguished from padding."""


@runtime_checkable
class Frame(Protocol):
    """A `pandas.DataFrame`, or what has the same three attributes."""

    columns: Any
    index: Any

    def to_dict(self, orient: Any) -> Any:
        """As pandas has it; `orient` is "records"."""


IN_EVERY_ROW = {*STEPS, *CLOCKS, "epoch"}  # columns that every row has, whatever else was logged there


def read_rows(given: Iterable[Mapping[str, object]], source: str = "") -> FinishedRun:
    """A run from rows in the order of logging, each with its step under a name that trainers use.

    None is no value. NaN is a value, as somebody put it into the row. Nested mappings become keys with `/`. Where no
    row has a step, rows are counted from 0.

    Raises:
        SourceError: a row is no mapping, or has a step that is no whole number.
    """
    if isinstance(given, Mapping) or not hasattr(given, "__iter__"):
        kind = type(given).__name__
        raise SourceError(f"{kind} given, expected a path, a source, a pandas.DataFrame or a list of rows")
    listed = list(given)
    source = source or f"{len(listed)} rows"

    def records() -> Iterator[tuple[str, Mapping[str, object]]]:
        for at, row in enumerate(listed):
            if not isinstance(row, Mapping):
                kind = type(row).__name__
                raise SourceError(f"{source}: row {at} is of type {kind}, expected a mapping from names to numbers")
            yield f"row {at}", {str(key): _plain(value) for key, value in flat(row, "/")}

    rows = Rows(in_order=True)
    return rows.finish(source, put_records(rows, records(), source))


def read_frame(frame: Frame) -> FinishedRun:
    """A run from a data frame with a row a step; the step is a column, or the index if that is called so.

    A data frame has NaN both where nothing was logged and where NaN was logged. `None` and `pandas.NA` are no values.
    NaN in a column is taken for a logged NaN in two cases, and is left out in all others:

    - The whole column is NaN: without a logged value it would not be there.
    - The column has numbers in two thirds of the rows of its kind, until its last number. It has 3 at least. A row is
      of its kind, if another column that always comes with it has a number there. So is a row without any number. Where
      no column comes with it, all rows are of its kind.

    So `loss` may be NaN at the end of a run that diverged. `eval_score` in every tenth row is sparse, not NaN.

    Raises:
        SourceError: as `read_rows`.
    """
    columns = [str(name) for name in frame.columns]
    records = [{str(key): value for key, value in record.items()} for record in frame.to_dict("records")]
    if str(frame.index.name) in STEPS and not set(STEPS) & set(columns):
        records = [{str(frame.index.name): step, **record} for step, record in zip(frame.index, records, strict=True)]
    logged = _logged(columns, records)
    for record, kept in zip(records, logged, strict=True):
        for column, keep in zip(columns, kept, strict=True):
            if not keep:
                record[column] = None
    return read_rows(records, f"a data frame of {len(records)} rows")


def _logged(columns: list[str], records: list[dict[str, object]]) -> np.ndarray[Any, Any]:
    """For each row and column, whether the value was logged: it is no NaN, or a NaN that was."""
    shape = len(records), len(columns)
    values = [record[name] for record in records for name in columns]
    nan = np.array([isinstance(it, float | np.floating) and math.isnan(it) for it in values], dtype=bool).reshape(shape)
    there = np.array([it is not None for it in values], dtype=bool).reshape(shape) & ~nan
    counts = there.sum(axis=0)
    together = there.astype(np.float32).T @ there.astype(np.float32)
    telling = np.array([name.lower() not in IN_EVERY_ROW for name in columns], dtype=bool)
    without = np.logical_not(there[:, telling].any(axis=1))
    logged = ~nan
    for at in np.flatnonzero(nan.any(axis=0)):
        if nan[:, at].all():
            logged[:, at] = True
            continue
        if counts[at] < FEWEST:
            continue
        partners = (together[at] == counts[at]) & telling
        partners[at] = False
        kind = there[:, partners].any(axis=1) | without if partners.any() else np.ones(len(records), dtype=bool)
        until = int(np.flatnonzero(there[:, at])[-1]) + 1
        if counts[at] > DENSE * kind[:until].sum():
            logged[kind, at] = True
    return logged


def _plain(value: object) -> object:
    """`value` as Python has it: numbers of numpy and tensors with one number too, and None for pandas' NA."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", 1) == 0:
        return item()
    return None if type(value).__name__ in ("NAType", "NaTType") else value
