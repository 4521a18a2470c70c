"""Files that Stable-Baselines3 writes next to its log: `evaluations.npz` and `monitor.csv`."""

import json
import lzma
import math
import zipfile
import zlib
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.csv_table import cell, read_table
from tracker_diag.trackers.files.text import read_lines
from tracker_diag.trackers.finished import FinishedRun, Progress, one_line
from tracker_diag.trackers.keys import integer, step_of
from tracker_diag.trackers.rows import Rows, number

EVALUATIONS = {"results": "eval/mean_reward", "ep_lengths": "eval/mean_ep_length", "successes": "eval/success_rate"}
"""The arrays of evaluations.npz, (evaluations, episodes) each, and the names that the same means have in SB3's log."""
NO_ARCHIVE = (OSError, ValueError, LookupError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
LARGEST = 1 << 28
"""Bytes that an array may have; a million evaluations of 30 episodes have as many."""


def read_evaluations(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:  # noqa: ARG001  it is small
    """A run from `evaluations.npz`: the mean over the episodes of each evaluation, by environment steps.

    The spread of the episodes' returns is `eval/std_reward`.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            arrays = {name: _array(archive, name) for name in ("timesteps", *EVALUATIONS) if name in names}
    except NO_ARCHIVE as error:
        raise SourceError(f"{file}: no arrays of numbers: {one_line(error)}") from error
    if not {"timesteps", "results"} <= set(arrays):
        raise SourceError(f"{file}: arrays {', '.join(names) or 'none'}, expected timesteps and results")
    steps = arrays.pop("timesteps")
    rows = Rows()
    for name, array in arrays.items():
        if array.ndim < 1 or len(array) != len(np.atleast_1d(steps)) or array.dtype.kind not in "fiub":
            raise SourceError(f"{file}: {name}: {array.dtype} {array.shape} given, expected numbers a timestep")
        for step, episodes in zip(np.atleast_1d(steps).tolist(), array.astype(float), strict=True):
            values = {EVALUATIONS[name]: float(np.mean(episodes)) if np.size(episodes) else None}
            if name == "results" and np.size(episodes):
                values["eval/std_reward"] = float(np.std(episodes))
            rows.put_row(step_of(step, f"{file}: timesteps"), values, f"{name} at timestep {step}")
    return replace(rows.finish(source), framework="SB3")


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """The array `name`, without allocating for more than the archive holds: a few bytes can claim to be terabytes."""
    with archive.open(f"{name}.npy") as member:
        data = member.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"{name} has more than {LARGEST >> 20} MiB")
    stream = BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.kind not in "fiub" or math.prod(shape) * dtype.itemsize != len(data) - stream.tell():
        raise ValueError(f"{name}: {len(data) - stream.tell()} bytes for {dtype} {shape}")
    stream.seek(0)
    return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def read_monitor(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from `monitor.csv`: a row an episode of one environment, under that environment's own count of steps.

    The columns become `monitor/r` (return), `monitor/l` (length) and so on; `t` is the wall time in seconds.
    """
    rows = Rows()
    _, first, _ = next(read_lines(file))
    try:
        config = dict(json.loads(first.strip().removeprefix("#")))
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"{file}:1: no header of a monitor file: {one_line(error)}") from error
    table = read_table(file, rows, progress, header_at=2)
    _, columns = next(table, (0, []))
    if "l" not in columns:
        raise SourceError(f"{file}:2: columns {','.join(columns)[:80]}, expected r, l and t")
    step = 0
    for line, cells in table:
        values = dict(zip(columns, map(cell, cells), strict=True))
        length = number(values.get("l"))
        if length is None or integer(step + length) is None:
            rows.skip(SourceError(f"{file}:{line}: l is {values.get('l')!r}, expected a whole number"))
            continue
        step += int(length)
        given = {f"monitor/{name}": value for name, value in values.items() if name != "t"}
        rows.put_row(step, given, f"line {line}", number(values.get("t")))
    return replace(rows.finish(source, config), framework="SB3")
