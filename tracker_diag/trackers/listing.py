"""The state of runs that may still continue, without reading them: one run, or all of an experiment or folder."""

import os
from collections.abc import Iterator
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import Gone, Listed, one_line
from tracker_diag.trackers.open import KNOWN, is_of_tracker, of_tracker, prefixes

LINES = {".jsonl", ".ndjson", ".csv", ".tsv", ".log", ".out", ".txt"}
ENDINGS = {*LINES, ".wandb", ".npz"}
"""Of files that are runs of their own in a folder of several."""
FINDINGS = "findings.jsonl"
"""What the diagnostics write next to a run's metrics."""
INSIDE = ("*tfevents*", "*.wandb", "checkpoint-*/trainer_state.json", *KNOWN)
"""What a folder holds that is a run."""


def list_runs(source: str, *, project: bool = False) -> list[Listed]:
    """The state of the run `source`, or with `project` of all runs of an experiment, a project or a folder.

    Args:
        source: as for `read_run`; a project is `<tracker>:<project>`, such as `mlflow:<experiment name or id>[@tracking
            uri]` and `wandb:<entity>/<project>`. Or it is a folder of files, or of folders with one run each.

    Raises:
        MissingExtra: the library that reads this kind of run is not installed.
        Gone: the run was deleted.
        SourceError: in one line, what cannot be read, where, and why.
    """
    if not source:
        raise SourceError(f"no source given, expected a file, a folder or one of {', '.join(prefixes())}")
    if is_of_tracker(source):
        return of_tracker(source, lambda kind, name, shown: kind.runs(name, shown, project=project))
    path = Path(source)
    try:
        if not project:
            return [_listed(path)]
        if not path.is_dir():
            raise SourceError(
                f"{source}: no such folder; --project expects a folder, or a project with {', '.join(prefixes())}"
            )
        return [_listed(run, path) for run in _runs_in(path)]
    except FileNotFoundError as error:  # also of a file that went while its folder was looked through
        raise Gone(f"{error.filename or source}: no such file or folder") from error
    except OSError as error:
        raise SourceError(f"{source}: {one_line(error.strerror or error)}") from error


def _runs_in(folder: Path) -> Iterator[Path]:
    """Files and folders in `folder` that hold a run; what is linked twice comes once."""
    for path in sorted(folder.iterdir()):
        again = path.is_symlink() and path.resolve().parent == folder.resolve()  # W&B's `latest-run`
        if path.name.startswith(".") or path.name == FINDINGS or again:
            continue
        of_ours = path.name.startswith("offline-run-") and "-diag-" in path.name
        if path.is_dir():
            is_run = not of_ours and any(next(path.rglob(inside), None) for inside in INSIDE)
        else:
            is_run = path.suffix.lower() in ENDINGS or "tfevents" in path.name or path.name in KNOWN
        if is_run:
            yield path


def _listed(path: Path, folder: Path | None = None) -> Listed:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    known = [file.stat() for file in files]
    updated = max((stat.st_mtime for stat in known), default=path.stat().st_mtime)
    mark = " ".join(f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}" for stat in known if stat.st_size)
    name = str(path.relative_to(folder)) if folder else path.name
    return Listed(str(path), name, mark, updated=updated, cut=_cut(path))


def _cut(path: Path) -> bool:
    """Whether `path` is a text file of lines, whose last one has no end."""
    if not path.is_file() or path.suffix.lower() not in LINES:
        return False
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        return file.read(1) not in {b"\n", b""}
