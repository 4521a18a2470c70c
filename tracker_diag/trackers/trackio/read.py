"""Trackio: a run out of the SQLite file that it keeps for each project. Trackio itself need not be installed."""

import json
import os
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import FinishedRun, Gone, Listed, Progress, one_line
from tracker_diag.trackers.keys import clock_of, flat, step_of
from tracker_diag.trackers.rows import Rows

LAST = '"diag/slices"'
"""In the metrics of one of the last two rows of a run whose diagnostics were closed: a table that they log but then."""

UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError)
"""What a text raises that is no JSON object."""


@contextmanager
def store_of(project: str, source: str) -> Generator[sqlite3.Connection]:
    """The store of `project` in Trackio's folder, to read from."""
    file = project_file(project)
    if not project or not file.is_file():
        raise Gone(f"{source}: no project {project!r} in Trackio's folder {file.parent}")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as store:
            yield store
    except sqlite3.Error as error:
        raise SourceError(f"{source}: no store of Trackio in {file}: {one_line(error)}") from error


def split(name: str, source: str) -> tuple[str, str]:
    """Project and run of `<project>/<run>`. A project's name may hold a slash: the first project that is there."""
    splits = [(name[:at], name[at + 1 :]) for at, character in enumerate(name) if character == "/"]
    if not splits:
        raise SourceError(f"{source}: expected trackio:<project>/<run>")
    return next((parts for parts in splits if project_file(parts[0]).is_file()), splits[0])


def read_trackio(name: str, source: str, progress: Progress | None = None) -> FinishedRun:
    """The run `<project>/<run>`, from Trackio's folder: `TRACKIO_DIR`, else `HF_HOME`/trackio."""
    project, run = split(name, source)
    with store_of(project, source) as store:
        query = "SELECT run_id FROM metrics WHERE run_name = ? OR run_id = ? GROUP BY run_id ORDER BY MIN(id)"
        ids = [row[0] for row in store.execute(query, (run, run))]
        if not ids:
            query = "SELECT run_name FROM metrics GROUP BY 1 ORDER BY MIN(id) LIMIT 6"
            names = [str(row[0]) for row in store.execute(query)]
            known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise SourceError(f"{source}: no run {run!r} in project {project!r}; it has {known or 'none'}")
        rows = Rows()
        if len(ids) > 1:
            rows.note(f"{len(ids)} runs have this name; the last was read, the others by their ids")
        run_id = ids[-1]
        (count,) = store.execute("SELECT COUNT(*) FROM metrics WHERE run_id = ?", (run_id,)).fetchone()
        query = "SELECT step, timestamp, metrics FROM metrics WHERE run_id = ? ORDER BY id"
        for step, timestamp, metrics in store.execute(query, (run_id,)):
            try:
                numbers = dict(_numbers(json.loads(metrics)))
                rows.put_row(step_of(step, source), numbers, f"step {step}", clock_of({"timestamp": timestamp}))
            except SourceError as error:
                rows.skip(error)
            except UNREADABLE as error:
                rows.skip(SourceError(f"{source}: step {step}: no JSON object: {one_line(error)}"))
            if progress:
                progress(rows.added / count)
        settings = store.execute("SELECT config FROM configs WHERE run_id = ?", (run_id,)).fetchone()
        try:
            config = {k: v for k, v in flat(json.loads(settings[0]), ".") if not k.startswith("_")} if settings else {}
        except UNREADABLE as error:
            rows.note(f"its settings are no JSON object: {one_line(error)}")
            config = {}
        return rows.finish(source, config)


def list_trackio(name: str, source: str, *, project: bool = False) -> list[Listed]:
    """The state of `<project>/<run>`, as a list of one, or of all runs of a project by their start.

    Trackio does not say whether a run has ended. The diagnostics do, if they watched it from inside.
    """
    within, run = (name, "") if project else split(name, source)
    with store_of(within, source) as store:
        query = "SELECT run_id, run_name, MAX(id), MAX(timestamp) FROM metrics GROUP BY 1 ORDER BY MIN(id)"
        runs = {str(own): (str(shown), str(last), at) for own, shown, last, at in store.execute(query)}
        for own, shown, at in store.execute("SELECT run_id, run_name, created_at FROM configs ORDER BY id"):
            runs.setdefault(str(own), (str(shown), "", at))
        listed = [
            Listed(f"trackio:{within}/{own}", shown, mark, _ended(store, own), clock_of({"timestamp": at}))
            for own, (shown, mark, at) in runs.items()
            if project or run in {own, shown}
        ]
    if project:
        return listed
    if not listed:
        raise Gone(f"{source}: no run {run!r} in project {within!r}")
    return [replace(listed[-1], source=source)]


def _ended(store: sqlite3.Connection, run_id: str) -> str | None:
    query = "SELECT metrics FROM metrics WHERE run_id = ? ORDER BY id DESC LIMIT 2"
    return "finished" if any(LAST in str(metrics) for (metrics,) in store.execute(query, (run_id,))) else None


def _numbers(values: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Numbers and texts; histograms, tables and other media, which say their type, are left out."""
    for key, value in values.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from flat(value, "/", f"{key}/")
        elif not isinstance(value, dict | list):
            yield key, value


def project_file(project: str) -> Path:
    """The SQLite file of `project`, which may not be there. It is in `TRACKIO_DIR`, else in `HF_HOME`/trackio."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    folder = Path(os.environ.get("TRACKIO_DIR") or Path(home) / "trackio").expanduser()
    safe = "".join(character for character in project if character.isalnum() or character in "-_")
    return folder / f"{safe or 'default'}.db"
