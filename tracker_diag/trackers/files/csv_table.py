"""CSV: a row a step, as loggers write it, and the exports of TensorBoard, W&B and MLflow."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.text import read_lines
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.keys import NO_METRICS, STEPS, clock_of, integer
from tracker_diag.trackers.rows import Rows, number

WORDS = {"true": 1.0, "false": 0.0}


def delimiter(header: str) -> str:
    """What parts the cells of `header`: a comma, a semicolon or a tab."""
    return max(",;\t", key=header.count)


def read_csv(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from a table with a header: a column a metric, or MLflow's export with columns key, value and step.

    An empty cell is no value. Without a column that says the step, rows are counted from 0.

    Raises:
        SourceError: "file:line: what is wrong".
    """
    rows = Rows(in_order=True)
    table = _table(file, rows, progress)
    _, header = next(table, (0, []))
    if not header:
        return rows.finish(source)  # which says what is wrong
    lower = [name.strip().lower() for name in header]
    if {"key", "value", "step"} <= set(lower):
        return _long(file, source, rows, lower, table)
    names = _names(file, [name.strip() for name in header], lower)
    step_column = next((lower.index(key) for key in STEPS if key in lower), None)
    if step_column is not None:
        names[step_column] = ""
    else:
        rows.note(f"no column says the step, none of {', '.join(STEPS[:3])}, ...: rows are counted from 0")
    for line, cells in table:
        where = f"line {line}"
        values = {name: _cell(cell) for name, cell in zip(names, cells, strict=True) if name}
        try:
            step = rows.added if step_column is None else _step(file, line, cells[step_column])
        except SourceError as error:
            rows.skip(error)
            continue
        if step is None:
            rows.count("rows without a step, left out", where)
            continue
        clock = clock_of({name: _cell(cell) for name, cell in zip(lower, cells, strict=True)})
        rows.put_row(step, values, where, clock)
    return rows.finish(source, padded=True)


def _long(file: Path, source: str, rows: Rows, lower: list[str], table: Iterator[tuple[int, list[str]]]) -> FinishedRun:
    at = {name: lower.index(name) for name in ("key", "value", "step")}
    for line, cells in table:
        try:
            step = _step(file, line, cells[at["step"]])
        except SourceError as error:
            rows.skip(error)
            continue
        if step is not None:
            rows.put_row(step, {cells[at["key"]]: _cell(cells[at["value"]])}, f"line {line}")
    return rows.finish(source)


def _table(file: Path, rows: Rows, progress: Progress | None) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row, the header first; blank rows and those that are broken are left out."""
    lines = read_lines(file, progress, errors="replace")
    _, first, _ = next(lines, (0, "", True))
    # Without strict quoting a quote that is never closed would swallow the rest of the file.
    reader = csv.reader(
        (rows.checked(text, f"line {line}") for line, text, _ in _again(first, lines)),
        delimiter=delimiter(first),
        strict=True,
    )
    width = 0
    broken: SourceError | None = None
    for line, cells in _cells(file, reader):
        if broken:
            rows.skip(broken)
        if isinstance(cells, SourceError):
            broken = cells
            continue
        width = width or len(cells)
        wrong = f"{file}:{line}: {len(cells)} cells, expected {width} as in the header"
        broken = None if len(cells) == width else SourceError(wrong)
        if not broken:
            yield line, cells
    if broken and rows.added:
        rows.note(f"the last row, at line {reader.line_num}, breaks off and was left out")
    elif broken:
        rows.skip(broken)


def _cells(file: Path, reader: Any) -> Iterator[tuple[int, list[str] | SourceError]]:
    """Line number and cells of each row that is not blank, or what is wrong with it."""
    begun = 1
    while True:
        try:
            cells: list[str] | SourceError = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            cells = SourceError(f"{file}:{begun}: no CSV: {error}")
            if begun == 1 or ("unexpected end" in str(error) and reader.line_num > begun):  # the rest is in one cell
                raise cells from error
        if cells:
            yield begun, cells
        begun = reader.line_num + 1


def _again(first: str, rest: Iterator[tuple[int, str, bool]]) -> Iterator[tuple[int, str, bool]]:
    yield 1, first, True
    yield from rest


def _names(file: Path, header: list[str], lower: list[str]) -> list[str]:
    """The metric of each column, empty where it holds none."""
    if lower == ["wall time", "step", "value"]:  # TensorBoard's export of one curve names it in the file's name
        return ["", "", re.sub(r"^(.*-)?tag-", "", file.stem)]
    names = ["" if low in NO_METRICS or low in {"", "step"} else name for name, low in zip(header, lower, strict=True)]
    # W&B's export of a panel: "<run> - <metric>", with its smallest and largest value beside it.
    runs = {name.rpartition(" - ")[0] for name in names if name and name.lower() not in STEPS}
    if len(runs) == 1 and runs != {""}:
        names = ["" if name.endswith(("__MIN", "__MAX")) else name.rpartition(" - ")[2] for name in names]
    return names


def _cell(cell: str) -> object:
    text = cell.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if not text:
        return None
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def _step(file: Path, line: int, cell: str) -> int | None:
    if not cell.strip():
        return None
    value = number(_cell(cell))
    step = None if value is None else integer(value)
    if step is None:
        raise SourceError(f"{file}:{line}: step is {cell.strip()[:40]!r}, expected a whole number")
    return step
