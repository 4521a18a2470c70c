"""Hugging Face's `trainer_state.json`, and JSON documents that are a list of rows."""

from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.json_stream import BreaksOff, read_items
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.keys import NO_METRICS, STEPS, clock_of, flat, step_of
from tracker_diag.trackers.rows import Rows


def read_trainer_state(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from `log_history`, whose training and evaluation rows share steps, or from a list of rows.

    Raises:
        SourceError: "file: where: what is wrong".
    """
    rows = Rows(in_order=True)
    config: dict[str, object] = {}
    lists: set[str] = set()
    at = 0
    try:
        for key, value in read_items(file, "log_history", progress):
            if key in lists:
                at += 1
                try:
                    _add(rows, value, f"{file}: {key or 'row'}[{at - 1}]")
                except SourceError as error:
                    rows.skip(error)
            elif value == [] and key in {"log_history", ""}:
                lists.add(key)
            else:
                config |= flat({key: value}, ".")
    except BreaksOff:
        rows.note("the file breaks off; what came before was read")
    except SourceError as error:
        if not rows.added:
            raise
        rows.note(f"what comes after could not be read: {error}")
    if not lists:
        known = ", ".join(list(config)[:5])
        raise SourceError(f"{file}: a JSON object without log_history ({known}), expected a trainer_state.json")
    return rows.finish(source, {key: value for key, value in config.items() if not isinstance(value, list)})


def _add(rows: Rows, row: object, where: str) -> None:
    if not isinstance(row, dict):
        raise SourceError(f"{where}: {type(row).__name__} given, expected an object with a step")
    step_key = next((key for key in STEPS if key in row), "step")
    step = step_of(row.get(step_key), where)
    values = {key: value for key, value in row.items() if key != step_key and key not in NO_METRICS}
    rows.put_row(step, dict(flat(values, "/")), where.rpartition(": ")[2], clock_of(row))
