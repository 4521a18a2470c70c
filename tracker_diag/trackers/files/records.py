"""Sample records: one mapping a sequence, from JSON Lines or Parquet."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.files.text import read_lines
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.odd import Odd

PARQUET = b"PAR1"


def read_records(file: Path) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """The records, and what was odd about the file, a sentence each. A line that is no JSON object is left out.

    Raises:
        MissingExtra: the file is Parquet, and pyarrow is not installed.
        SourceError: "file: what is wrong".
    """
    try:
        with file.open("rb") as handle:
            head = handle.read(len(PARQUET))
    except OSError as error:
        raise SourceError(f"{file}: {one_line(error.strerror or error)}") from error
    if head == PARQUET:
        return _parquet(file), ()
    records: list[Mapping[str, Any]] = []
    odd = Odd()
    for at, line, _ in read_lines(file, errors="replace"):
        if not line.strip(" \t\r\n\0"):
            continue
        if "\ufffd" in line:
            odd.count("lines with bytes that are no UTF-8", f"line {at}")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            odd.count("lines that cannot be read, left out", f"{file}:{at}: {one_line(error)}")
            continue
        if isinstance(row, Mapping):
            records.append(row)
        else:
            odd.count("lines that cannot be read, left out", f"{file}:{at}: {type(row).__name__}, expected an object")
    if not records:
        what = f"{file}: no sample in it, expected one JSON object a line, or Parquet"
        raise SourceError("; ".join((what, *odd.notes)))
    return records, odd.notes


def _parquet(file: Path) -> list[Mapping[str, Any]]:
    require("pyarrow", "replay")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        records: list[Mapping[str, Any]] = pq.read_table(file).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{file}: cannot be read: {one_line(error)}") from error
    if not records:
        raise SourceError(f"{file}: no sample in it")
    return records
