"""Hugging Face's `trainer_state.json`, and JSON documents that are a list of rows."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.text import read_document
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.keys import flat, put_records
from tracker_diag.trackers.rows import Rows


def read_trainer_state(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:  # noqa: ARG001  it is small
    """A run from `log_history`, whose training and evaluation rows share steps, or from a list of rows."""
    document = read_document(file)
    name = "row" if isinstance(document, list) else "log_history"
    whole = {name: document} if isinstance(document, list) else document
    history = whole.pop(name, None)
    if not isinstance(history, list):
        known = ", ".join([*whole][:5])
        raise SourceError(f"{file}: a JSON object without log_history ({known}), expected a trainer_state.json")
    rows = Rows(in_order=True)

    def records() -> Iterator[tuple[str, Mapping[str, object]]]:
        for at, row in enumerate(history):
            if isinstance(row, dict):
                yield f"{name}[{at}]", row
            else:
                kind = type(row).__name__
                rows.skip(SourceError(f"{file}: {name}[{at}]: {kind} given, expected an object with a step"))

    config = dict(flat(whole, ".")) | put_records(rows, records(), file)
    return rows.finish(source, {key: value for key, value in config.items() if not isinstance(value, list)})
