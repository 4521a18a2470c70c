"""JSON: a metrics file of one object a step, what other loggers write so, and Hugging Face's `trainer_state.json`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.trackers.files.console import ConsoleLog
from tracker_diag.trackers.files.text import read_document, read_objects
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.keys import flat, put_records, step_of
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.rows import Rows, number


def read_metrics(file: Path) -> dict[int, dict[str, float]]:
    """A metrics file for a replay: numbers by step, in rising order, without the diagnostics' own.

    Stricter than `read_jsonl`, as the steps are to be those of the tokens: each line has to say its own.
    """
    rows: dict[int, dict[str, float]] = {}
    for at, given, _ in read_objects(file, Odd().count):
        if isinstance(given, SourceError):
            raise given
        row = _of_verl(given)
        own = rows.setdefault(step_of(row.pop("step", None), f"{file}:{at}"), {})
        numbers = ((key, number(value)) for key, value in flat(row, "/") if not key.startswith(PREFIX))
        own.update((key, value) for key, value in numbers if value is not None)
    return dict(sorted(rows.items()))


def read_jsonl(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from JSON Lines, one object a row, with its step under one of the names that trainers use.

    The object `config` becomes the settings, and verl's own file (`{"step": 3, "data": {...}}`) is unwrapped.
    """
    rows = Rows(in_order=True)
    config = put_records(rows, _records(file, rows, progress), file)
    return replace(rows.finish(source, config, padded=True), findings=_findings(file.with_name("findings.jsonl")))


def _records(file: Path, rows: Rows, progress: Progress | None) -> Iterator[tuple[str, Mapping[str, object]]]:
    any_row = False
    for at, row, ended in read_objects(file, rows.count, progress):
        if not isinstance(row, SourceError):
            any_row = True
            yield f"line {at}", _of_verl(row)
        elif ended or not any_row:
            rows.skip(row)
        else:
            rows.note(f"the last line, {at}, breaks off and was left out")  # what a killed process wrote last


def _findings(file: Path) -> tuple[Mapping[str, Any], ...]:
    """What the diagnostics left next to the metrics, each finding in its last state; nothing if they left none."""
    last: dict[tuple[object, ...], Mapping[str, Any]] = {}
    for _, row, ended in read_objects(file, Odd().count) if file.is_file() else ():
        if ended and isinstance(row, dict) and "rule" in row:
            last[tuple(row.get(key) for key in ("rule", "pair", "slice", "onset"))] = row
    return tuple(last.values())


def _of_verl(row: dict[str, Any]) -> dict[str, Any]:
    """`row`, of verl's own file with its metrics where others have them."""
    return {**row["data"], "step": row["step"]} if row.keys() == {"step", "data"} and type(row["data"]) is dict else row


PIECE = {"stream_name", "data"}
"""Keys of a piece of what a notebook printed, as Kaggle keeps it."""


def _printed(file: Path, pieces: list[dict[str, object]], source: str) -> FinishedRun:
    """A run from `pieces` of what was printed, which may end within a line."""
    log = ConsoleLog()
    for at, line in enumerate("".join(str(piece["data"]) for piece in pieces).split("\n"), 1):
        log.read_line(line, f"printed line {at}")
    if run := log.finish(source):
        return run
    raise SourceError(f"{file}: no metrics in what was printed, {len(pieces)} pieces")


def _columns(document: Mapping[str, object]) -> dict[str, list[object]]:
    """The columns of a document that has a list of numbers for each metric: the longest ones; empty without any."""
    lists = {key: value for key, value in document.items() if isinstance(value, list) and len(value) > 1}
    numbers = {key: value for key, value in lists.items() if all(isinstance(it, int | float | None) for it in value)}
    longest = max(map(len, numbers.values()), default=0)
    return {key: value for key, value in numbers.items() if len(value) == longest}


def read_trainer_state(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:  # noqa: ARG001  it is small
    """A run from `log_history`, whose training and evaluation rows share steps, from a list of rows, or from columns.

    Kaggle keeps what a notebook printed as a list of pieces. They are read as a console log.
    """
    document, wrong = read_document(file)
    if isinstance(document, list) and document and all(isinstance(it, dict) and it.keys() >= PIECE for it in document):
        return _printed(file, document, source)
    if isinstance(document, dict) and "log_history" not in document and (columns := _columns(document)):
        document = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    name = "row" if isinstance(document, list) else "log_history"
    whole = {name: document} if isinstance(document, list) else document
    history = whole.pop(name, None)
    if wrong and not history:
        raise SourceError(f"{file}: {wrong}")
    if not isinstance(history, list):
        known = ", ".join([*whole][:5])
        expected = "expected log_history, or a list of numbers for each metric"
        raise SourceError(f"{file}: a JSON object of {known}, {expected}")
    rows = Rows(in_order=True)
    if wrong:
        rows.note(f"{wrong}; what came before was read")

    def records() -> Iterator[tuple[str, Mapping[str, object]]]:
        for at, row in enumerate(history):
            if isinstance(row, dict):
                yield f"{name}[{at}]", row
            else:
                kind = type(row).__name__
                rows.skip(SourceError(f"{file}: {name}[{at}]: {kind} given, expected an object with a step"))

    config = dict(flat(whole, ".")) | put_records(rows, records(), file)
    return rows.finish(source, {key: value for key, value in config.items() if not isinstance(value, list)})
