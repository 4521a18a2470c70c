"""W&B offline runs: a `.wandb` file or the run's folder, through W&B's own reader."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from tracker_diag.errors import SourceError, require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.trackers.finished import FinishedRun, Progress, one_line
from tracker_diag.trackers.keys import flat
from tracker_diag.trackers.rows import Rows
from tracker_diag.trackers.wandb.rows import Axis

SIGNATURE = b":W&B"
"""The first bytes of a `.wandb` file."""


def wandb_file_in(folder: Path) -> Path | None:
    """The `.wandb` file of a run's folder, or of a folder `wandb` with one run in it; None if there is none."""
    files = sorted(folder.glob("*.wandb")) or sorted(folder.glob("*run-*/*.wandb")) or sorted(
        folder.glob("wandb/*run-*/*.wandb")
    )  # fmt: skip
    files = sorted({file.resolve(): file for file in reversed(files)}.values())  # `latest-run` is a link to one of them
    if len(files) > 1:
        names = ", ".join(file.parent.name for file in files[:5])
        raise SourceError(f"{folder}: {len(files)} runs ({names}{', ...' if len(files) > 5 else ''}), give one of them")
    return files[0] if files else None


def read_wandb_file(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """An offline run. Steps are those of the axis that the run defined for its charts, else W&B's own."""
    require("wandb", "wandb")
    rows, axis = Rows(), Axis()
    config: dict[str, object] = {}
    run_id, ended = "", None
    last: dict[str, object] = {}
    with tempfile.TemporaryFile() as output:
        for record in _records(file, output, progress):
            match record.get("type"):
                case "history":
                    axis.put_record(rows, record["history"].get("item", {}))
                case "summary":
                    update = record["summary"].get("update", {})
                    last = update if f"{PREFIX}step" in update else last
                case "metric" if "step_metric" in (metric := record["metric"]):
                    axis.define(metric.get("glob_name") or metric.get("name", ""), metric["step_metric"])
                case "run":
                    run_id = record["run"].get("run_id", "")
                    config |= _settings(record["run"].get("config", {}))
                case "config":
                    config |= _settings(record["config"])
                case "exit":  # until then another one may come in its place
                    ended = "failed" if record["exit"].get("exit_code") else "finished"
                    axis.put_diagnostics(rows, last)  # the diagnostics' last step, if it found no row
                case _:
                    pass
        for other in sorted(file.parent.parent.glob(f"*-{run_id}-diag-*/*.wandb")) if run_id else ():
            for record in _records(other, output, None):
                axis.put_diagnostics(rows, record.get("history", {}).get("item", {}))
        _note_damage(output, rows)
    axis.note_on(rows)
    return replace(rows.finish(source, config), ended=ended)


def _settings(given: Mapping[str, Any]) -> dict[str, object]:
    return {key: value for key, value in flat(given.get("update", {}), ".") if not key.startswith("_wandb")}


def _note_damage(output: BinaryIO, rows: Rows) -> None:
    """Note what W&B's reader had to say."""
    output.seek(0)
    for line in output.read().decode("utf-8", "replace").splitlines():
        if "incomplete" in line:
            rows.note("the file breaks off: the run was killed or still runs; W&B may have lost its last seconds")
        elif "corrupt" in line:
            rows.note("parts of the file are damaged; W&B's reader passed over them")


def _records(file: Path, output: BinaryIO, progress: Progress | None) -> Iterator[dict[str, Any]]:
    """The records of `file`; what the reader had to say about it goes into `output`."""
    size = max(file.stat().st_size, 1)
    done = 0
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, stdin=subprocess.DEVNULL) as reader:  # noqa: S603  our own interpreter, no shell
        if reader.stdout is None:
            raise SourceError(f"{file}: W&B's reader gives nothing")
        try:
            for line in reader.stdout:
                done += len(line)
                if progress:
                    progress(min(done / size, 1.0))  # as JSON the records take about as many bytes as in the file
                yield json.loads(line)
        except ValueError as error:
            raise SourceError(f"{file}: W&B's reader gives no JSON: {one_line(error)}") from error
        finally:
            reader.stdout.close()
            code = reader.wait()
    if code:
        output.seek(0)
        last = output.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise SourceError(f"{file}: W&B's reader failed, wandb 0.31 or later is needed: {one_line(last)}")
