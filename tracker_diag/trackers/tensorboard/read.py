"""TensorBoard: an event file, or a folder of them."""

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError, require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.trackers.finished import FinishedRun, Progress, one_line
from tracker_diag.trackers.keys import flat, plain
from tracker_diag.trackers.rows import Rows

OWN = PREFIX.rstrip("/")
"""The folder of the diagnostics."""
CHECKED = 1024
"""Records of up to so many bytes, as those with numbers are, have their checksum verified; it is slow in Python."""
LARGEST = 1 << 28
"""Bytes of a record that is looked at; larger ones hold pictures or sound."""
_TABLE_ROW = re.compile(r"^\|([^|]+)\|(.*)\|\s*$", re.MULTILINE)
PARTS = {"train", "training", "eval", "evaluation", "val", "validation", "test"}
"""Folders that are parts of one run, as Keras writes them, and not runs of their own."""


def read_tensorboard(path: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from an event file, or from a folder with the event files of one run.

    Metrics of a folder inside it have its name before theirs. Histograms, images and sound are passed over.
    """
    require("tensorboard", "tensorboard")
    files = [(path, "")] if path.is_file() else list(_files(path))
    size = max(sum(file.stat().st_size for file, _ in files), 1)
    rows = Rows()
    config: dict[str, object] = {}
    done = 0
    for file, part in files:
        where = file.name
        for at, event in _events(file, rows):
            values: dict[str, object] = {}
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name in {"text", "hparams"}:
                    config |= _settings(value)
                elif (scalar := _scalar(value)) is not None:
                    values[part + value.tag] = scalar
            if values:
                rows.put_row(event.step, values, f"{where}, byte {at}", event.wall_time)
            if progress and event.summary.value:
                progress(min((done + at) / size, 1.0))
        done += file.stat().st_size
    return rows.finish(source, config)


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Event files of a run in the order of their start, each with the prefix of its metrics' names."""
    # What the diagnostics wrote for one slice is in those of the run already.
    there = (path for path in folder.rglob("*tfevents*") if path.is_file() and path.parent.parent.name != OWN)
    files = sorted(there, key=_begun)
    if not files:
        raise SourceError(f"{folder}: no event files of TensorBoard in this folder")
    runs = sorted({_run(file.parent.relative_to(folder)) for file in files if file.parent.name != OWN})
    runs = runs or [Path()]
    if runs[0] != Path() and len(runs) > 1:
        names = ", ".join(str(name) for name in runs[:5])
        raise SourceError(f"{folder}: {len(runs)} runs ({names}{', ...' if len(runs) > 5 else ''}), give one of them")
    for file in files:
        if file.parent.name == OWN:  # the diagnostics', which have their whole names
            yield file, ""
            continue
        part = file.parent.relative_to(folder / runs[0])
        yield file, "" if part == Path() else f"{part.as_posix()}/"


def _begun(file: Path) -> tuple[str, list[tuple[int, str]]]:
    """Sorts the files of a folder by the seconds and the counter in their names, as numbers: 10 comes after 9."""
    parts = re.split(r"(\d+)", file.name)
    return str(file.parent), [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _run(folder: Path) -> Path:
    """The folder of the run that `folder` is a part of."""
    names = folder.parts
    return Path(*names[: next((i for i, name in enumerate(names) if name in PARTS), len(names))])


def _events(file: Path, rows: Rows) -> Iterator[tuple[int, Any]]:
    """Byte and event of each record.

    TensorBoard's own loader takes a damaged file for one that ends there, so the records are framed here: length,
    checksum of the length, data, checksum of the data.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    at = 0
    try:
        with file.open("rb") as handle:
            size = file.stat().st_size
            while head := handle.read(12):
                length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
                if len(head) == 12 and masked_crc32c(head[:8]) != struct.unpack("<I", head[8:])[0]:
                    wrong = SourceError(f"{file}: byte {at}: no record of a TensorBoard event file")
                    if not rows.added:
                        raise wrong
                    rows.note(f"what comes after could not be read: {wrong}")  # nor where the next record begins
                    return
                if len(head) < 12 or at + 16 + length > size:
                    rows.note(f"{file.name} breaks off in a record at byte {at}; what came before was read")
                    return
                if length > LARGEST:
                    handle.seek(at + 16 + length)
                else:
                    try:
                        yield at, _event(handle.read(length), handle.read(4))
                    except DecodeError as error:
                        rows.skip(SourceError(f"{file}: byte {at}: the record is damaged: {one_line(error)}"))
                at += 16 + length
    except OSError as error:
        raise SourceError(f"{file}: {one_line(error.strerror or error)}") from error


def _event(data: bytes, checksum: bytes) -> Any:
    """The event that a record holds; DecodeError if it is damaged."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    if len(data) <= CHECKED and masked_crc32c(data) != struct.unpack("<I", checksum)[0]:
        raise DecodeError("its checksum is wrong")
    return require("tensorboard.compat.proto.event_pb2", "tensorboard").Event.FromString(data)


def _scalar(value: Any) -> float | None:
    """The number of a summary, written the old way or as a tensor with one element; None if it is something else."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    if value.WhichOneof("value") != "tensor" or value.metadata.plugin_data.plugin_name not in {"", "scalars"}:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    if math.prod(dim.size for dim in value.tensor.tensor_shape.dim) != 1:  # before it is made: it may claim any size
        return None
    try:
        array = make_ndarray(value.tensor)
    except (ValueError, TypeError):  # a kind of number that numpy lacks, or bytes that are too few
        return None
    return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "fiub" else None


def _settings(value: Any) -> dict[str, object]:
    """Settings in a summary of the plugins hparams and text; {} if it holds none.

    Hugging Face writes its arguments as JSON under `args`, CleanRL as a table of Markdown under `hyperparameters`.
    """
    from google.protobuf.message import DecodeError

    data = value.metadata.plugin_data
    if data.plugin_name == "hparams":
        message = require("tensorboard.plugins.hparams.plugin_data_pb2", "tensorboard").HParamsPluginData
        try:
            parameters = message.FromString(data.content).session_start_info.hparams
        except DecodeError:
            return {}
        known = {name: getattr(value, value.WhichOneof("kind") or "", None) for name, value in parameters.items()}
        return {name: value if isinstance(value, str | float | bool) else str(value) for name, value in known.items()}
    tag = value.tag.removesuffix("/text_summary")
    if tag not in {"args", "hyperparameters"} or not value.tensor.string_val:
        return {}
    text = value.tensor.string_val[0].decode("utf-8", "replace")
    if tag == "hyperparameters":
        cells = [(name.strip(), cell.strip()) for name, cell in _TABLE_ROW.findall(text)]
        return {name: plain(cell) for name, cell in cells[2:]}  # below the names of the columns and a ruler
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return dict(flat(arguments, ".")) if isinstance(arguments, dict) else {}
