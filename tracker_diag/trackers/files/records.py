"""Sample records: one mapping a sequence, from JSON Lines or Parquet; also as trainers dump texts and rewards."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.files.text import head_of, read_objects
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.odd import Odd

SCORED = (
    {"input": "prompt", "output": "completion", "score": "reward"},
    {"input_prompt": "prompt", "output_response": "completion", "score": "reward"},
)
"""What verl's `rollout_data_dir` and SkyRL's dumped evaluations call what is here called so."""
TRL = {"step", "prompt", "completion", "advantage"}
"""Columns of TRL's `log_completions`, next to one for each reward function; the reward itself is in none."""


def read_records(file: Path) -> tuple[list[Mapping[str, Any]], tuple[str, ...]]:
    """The records, and what was odd about the file, a sentence each. A line that is no JSON object is left out."""
    records: list[Mapping[str, Any]] = []
    odd = Odd()
    if head_of(file, 4) == b"PAR1":
        require("pyarrow", "replay")
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            records += pq.read_table(file).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise SourceError(f"{file}: cannot be read: {one_line(error)}") from error
    else:
        for _, row, _ in read_objects(file, odd.count):
            if isinstance(row, SourceError):
                odd.count("lines that cannot be read, left out", str(row))
            else:
                records.append(row)
    if not records:
        what = f"{file}: no sample in it, expected one JSON object a line, or Parquet"
        raise SourceError("; ".join((what, *odd.notes)))
    return [_as_sample(record) for record in records], odd.notes


def _as_sample(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """`record`, of a trainer's dump under the names that samples have; its reward functions count alike."""
    for names in SCORED:
        if names.keys() <= record.keys():
            return {names.get(key, key): value for key, value in record.items()}
    if "reward" in record or not record.keys() >= TRL:
        return record
    parts = {key: value for key, value in record.items() if key not in TRL and isinstance(value, float)}
    known = [value for value in parts.values() if not math.isnan(value)]
    return {**record, "components": parts, "reward": sum(known)} if known else record
