"""Any finished run: finds out what a source is, and reads it."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from tracker_diag.errors import DiagError, MissingExtra, SourceError
from tracker_diag.rules.logged import is_ours
from tracker_diag.scrub import without_password
from tracker_diag.trackers.discovery import that_can, tracker_class, tracker_names
from tracker_diag.trackers.files.console import read_console
from tracker_diag.trackers.files.csv_table import read_csv
from tracker_diag.trackers.files.kinds import kind_of
from tracker_diag.trackers.files.notebook import read_notebook
from tracker_diag.trackers.files.read import read_jsonl, read_trainer_state
from tracker_diag.trackers.files.sb3 import read_evaluations, read_monitor
from tracker_diag.trackers.finished import FinishedRun, Progress, one_line
from tracker_diag.trackers.in_memory import Frame, read_frame, read_rows
from tracker_diag.trackers.tensorboard.read import read_tensorboard
from tracker_diag.trackers.tracker import Tracker
from tracker_diag.trackers.wandb.read_file import read_wandb_file, wandb_file_in

T = TypeVar("T")

Source: TypeAlias = str | Path | Frame | Iterable[Mapping[str, object]]
"""What a finished run is read from."""

FILES: dict[str, Callable[[Path, str, Progress | None], FinishedRun]] = {
    "jsonl": read_jsonl,
    "json": read_trainer_state,
    "csv": read_csv,
    "monitor": read_monitor,
    "npz": read_evaluations,
    "wandb": read_wandb_file,
    "tensorboard": read_tensorboard,
    "console": read_console,
    "notebook": read_notebook,
}
KNOWN = ("trainer_state.json", "metrics.jsonl", "progress.csv", "result.json", "evaluations.npz", "monitor.csv")
"""Files that are looked for in a folder, the first that is there is read."""

CONTEXT_FILES = {"jsonl": "context.json", "wandb": "files/diag/context.json"}
"""Where the diagnostics leave the context record of a run, from the file that is read."""


def read_run(source: Source, progress: Progress | None = None) -> FinishedRun:
    """Read the finished run `source`.

    Args:
        source: a file, a folder with one run's files, or `<tracker>:<run>`, such as `mlflow:<run id>[@tracking uri]`
            and `wandb:<entity>/<project>/<run>`. Files: JSON Lines, CSV, `trainer_state.json`, TensorBoard events,
            `.wandb`, console logs of TRL or verl, `evaluations.npz`, `monitor.csv`, a notebook with printed metrics. A
            `pandas.DataFrame` or a list of rows is read as it is.
        progress: called about two hundred times with the share that has been read.

    Raises:
        MissingExtra: the library that reads this kind of run is not installed.
        SourceError: in one line, what cannot be read, where, and why.
    """
    if isinstance(source, Frame):
        return read_frame(source)
    if isinstance(source, Path):
        source = str(source)
    if not isinstance(source, str):
        return read_rows(source)
    if not source:
        raise SourceError(f"no source given, expected a file, a folder or one of {', '.join(prefixes())}")
    now_and_then = _now_and_then(progress)
    if is_of_tracker(source):
        run = of_tracker(source, lambda kind, name, shown: kind.read(name, shown, now_and_then))
    else:
        run = _read_path(Path(source), source, now_and_then)
    if progress:
        progress(1.0)
    return run


def held(source: str) -> dict[int, set[str]]:
    """What a run holds of the diagnostics, by step; nothing of one that cannot be read."""
    try:
        rows = read_run(source).rows
    except DiagError:
        return {}
    return {step: {key for key in row if is_ours(key)} for step, row in rows.items()}


def prefixes() -> list[str]:
    """What the sources of trackers begin with."""
    return [f"{name}:" for name in that_can("read")]


def is_of_tracker(source: str) -> bool:
    """Whether `source` is `<tracker>:<name>`, of a tracker that is installed."""
    tracker, _, name = source.partition(":")
    return bool(name) and tracker in tracker_names()


def of_tracker(source: str, ask: Callable[[type[Tracker], str, str], T]) -> T:
    """What `ask` gets from the tracker of `source`, by the name there, and the source as it may be shown.

    Raises:
        SourceError: in one line, what cannot be read, where, and why.
    """
    tracker, _, name = source.partition(":")
    shown = without_password(source)
    try:
        return ask(tracker_class(tracker), name.removeprefix("//"), shown)
    except DiagError as error:
        raise error if isinstance(error, SourceError | MissingExtra) else SourceError(f"{shown}: {error}") from error
    except Exception as error:  # whatever another package's tracker raises
        raise SourceError(f"{shown}: {tracker} raised {type(error).__name__}: {one_line(error)}") from error


def _read_path(path: Path, source: str, progress: Progress | None) -> FinishedRun:
    if path.is_dir():
        return _read_folder(path, source, progress)
    if not path.is_file():
        trackers = ", ".join(prefixes())
        raise SourceError(f"{source.rstrip(':')}: no such file or folder; runs of trackers begin with {trackers}")
    kind = kind_of(path)
    run = FILES[kind](path, source, progress)
    if kind in CONTEXT_FILES:
        with suppress(OSError, UnicodeDecodeError):
            run = replace(run, context=(path.parent / CONTEXT_FILES[kind]).read_text(encoding="utf-8"))
    return run


def _read_folder(folder: Path, source: str, progress: Progress | None) -> FinishedRun:
    try:
        inside = next((folder / name for name in KNOWN if (folder / name).is_file()), None)
        inside = next(iter(folder.glob("*.wandb")), inside)
        events = next(folder.rglob("*tfevents*"), None) if inside is None else None
        last = max(folder.glob("checkpoint-*/trainer_state.json"), key=_checkpoint, default=None)
    except OSError as error:
        raise SourceError(f"{folder}: {error.strerror}") from error
    if events is not None:
        return read_tensorboard(folder, source, progress)
    inside = inside or last or wandb_file_in(folder)
    if inside is None:
        raise SourceError(
            f"{folder}: no run in this folder: no event files, no .wandb file, none of {', '.join(KNOWN)}"
        )
    run = _read_path(inside, source, progress)
    return replace(run, notes=(f"of the folder, {inside.name} was read", *run.notes))


def _checkpoint(file: Path) -> int:
    number = file.parent.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() else -1


def _now_and_then(progress: Progress | None) -> Progress | None:
    """`progress` when half a percent more has been read; readers may then call it for each row."""
    if progress is None:
        return None
    shown = 0.0

    def report(share: float) -> None:
        nonlocal shown
        if share - shown >= 0.005:
            shown = share
            progress(share)

    return report
