"""Plan: which row groups hold which steps, cut into parts that can be read by themselves, in any process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.tokens.columns import Layout
from tracker_diag.trackers.tokens.files import TokenFile
from tracker_diag.trackers.tokens.skipped import Skipped
from tracker_diag.trackers.tokens.table import Texts, by_step, typed

AT_ONCE = 1 << 20
"""Rows of a part, about; a step is never cut."""
MOST_TOKENS = 1 << 26
"""Tokens that a part may have, 67 million: a few bytes can claim to be any number of rows."""
READ_AGAIN = 1.5
"""How many times all rows may be read; where steps are scattered over the file, they are brought together first."""


@dataclass(frozen=True)
class Piece:
    """A row group of a file."""

    file: TokenFile
    layout: Layout
    number: int
    rows: int
    first: int
    last: int
    """Its lowest and its highest step."""
    start: int
    """How many rows are before it in the file."""

    @property
    def where(self) -> str:
        """File and row group, for errors."""
        return f"{self.file.name}: row group {self.number}"

    @property
    def columns(self) -> set[str]:
        """The columns that it has, or its path says."""
        return {*self.layout.names, *self.file.known}

    def table(self, *, of_one_step: bool = False) -> Any:
        """Its rows, a token each, with our names and types; without a step that the path says, if `of_one_step`."""
        known = {name: value for name, value in self.file.known.items() if name != "step" or not of_one_step}
        with opened(self.file, self.layout.coded) as table, reading(self.where):
            rows = table.read_row_group(self.number, columns=[*self.layout.names.values()], use_threads=False)
        return typed(self.where, rows, self.layout, known, self.start)


@dataclass(frozen=True)
class TablePart:
    """The rows of steps `first` to `last`, whole, from the pieces that may have some. Another process may read it."""

    first: int
    last: int
    pieces: Sequence[Piece]

    @property
    def rows(self) -> int:
        """How many rows are read for it, about."""
        return sum(piece.rows for piece in self.pieces)

    def stamp(self) -> str:
        """What changes when its rows do."""
        pieces = [(piece.file.stamp(), piece.number, sorted(piece.layout.names.items())) for piece in self.pieces]
        return f"{self.first} {self.last} {pieces}"

    def only(self, step: int) -> "TablePart":
        """The same with this step alone."""
        pieces = [piece for piece in self.pieces if piece.first <= step <= piece.last]
        return replace(self, first=step, last=step, pieces=pieces)

    def steps(self, texts: Texts | None, skipped: Skipped) -> Iterator[tuple[int, dict[str, Any]]]:
        """The arguments of `Monitor.observe` for each step, in rising order."""
        import pyarrow as pa

        tables: list[Any] = []
        what = f"step {self.first} has" if self.first == self.last else f"steps {self.first} to {self.last} have"
        for piece in self.pieces:
            with skipped.instead():
                tables.append(self._rows_of(piece))  # kept nowhere else, as tables may be cleared
            if sum(map(len, tables)) > MOST_TOKENS:
                tables.clear()
                skipped(SourceError(f"{piece.where}: {what} more than {MOST_TOKENS:,} tokens"))
                return
        if tables and sum(map(len, tables)):
            first, *others = dict.fromkeys(piece.file.name for piece in self.pieces)
            at = f"{first} and {len(others)} more files" if others else first
            with skipped.instead():
                with reading(at):
                    whole = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
                tables.clear()
                yield from by_step(at, whole, texts, skipped, self.first if self.first == self.last else None)

    def _rows_of(self, piece: Piece) -> Any:
        rows = piece.table(of_one_step=self.first == self.last)
        if self.first <= piece.first and piece.last <= self.last:
            return rows
        steps = rows["step"].to_numpy()
        mine = (steps >= self.first) & (steps <= self.last)
        at = np.flatnonzero(mine)
        together = len(at) and at[-1] - at[0] + 1 == len(at)
        return rows.slice(at[0], len(at)) if together else rows.take(at)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """What Arrow says of a file, as a SourceError."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{where}: cannot be read: {one_line(error)}") from error


