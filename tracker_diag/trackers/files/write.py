"""Plain files: `metrics.jsonl`, one object a step, and `findings.jsonl`, one a change of state or an event.

What comes of a step later is one more object of the same step.

Each line is flushed to the operating system at once, so a killed process loses none that it wrote.
"""

import json
import math
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import TextIO

from tracker_diag.health import folder, opened, own_folder, private
from tracker_diag.records import Scalar
from tracker_diag.report.console import near
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import diagnose_command
from tracker_diag.trackers.tracker import Entry, Event, File, Metrics, Tracker


class JsonlTracker(Tracker):
    """Writes into `folder`, made if need be; what an earlier run left there is replaced."""

    name = "jsonl"
    takes = (Metrics, Scalar, Finding, Event, File)
    local = True

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        own_folder(self.folder)
        self._metrics, self._findings = opened(self.folder / "metrics.jsonl"), opened(self.folder / "findings.jsonl")

    @property
    def page(self) -> str:
        return diagnose_command(self.source)

    @property
    def source(self) -> str:
        return near(self.folder)

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        row: dict[str, object] = {}
        for entry in entries:
            if isinstance(entry, Metrics):
                row |= entry.values
            elif isinstance(entry, Scalar):
                row[entry.name] = entry.value
            elif isinstance(entry, Finding):
                _write(self._findings, {"step": step, **entry.to_json()})
            elif isinstance(entry, Event):
                _write(self._findings, {"step": step, "event": entry.text})
            elif isinstance(entry, File):
                private(self.folder / entry.name, entry.text)
        if row:
            _write(self._metrics, {"step": step, **row})

    def close(self) -> None:
        self._metrics.close()
        self._findings.close()


def unused_folder() -> Path:
    """A new folder for a run that no tracker has, among the journals, by its hour and process."""
    own_folder(folder())
    return Path(mkdtemp(prefix=f"run-{datetime.now().astimezone():%Y-%m-%d-%H%M%S}-{os.getpid()}-", dir=folder()))


def _write(file: TextIO, line: dict[str, object]) -> None:
    # NaN and infinity are no JSON; as strings every reader takes them, and ours reads them back.
    bad = {key: str(value) for key, value in line.items() if isinstance(value, float) and not math.isfinite(value)}
    file.write(json.dumps(line | bad) + "\n")
    file.flush()
