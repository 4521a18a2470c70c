"""Jupyter notebooks: the tables and the lines that a trainer printed into the outputs of its cells."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.console import ConsoleLog
from tracker_diag.trackers.files.csv_table import cell
from tracker_diag.trackers.finished import FinishedRun, Progress, one_line
from tracker_diag.trackers.keys import STEPS, integer, put_records
from tracker_diag.trackers.rows import Rows

LARGEST = 1 << 28
"""Bytes of a notebook that is read; pictures make the largest ones."""
ROW, CELL, TAG = re.compile(r"<tr\b"), re.compile(r"(?=<t[dh]\b)"), re.compile(r"<[^>]*>")
"""Where the rows and the cells of a table begin, and what is no text in them."""
LOSSES = {"Training Loss": "loss", "Validation Loss": "eval_loss"}
"""Columns of the table of Hugging Face trainers, and the keys that they stand for."""


def read_notebook(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:  # noqa: ARG001  it is small
    """A run from the outputs of a notebook.

    The tables of Hugging Face trainers are read first. A notebook without them may hold other tables with a column of
    steps, or the lines that a trainer prints. Tables of several trainings follow each other as phases.
    """
    cells = _cells(file)
    tables = [(where, table) for where, kind, text in _outputs(cells) if kind == "html" for table in _tables(text)]
    own = [(where, table) for where, table in tables if LOSSES.keys() & set(table[0])]
    rows = Rows(in_order=True)
    put_records(rows, (record for where, table in own or tables for record in _records(where, table)), file)
    if rows.added:
        rows.note(f"read from {len(own or tables)} tables in the outputs of the notebook")
        return rows.finish(source)
    log = ConsoleLog()
    for where, kind, text in _outputs(cells):
        for line in text.split("\n") if kind == "text" else ():
            log.read_line(line, where)
    if run := log.finish(source):
        return run
    raise SourceError(f"{file}: no metrics in the outputs of {len(cells)} cells: no table with steps, no printed rows")


def _cells(file: Path) -> list[object]:
    try:
        if file.stat().st_size > LARGEST:
            raise SourceError(f"{file}: more than {LARGEST >> 20} MiB, expected a notebook; clear its pictures first")
        document = json.loads(file.read_text(encoding="utf-8-sig", errors="replace"))
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{file}: no notebook: {one_line(error)}") from error
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise SourceError(f"{file}: a JSON document without cells, expected a notebook of version 4")
    return cells


def _outputs(cells: Sequence[object]) -> Iterator[tuple[str, str, str]]:
    """The outputs of code cells: where, "html" or "text", and the text."""
    for number, part in enumerate(cells, 1):
        outputs = part.get("outputs") if isinstance(part, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            if not isinstance(output, dict):
                continue
            data = output.get("data")
            data = data if isinstance(data, dict) else {}
            where = f"cell {number}"
            if "text/html" in data:
                yield where, "html", _text(data["text/html"])
            elif "text" in output or "text/plain" in data:
                yield where, "text", _text(output.get("text", data.get("text/plain")))


def _text(given: object) -> str:
    return "".join(map(str, given)) if isinstance(given, list) else str(given)


def _tables(html: str) -> Iterator[list[list[str]]]:
    """Tables with a header that names a column of steps."""
    for table in html.split("<table")[1:]:
        rows = [
            [unescape(TAG.sub("", part)).strip() for part in CELL.split(row)[1:]]
            for row in ROW.split(table.partition("</table")[0])[1:]
        ]
        rows = [row for row in rows if row]
        if rows and _step_column(rows[0]) is not None:
            yield rows


def _step_column(header: Sequence[str]) -> int | None:
    lower = [name.lower() for name in header]
    return next((lower.index(name) for name in (*STEPS, "epoch") if name in lower), None)


def _records(where: str, table: list[list[str]]) -> Iterator[tuple[str, Mapping[str, object]]]:
    header, *body = table
    column = _step_column(header)
    of_trainer = bool(LOSSES.keys() & set(header))
    names = [_name(name) if of_trainer else name for name in header]
    for cells in body:
        values = [cell(text.replace(",", "")) for text in cells] if len(cells) == len(header) else []
        # "No log" and other words are no values.
        record = {name: value for name, value in zip(names, values, strict=False) if isinstance(value, float)}
        step = None if column is None else integer(record.pop(names[column], None))
        yield where, {"step": step} | {name: value for name, value in record.items() if name}


def _name(column: str) -> str:
    """The key of a column: the trainer shows `eval_mean_score` as "Mean Score", and others with spaces at the slash."""
    if column in LOSSES:
        return LOSSES[column]
    if re.fullmatch(r"[A-Z][a-z0-9]*( [A-Z][a-z0-9]*)*", column):
        return column.lower() if column in ("Step", "Epoch") else f"eval_{column.lower().replace(' ', '_')}"
    return column.replace(" / ", "/")
