"""JSON Lines: the metrics file, one object a step with sparse keys, and what other loggers write in this way."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.trackers.files.text import read_lines
from tracker_diag.trackers.finished import FinishedRun, Progress, one_line
from tracker_diag.trackers.keys import NO_METRICS, STEPS, clock_of, flat, step_of
from tracker_diag.trackers.rows import Rows, number


def read_metrics(file: Path) -> dict[int, dict[str, float]]:
    """A metrics file for a replay: numbers by step, in rising order, without the diagnostics' own.

    Stricter than `read_jsonl`, as the steps are to be those of the tokens: each line has to say its own.

    Raises:
        SourceError: "file:line: what is wrong".
    """
    rows: dict[int, dict[str, float]] = {}
    for at, line, _ in read_lines(file):
        if line.strip():
            row = _row(file, at, line)
            own = rows.setdefault(step_of(row.pop("step", None), f"{file}:{at}"), {})
            numbers = ((key, number(value)) for key, value in flat(row, "/") if not key.startswith(PREFIX))
            own.update((key, value) for key, value in numbers if value is not None)
    return dict(sorted(rows.items()))


HEAD = 100
"""Lines that are looked at to learn which key is the step."""


def read_jsonl(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from JSON Lines, one object a row, with its step under one of the names that trainers use.

    Nested objects become flat keys with `/`, as RLlib names them itself; the object `config` becomes the settings, and
    verl's own file (`{"step": 3, "data": {...}}`) is taken apart. Where no row has a step, rows are counted from 0.

    Raises:
        SourceError: "file:line: what is wrong".
    """
    step_key = _step_key(file)
    rows = Rows(in_order=True)
    config: dict[str, object] = {}
    for at, line, ended in read_lines(file, progress, errors="replace"):
        if not rows.checked(line, f"line {at}").strip(" \t\r\n\0"):
            continue
        try:
            row = _row(file, at, line)
            given = rows.added if step_key is None else row.get(step_key)
            step = None if given is None else step_of(given, f"{file}:{at}")
        except SourceError as error:
            if ended or not rows.added:
                rows.skip(error)
            else:
                rows.note(f"the last line, {at}, breaks off and was left out")  # what a killed process wrote last
            continue
        if isinstance(settings := row.pop("config", None), dict):
            config |= flat(settings, ".")
        if step is None:
            rows.count("lines without a step, left out", f"line {at}")
            continue
        values = {key: value for key, value in row.items() if key != step_key and key not in NO_METRICS}
        rows.put_row(step, dict(flat(values, "/")), f"line {at}", clock_of(row))
    if step_key is None:
        rows.note(f"no row has a step, none of {', '.join(STEPS[:3])}, ...: rows are counted from 0")
    return replace(rows.finish(source, config, padded=True), findings=_findings(file.with_name("findings.jsonl")))


def _findings(file: Path) -> tuple[Mapping[str, Any], ...]:
    """What the diagnostics left beside the metrics, each finding in its last state; nothing if they left none."""
    last: dict[tuple[object, ...], Mapping[str, Any]] = {}
    if file.is_file():
        for at, line, ended in read_lines(file, errors="replace"):
            with suppress(SourceError):
                row = _row(file, at, line) if ended and line.strip() else {}
                if "rule" in row:
                    last[tuple(row.get(key) for key in ("rule", "pair", "slice", "onset"))] = row
    return tuple(last.values())


def _row(file: Path, at: int, line: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{file}:{at}: no JSON object: {one_line(error)}") from error
    if not isinstance(row, dict):
        raise SourceError(f"{file}:{at}: {type(row).__name__} given, expected a JSON object with a step")
    if isinstance(row.get("data"), dict) and set(row) == {"step", "data"}:
        return {**row["data"], "step": row["step"]}
    return row


def _step_key(file: Path) -> str | None:
    """The first of the known names that stands in one of the first rows."""
    keys: set[str] = set()
    for at, line, ended in islice(read_lines(file, errors="replace"), HEAD):
        if ended and line.strip(" \t\r\n\0"):
            with suppress(SourceError):  # told when it is read
                keys |= _row(file, at, line).keys()
    return next((key for key in STEPS if key in keys), None)
