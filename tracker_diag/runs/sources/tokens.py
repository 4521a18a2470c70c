"""The token table: Parquet, one row a token, read row group by row group."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError, require
from tracker_diag.stats.arrays import BoolArray

LOGPROB_COLUMNS = {
    "logprob": "logprobs",
    "old_logprob": "old_logprobs",
    "rollout_logprob": "rollout_logprobs",
    "ref_logprob": "ref_logprobs",
}
LABEL_COLUMNS = {
    "tool": "tool",
    "env": "env",
    "turn": "turn",
    "policy_lag": "policy_lag",
    "advantage": "advantages",
    "control": "control",
}
REQUIRED = ("step", "sequence", "position", "is_model")
KINDS = {
    **dict.fromkeys(("step", "sequence", "position"), "integer"),
    **dict.fromkeys(("is_model", "after_tool"), "boolean"),
    **dict.fromkeys(LOGPROB_COLUMNS, "floating"),
    **dict.fromkeys(("tool", "env"), "string"),
    **dict.fromkeys(("turn", "policy_lag"), "integer"),
    "advantage": "floating",
    "control": "boolean",
}
"""The columns that are read, with the kind of type that each must have."""


def read_tokens(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The arguments of `Monitor.observe` for each step of the table, in rising order of steps.

    Memory is that of one row group and one step, whatever the file's size.

    Raises:
        SourceError: what is wrong with the file, and with which column or step.
    """
    require("pyarrow", "parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise SourceError(f"{file}: no Parquet file: {error}") from error
    columns = _columns(file, table.schema_arrow)

    rest = None
    last = None
    for group in range(table.num_row_groups):
        try:
            rows = table.read_row_group(group, columns=columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise SourceError(f"{file}: row group {group} cannot be read: {error}") from error
        for name in {*REQUIRED, "after_tool"} & set(columns):
            if rows[name].null_count:
                raise SourceError(f"{file}: column {name}: {rows[name].null_count} nulls, expected none")
        rows = rows if rest is None else pa.concat_tables([rest, rows])
        steps = rows["step"].to_numpy()
        starts = np.flatnonzero(np.diff(steps, prepend=steps[:1] - 1)) if len(steps) else np.empty(0, int)
        for start, end in pairwise(starts):
            last = _rising(file, last, int(steps[start]))
            yield last, _observation(rows.slice(start, end - start))
        rest = rows.slice(starts[-1]) if len(starts) else rows
    if rest is None or len(rest) == 0:
        raise SourceError(f"{file}: no rows")
    yield _rising(file, last, rest["step"][0].as_py()), _observation(rest)


def _columns(file: Path, schema: Any) -> list[str]:
    """The columns of KINDS that the table has; SourceError if one is missing or of another kind."""
    import pyarrow as pa

    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise SourceError(f"{file}: column {missing[0]} is missing; it has {', '.join(schema.names)}")
    columns = [name for name in KINDS if name in schema.names]
    for name in columns:
        kind = schema.field(name).type
        if not getattr(pa.types, f"is_{KINDS[name]}")(kind):
            raise SourceError(f"{file}: column {name}: {kind} given, expected {KINDS[name]}")
    return columns


def _rising(file: Path, last: int | None, step: int) -> int:
    if last is not None and step <= last:
        raise SourceError(f"{file}: step {step} after step {last}, expected the rows in rising order of steps")
    return step


def _observation(rows: Any) -> dict[str, Any]:
    order = np.lexsort((rows["position"].to_numpy(), rows["sequence"].to_numpy()))

    def column(name: str) -> Any:
        return rows[name].to_numpy(zero_copy_only=False)[order]

    found = {argument: column(name) for name, argument in LOGPROB_COLUMNS.items() if name in rows.column_names}
    found |= {"model_mask": column("is_model").astype(bool), "sequence_ids": column("sequence")}
    if "after_tool" in rows.column_names:
        found["after_tool"] = column("after_tool").astype(bool)
    elif "tool" in rows.column_names:
        found["after_tool"] = _named(column("tool"))
    for name, argument in LABEL_COLUMNS.items():
        if name in rows.column_names:
            # Null is none: no tool yet, no turn of a prompt.
            nothing = {"integer": -1, "floating": 0.0, "boolean": False, "string": ""}[KINDS[name]]
            values = rows[name].fill_null(nothing).to_numpy(zero_copy_only=False)[order]
            found[argument] = values.astype(np.float32) if KINDS[name] == "floating" else values
    return found


def _named(tool: Any) -> BoolArray:
    return np.array([bool(name) for name in tool])
