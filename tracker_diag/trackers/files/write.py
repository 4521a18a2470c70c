"""Plain files: `metrics.jsonl`, one object a step, and `findings.jsonl`, one a change of state or an event.

What comes of a step later is one more object of the same step.

Each line is flushed to the operating system at once, so a killed process loses none that it wrote.
"""

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TextIO

from tracker_diag.records import Record, Scalar, Table
from tracker_diag.report.console import near
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.delivery import journal
from tracker_diag.trackers.tracker import Tracker


class JsonlTracker(Tracker):
    """Writes into `folder`, made if need be; what an earlier run left there is replaced."""

    name = "jsonl"
    local = True

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._metrics: TextIO = (self.folder / "metrics.jsonl").open("w", encoding="utf-8")
        self._findings: TextIO = (self.folder / "findings.jsonl").open("w", encoding="utf-8")
        self._own: dict[str, float] = {}

    @property
    def page(self) -> str:
        return f"tracker-diag diagnose {shlex.quote(self.source)}"

    @property
    def source(self) -> str:
        return near(self.folder)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._own = dict(metrics)

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        scalars = {record.name: record.value for record in records if isinstance(record, Scalar)}
        if self._own or scalars:
            _write(self._metrics, {"step": step, **self._own, **scalars})
        self._own = {}

    def finding(self, step: int, finding: Finding) -> None:
        _write(self._findings, {"step": step, **finding.to_json()})

    def event(self, step: int, event: str) -> None:
        _write(self._findings, {"step": step, "event": event})

    def file(self, name: str, text: str) -> None:
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        self._metrics.close()
        self._findings.close()


def unused_folder() -> Path:
    """A new folder for a run that no tracker has, among the journals, by its hour and process."""
    name = f"run-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{os.getpid()}"
    for number in count():
        path = journal.folder() / f"{name}{f'-{number}' if number else ''}"
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError


def _write(file: TextIO, line: dict[str, object]) -> None:
    # NaN and infinity are no JSON; as strings every reader takes them, and ours reads them back.
    bad = {key: str(value) for key, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
    file.write(json.dumps(line | bad) + "\n")
    file.flush()
