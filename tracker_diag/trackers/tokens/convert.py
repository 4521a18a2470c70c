"""Convert: any other log is first written as Parquet with its steps in order, into a temporary folder."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.tokens.columns import KINDS, LABEL_COLUMNS, LOGPROB_COLUMNS
from tracker_diag.trackers.tokens.dumps import skyrl_arrays, slime_arrays
from tracker_diag.trackers.tokens.files import TokenFile
from tracker_diag.trackers.tokens.plan import AT_ONCE, Piece
from tracker_diag.trackers.tokens.skipped import Skipped

LINES = 512
"""Rollouts that are brought into a row group; each is a sequence."""
ARGUMENTS = {argument: name for name, argument in (LOGPROB_COLUMNS | LABEL_COLUMNS).items()} | {
    "model_mask": "is_model", "sequence_ids": "sequence",
}  # fmt: skip
"""Names that dumps of tensors have from the arguments of `observe`, and the columns that they are."""
RESPONSE = "response_mask"
MOST_OPEN = 256
"""Files that are written at once."""


def from_rollouts(file: TokenFile, folder: Path, renamed: Mapping[str, str], skipped: Skipped) -> TokenFile:
    """A Parquet file, in `folder`, with a row for each line of JSON: an object with a list in each column of tokens."""
    import pyarrow.parquet as pq

    target = _new_file(folder)
    lines = _objects(file, [renamed.get(name, name) for name in KINDS], skipped)
    with ExitStack() as stack:
        writer: Any = None
        while rows := list(islice(lines, LINES)):
            for table in _tables_of(file, rows, writer and writer.schema, skipped):
                writer = writer or stack.enter_context(pq.ParquetWriter(target, table.schema))
                writer.write_table(table)
        if writer is None:
            raise SourceError(f"{file.path}: no rollout, expected one JSON object a line")
    return TokenFile(str(target), file.known, file.name, file.stamp())


def _tables_of(
    file: TokenFile, rows: Sequence[tuple[int, dict[str, Any]]], schema: Any, skipped: Skipped
) -> Iterator[Any]:
    """Tables of `rows`, each with its line, by `schema`, or that of the first; lines that differ are `skipped`."""
    try:
        table = _table([row for _, row in rows], schema)
    except SourceError as error:
        if (n := len(rows) // 2) == 0:
            skipped(SourceError(f"{file.path}:{rows[0][0]}: {error}"))
            return
        for part in (rows[:n], rows[n:]):
            for table in _tables_of(file, part, schema, skipped):
                schema = table.schema
                yield table
    else:
        yield table


def _table(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """`rows` with the columns and types of `schema`, or else those of the first of them."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name in schema.names if schema else rows[0]:
        if name not in rows[0]:
            raise SourceError(f"column {name} is missing")
        expected = schema and schema.field(name).type
        try:
            values = pa.array([row.get(name) for row in rows])
            columns[name] = values.cast(expected or _widened(values.type))
        except (pa.ArrowException, ValueError) as error:
            what = f"{expected} expected, as in the lines before: " if expected else ""
            raise SourceError(f"column {name}: {what}{one_line(error)}") from error
    return pa.table(columns)


def _widened(given: Any) -> Any:
    """A type of nulls alone is taken for floats: later lines may have some."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_list(given):
        return pa.list_(_widened(given.value_type))
    return pa.float64() if types.is_null(given) else given


def _objects(file: TokenFile, names: Sequence[str], skipped: Skipped) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of the lines, with their numbers, whose lists in the columns `names` all have one length."""
    with file.open() as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                skipped(SourceError(f"{file.path}:{number}: no JSON: {one_line(error)}"))
                continue
            if not isinstance(row, dict):
                skipped(SourceError(f"{file.path}:{number}: {type(row).__name__} given, expected an object"))
                continue
            lengths = {name: len(row[name]) for name in names if isinstance(row.get(name), list)}
            (anchor, n), *others = [*lengths.items()] or [("", 0)]
            if wrong := next((name for name, given in others if given != n), ""):
                what = f"{lengths[wrong]} values given, expected {n}, as {anchor} has"
                skipped(SourceError(f"{file.path}:{number}: column {wrong}: {what}"))
            else:
                yield number, row