@contextmanager
def opened(file: TokenFile, coded: Sequence[str] = ()) -> Iterator[Any]:
    """A Parquet file, of which the columns `coded` are read as codes and a dictionary; SourceError if it is none."""
    require("pyarrow", "replay")
    import pyarrow as pa
    import pyarrow.parquet as pq

    with file.open() as handle:
        # Arrow reads a file of this machine itself; through Python it takes longer.
        source = handle if "://" in file.path else file.path
        try:
            table = pq.ParquetFile(source, read_dictionary=list(coded), pre_buffer=source is handle)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{file.name}: no Parquet file, or cut off: {one_line(error)}") from error
        with table:
            yield table


def pieces_of(file: TokenFile, renamed: Mapping[str, str], *, audit: bool = False) -> list[Piece]:
    """The row groups of a Parquet file."""
    with opened(file) as table:
        layout = Layout.of_schema(file.name, table.schema_arrow, renamed, file.known, audit=audit)
        pieces: list[Piece] = []
        start = 0
        for number in range(table.num_row_groups):
            rows = table.metadata.row_group(number).num_rows
            if rows > MOST_TOKENS:
                raise SourceError(f"{file.name}: row group {number}: more than {MOST_TOKENS:,} rows")
            if rows:
                where = f"{file.name}: row group {number}"
                first, last = _steps_of(where, table, number, layout, file.known)
                pieces.append(Piece(file, layout, number, rows, first, last, start))
            start += rows
    return pieces


def _steps_of(where: str, table: Any, number: int, layout: Layout, known: Mapping[str, int]) -> tuple[int, int]:
    """The lowest and the highest step of a row group, of its footer if that says so."""
    if "step" not in layout.names:
        return known["step"], known["step"]
    about = table.metadata.row_group(number)
    place = {about.column(i).path_in_schema: i for i in range(about.num_columns)}.get(layout.names["step"])
    statistics = None if place is None else about.column(place).statistics
    if statistics is not None and statistics.has_min_max and isinstance(statistics.min, int):
        return statistics.min, statistics.max
    with reading(where):
        rows = table.read_row_group(number, columns=[layout.names["step"]], use_threads=False)
    alone = Layout({"step": layout.names["step"]}, nested=False)
    steps = typed(where, rows, alone, {})["step"].to_numpy()
    return int(steps.min()), int(steps.max())


def cut(pieces: Sequence[Piece], since: int | None = None) -> list[TablePart]:
    """Parts of about `AT_ONCE` rows from `since` on."""
    pieces = [piece for piece in pieces if since is None or piece.last >= since]
    if not pieces:
        return []
    in_order = sorted(pieces, key=lambda piece: (piece.first, piece.last))
    ends, rows = list[int](), 0
    for piece, upcoming in pairwise(in_order):
        rows += piece.rows
        if rows >= AT_ONCE and upcoming.first > piece.first:
            ends.append(upcoming.first - 1)
            rows = 0
    parts: list[TablePart] = []
    first = in_order[0].first if since is None else max(in_order[0].first, since)
    for last in [*ends, max(piece.last for piece in pieces)]:
        inside = [piece for piece in pieces if piece.first <= last and piece.last >= first]
        if inside and last >= first:
            parts.append(TablePart(first, last, inside))
            first = last + 1
    return parts


def is_scattered(pieces: Sequence[Piece], parts: Sequence[TablePart]) -> bool:
    """Whether rows would be read many times, or a part would be large, as its steps are scattered."""
    total = sum(piece.rows for piece in pieces)
    several = len({piece.first for piece in pieces} | {piece.last for piece in pieces}) > 1
    large = max((part.rows for part in parts if part.first < part.last), default=0)
    return several and (sum(part.rows for part in parts) > READ_AGAIN * total + AT_ONCE or large > 8 * AT_ONCE)
