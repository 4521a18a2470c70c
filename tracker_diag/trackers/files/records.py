"""Sample records: one mapping a sequence, from JSON Lines or Parquet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.files.text import read_objects
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.odd import Odd


def read_records(file: Path) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """The records, and what was odd about the file, a sentence each. A line that is no JSON object is left out.

    Raises:
        MissingExtra: the file is Parquet, and pyarrow is not installed.
        SourceError: "file: what is wrong".
    """
    records: list[Mapping[str, Any]] = []
    odd = Odd()
    try:
        with file.open("rb") as handle:
            is_parquet = handle.read(4) == b"PAR1"
    except OSError as error:
        raise SourceError(f"{file}: {one_line(error.strerror or error)}") from error
    if is_parquet:
        records += _parquet(file)
    else:
        for _, row, _ in read_objects(file, odd.count):
            if isinstance(row, SourceError):
                odd.count("lines that cannot be read, left out", str(row))
            else:
                records.append(row)
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
    return records