def from_tensors(file: TokenFile, folder: Path, renamed: Mapping[str, str]) -> TokenFile:
    """A Parquet file, in `folder`, of the arrays of an .npz, .safetensors, .pt or .pkl file; none of it is executed.

    Arrays are (B, T), a row for each sequence, or (N,) with `sequence`; they have the names of columns or of arguments
    of `observe`. The step is an array `step`, or the last number in the file's name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    theirs = {name: ours for ours, name in renamed.items()}
    arrays = {theirs.get(name, ARGUMENTS.get(name, name)): value for name, value in _arrays(file).items()}
    response = arrays.pop(RESPONSE, None)
    arrays = {name: value for name, value in arrays.items() if name in KINDS}
    if response is not None:
        arrays.setdefault("is_model", response)
    anchor = next((arrays[name] for name in LOGPROB_COLUMNS if name in arrays), np.zeros(0))
    shape = anchor.shape
    if anchor.ndim == 2:
        arrays.setdefault("sequence", np.arange(len(anchor))[:, None])
    arrays.setdefault("position", np.broadcast_to(np.arange(shape[-1]), shape))
    if "step" not in arrays and "step" not in file.known:
        numbers = re.findall(r"\d+", Path(file.path).stem)
        if not numbers:
            raise SourceError(f"{file.path}: no step, expected an array `step`, or a name such as step_12{file.kind}")
        arrays["step"] = np.array(int(numbers[-1]))
    columns = {name: pa.array(_spread(f"{file.path}: {name}", array, shape)) for name, array in arrays.items()}
    target = _new_file(folder)
    pq.write_table(pa.table(columns), target)
    return TokenFile(str(target), file.known, file.name, file.stamp())


def _spread(where: str, array: Any, shape: tuple[int, ...]) -> Any:
    """(N,) of `array`, which has the `shape` of tokens, or a value for each sequence, or for all."""
    if array.ndim == 1 and len(shape) == 2 and len(array) == shape[0]:
        array = array[:, None]
    try:
        return np.broadcast_to(array, shape).reshape(-1)
    except ValueError as error:
        what = f"shape {array.shape} given, expected {shape}, as the log-probabilities have"
        raise SourceError(f"{where}: {what}") from error


def _arrays(file: TokenFile) -> dict[str, Any]:
    try:
        with file.open() as handle:
            if file.kind == ".npz":
                with np.load(handle, allow_pickle=False) as arrays:
                    return {name: arrays[name] for name in arrays.files}
            if file.kind == ".pkl":
                return skyrl_arrays(handle)
            if file.kind == ".safetensors":
                require("safetensors", "demo")
                library = "torch" if find_spec("torch") else "numpy"  # which has no bfloat16
                given = import_module(f"safetensors.{library}").load(handle.read())
                return {name: _host(value) for name, value in given.items()}
            given = require("torch", "torch").load(handle, map_location="cpu", weights_only=True)
            if isinstance(given, dict) and {"samples", "rollout_id"} <= given.keys():
                return slime_arrays(given)
    except (SourceError, ImportError):
        raise
    except Exception as error:  # each library has its own
        raise SourceError(f"{file.path}: cannot be read: {one_line(error)}") from error
    if not isinstance(given, dict):
        raise SourceError(f"{file.path}: {type(given).__name__} given, expected a dictionary of tensors")
    return {name: _host(value) for name, value in given.items() if hasattr(value, "detach") or np.ndim(value) == 0}


def _host(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return np.array(value)
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).detach().numpy()


def in_order(pieces: Sequence[Piece], folder: Path, skipped: Skipped) -> list[TokenFile]:
    """Parquet files, in `folder`, with the rows of `pieces` by ranges of steps: each step in one file alone."""
    import pyarrow.parquet as pq

    lowest, highest = min(piece.first for piece in pieces), max(piece.last for piece in pieces)
    rows = sum(piece.rows for piece in pieces)
    number = int(np.clip(-(-rows // AT_ONCE), 1, min(MOST_OPEN, highest - lowest + 1)))
    edges = lowest + np.arange(1, number) * (highest - lowest + 1) // number
    writers: dict[int, Any] = {}
    names: dict[int, Path] = {}
    with ExitStack() as stack:
        for piece in pieces:
            try:
                table = piece.table()
            except SourceError as error:
                skipped(error)
                continue
            bucket = edges.searchsorted(table["step"].to_numpy(), "right")
            order = np.argsort(bucket, kind="stable")
            starts = bucket[order].searchsorted(np.arange(number + 1))
            whole = table.take(order)
            for i in np.unique(bucket).tolist():
                part = whole.slice(starts[i], starts[i + 1] - starts[i])
                if i not in writers:
                    names[i] = _new_file(folder)
                    writers[i] = stack.enter_context(pq.ParquetWriter(names[i], part.schema, compression="lz4"))
                try:
                    writers[i].write_table(part.select(writers[i].schema.names).cast(writers[i].schema))
                except (KeyError, ValueError) as error:
                    skipped(SourceError(f"{piece.where}: other columns than the files before: {one_line(error)}"))
    files = dict.fromkeys(piece.file for piece in pieces)
    stamp = sha256(" ".join(file.stamp() for file in files).encode()).hexdigest()
    first, others = next(iter(files)).name, len(files) - 1
    name = f"{first} and {others} more files" if others else first
    return [TokenFile(str(names[i]), {}, name, f"{stamp} {i} of {number}") for i in sorted(names)]


def _new_file(folder: Path) -> Path:
    return folder / f"{uuid4().hex}.parquet"
