"""Hugging Face's `trainer_state.json`, and JSON documents that are a list of rows."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.json_stream import BreaksOff, read_items
from tracker_diag.trackers.finished import FinishedRun, Progress
from tracker_diag.trackers.keys import flat, put_records
from tracker_diag.trackers.rows import Rows


def read_trainer_state(file: Path, source: str, progress: Progress | None = None) -> FinishedRun:
    """A run from `log_history`, whose training and evaluation rows share steps, or from a list of rows.

    Raises:
        SourceError: "file: where: what is wrong".
    """
    rows = Rows(in_order=True)
    config: dict[str, object] = {}
    config.update(put_records(rows, _records(file, rows, config, progress), file))
    return rows.finish(source, {key: value for key, value in config.items() if not isinstance(value, list)})


def _records(
    file: Path, rows: Rows, config: dict[str, object], progress: Progress | None
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The rows of the document; what else is in it goes into `config`."""
    counts: dict[str, int] = {}
    try:
        for key, value in read_items(file, "log_history", progress):
            if key in counts:
                where = f"{key or 'row'}[{counts[key]}]"
                counts[key] += 1
                if isinstance(value, dict):
                    yield where, value
                else:
                    wrong = f"{type(value).__name__} given, expected an object with a step"
                    rows.skip(SourceError(f"{file}: {where}: {wrong}"))
            elif value == [] and key in {"log_history", ""}:
                counts[key] = 0
            else:
                config |= flat({key: value}, ".")
    except BreaksOff:
        rows.note("the file breaks off; what came before was read")
    except SourceError as error:
        if not any(counts.values()):
            raise
        rows.note(f"what comes after could not be read: {error}")
    if not counts:
        known = ", ".join(list(config)[:5])
        raise SourceError(f"{file}: a JSON object without log_history ({known}), expected a trainer_state.json")
