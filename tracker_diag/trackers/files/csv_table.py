"""CSV: a row a step, as loggers write it, and the exports of TensorBoard, W&B and MLflow."""

import csv
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.text import read_lines
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.keys import CLOCKS, STEPS, put_records
from tracker_diag.trackers.rows import Rows

WORDS = {"true": 1.0, "false": 0.0}


def delimiter(header: str) -> str:
    """What parts the cells of `header`: a comma, a semicolon or a tab."""
    return max(",;\t", key=header.count)


def read_csv(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from a table with a header: a column a metric, or MLflow's export with columns key, value and step.

    An empty cell is no value. Without a column that says the step, rows are counted from 0.
    """
    rows = Rows(in_order=True)
    put_records(rows, _records(file, read_table(file, rows, progress)), file)
    return rows.finish(source, padded=True)


def _records(file: Path, table: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[str, Mapping[str, object]]]:
    _, header = next(table, (0, []))
    lower = [name.strip().lower() for name in header]
    if {"key", "value", "step"} <= set(lower):
        key, value, step = (lower.index(name) for name in ("key", "value", "step"))
        yield from ((f"line {line}", {"step": cell(row[step]), row[key]: cell(row[value])}) for line, row in table)
        return
    names = _names(file, [name.strip() for name in header], lower)
    for line, row in table:
        yield f"line {line}", {name: cell(text) for name, text in zip(names, row, strict=True) if name}


def read_table(
    file: Path, rows: Rows, progress: Progress | None = None, *, header_at: int = 1
) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row, the header first; blank rows and those that are broken are left out.

    A row is one line, so that a quote that is never closed costs that line alone.
    """
    width, separator, any_row = 0, ",", False
    for line, text, ended in islice(read_lines(file, progress), header_at - 1, None):
        if not text.strip():
            continue
        if "\ufffd" in text:
            rows.count("lines with bytes that are no UTF-8", f"line {line}")
        separator = separator if width else delimiter(text)
        try:
            cells = next(csv.reader([text], delimiter=separator, strict=True))
            wrong = SourceError(f"{file}:{line}: {len(cells)} cells, expected {width} as in the header")
        except csv.Error as error:
            cells, wrong = [], SourceError(f"{file}:{line}: no CSV: {error}")
        if not width and not cells:
            raise wrong
        if not width or len(cells) == width:
            any_row = width > 0
            width = len(cells)
            yield line, cells
        elif ended or not any_row:
            rows.skip(wrong)
        else:
            rows.note(f"the last row, at line {line}, breaks off and was left out")


def _names(file: Path, header: list[str], lower: list[str]) -> list[str]:
    """The metric of each column, empty where it holds none."""
    if lower == ["wall time", "step", "value"]:  # TensorBoard's export of one curve names it in the file's name
        return ["wall time", "step", re.sub(r"^(.*-)?tag-", "", file.stem)]
    own = {*STEPS, *CLOCKS}
    names = [low if low in own else name for name, low in zip(header, lower, strict=True)]
    # W&B's export of a panel: "<run> - <metric>", with its smallest and largest value next to it.
    runs = {name.rpartition(" - ")[0] for name in names if name and name not in own}
    if len(runs) == 1 and runs != {""}:
        names = ["" if name.endswith(("__MIN", "__MAX")) else name.rpartition(" - ")[2] for name in names]
    return names


def cell(given: str) -> object:
    """The number or truth value that a cell holds, None of an empty one, else its text."""
    text = given.strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if not text:
        return None
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text
