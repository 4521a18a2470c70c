"""Trackio: a run out of the SQLite file that it keeps for each project. Trackio itself need not be installed."""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import FinishedRun, Gone, Listed, Progress, one_line
from tracker_diag.trackers.keys import clock_of, flat, step_of
from tracker_diag.trackers.rows import Rows

LAST = '"diag/slices"'
"""In the metrics of one of the last two rows of a run whose diagnostics were closed: a table that they log but then."""


def read_trackio(name: str, source: str, progress: Progress | None = None) -> FinishedRun:
    """The run `<project>/<run>`, from Trackio's folder: `TRACKIO_DIR`, else `HF_HOME`/trackio.

    Raises:
        SourceError: "source: what is wrong".
    """
    folder = trackio_folder()
    splits = [(name[:at], name[at + 1 :]) for at, character in enumerate(name) if character == "/"]
    if not splits:
        raise SourceError(f"{source}: expected trackio:<project>/<run>")
    # A project's name may hold a slash, which its file's name does not.
    known = [(project_file(folder, project), run) for project, run in splits if project_file(folder, project).is_file()]
    if not known:
        raise SourceError(f"{source}: no project {splits[0][0]!r} in Trackio's folder {folder}")
    missing = ""
    try:
        for file, run in known:
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as store:
                run_read = _run(store, run, source, progress)
                if run_read:
                    return run_read
                names = [
                    str(row[0])
                    for row in store.execute("SELECT run_name FROM metrics GROUP BY 1 ORDER BY MIN(id) LIMIT 6")
                ]
                more = ", ..." if len(names) > 5 else ""
                missing = f"no run {run!r} in {file}; it has {', '.join(names[:5]) or 'none'}{more}"
    except sqlite3.Error as error:
        raise SourceError(f"{source}: no store of Trackio in {folder}: {one_line(error)}") from error
    raise SourceError(f"{source}: {missing}")


def list_trackio(name: str, source: str) -> list[Listed]:
    """How the run `<project>/<run>` stands, as a list of one.

    Trackio does not say whether a run has ended. The diagnostics do, if they watched it from inside.

    Raises:
        Gone: there is no such run.
        SourceError: "source: what is wrong".
    """
    for at in (at for at, character in enumerate(name) if character == "/"):
        project, run = name[:at], name[at + 1 :]
        if project_file(trackio_folder(), project).is_file():
            listed = [
                candidate
                for candidate in list_trackio_project(project, source)
                if run in {candidate.name, _part(candidate.source)}
            ]
            if listed:
                return [replace(listed[-1], source=source)]
    raise Gone(f"{source}: no such run in Trackio's folder {trackio_folder()}, expected trackio:<project>/<run>")


def list_trackio_project(name: str, source: str) -> list[Listed]:
    """All runs of the project `name`, the one that was begun first on top.

    Raises:
        SourceError: "source: what is wrong"; also where there is no such project.
    """
    file = project_file(trackio_folder(), name)
    if not name or not file.is_file():
        raise SourceError(f"{source}: no project {name!r} in Trackio's folder {trackio_folder()}")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as store:
            own = (
                "run_id" if "run_id" in {row[1] for row in store.execute("PRAGMA table_info(metrics)")} else "run_name"
            )
            query = f"SELECT {own}, run_name, MAX(id), MAX(timestamp) FROM metrics GROUP BY 1 ORDER BY MIN(id)"  # noqa: S608
            runs = {str(run): (str(shown), str(last), at) for run, shown, last, at in store.execute(query)}
            if store.execute("SELECT 1 FROM sqlite_master WHERE name = 'configs'").fetchone():
                query = f"SELECT {own}, run_name, created_at FROM configs ORDER BY id"  # noqa: S608
                for run, shown, at in store.execute(query):
                    runs.setdefault(str(run), (str(shown), "", at))
            ended = {run for run in runs if _closed(store, own, run)}
    except sqlite3.Error as error:
        raise SourceError(f"{source}: no store of Trackio in {trackio_folder()}: {one_line(error)}") from error
    return [
        Listed(
            f"trackio:{name}/{run}",
            shown,
            mark,
            "finished" if run in ended else None,
            clock_of({"timestamp": at}),
        )
        for run, (shown, mark, at) in runs.items()
    ]


def _closed(store: sqlite3.Connection, own: str, run: str) -> bool:
    """Whether the last that was logged to `run` is what the diagnostics leave at its end."""
    query = f"SELECT metrics FROM metrics WHERE {own} = ? ORDER BY id DESC LIMIT 2"  # noqa: S608  of two constants
    return any(LAST in str(metrics) for (metrics,) in store.execute(query, (run,)))


def _part(source: str) -> str:
    return source.rpartition("/")[2]


def _run(store: sqlite3.Connection, run: str, source: str, progress: Progress | None) -> FinishedRun | None:
    """The run called `run`, None if there is none; of several with one name the one that was begun last."""
    columns = {row[1] for row in store.execute("PRAGMA table_info(metrics)")}
    note: str | None = None
    which, given = "run_name = ?", run
    if "run_id" in columns:  # older stores know names only
        query = "SELECT run_id, MIN(id) FROM metrics WHERE run_name = ? OR run_id = ? GROUP BY run_id ORDER BY 2"
        ids = [row[0] for row in store.execute(query, (run, run))]
        if not ids:
            return None
        which, given = "run_id = ?", ids[-1]
        note = f"{len(ids)} runs have this name; the last was read, the others by their ids" if len(ids) > 1 else None
    (count,) = store.execute(f"SELECT COUNT(*) FROM metrics WHERE {which}", (given,)).fetchone()  # noqa: S608  of two constants
    if not count:
        return None
    rows = Rows()
    if note:
        rows.note(note)
    query = f"SELECT step, timestamp, metrics FROM metrics WHERE {which} ORDER BY id"  # noqa: S608
    for step, timestamp, metrics in store.execute(query, (given,)):
        try:
            values = json.loads(metrics)
            numbers = dict(_numbers(values))
            rows.put_row(step_of(step, source), numbers, f"step {step}", clock_of({"timestamp": timestamp}))
        except SourceError as error:
            rows.skip(error)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            rows.skip(SourceError(f"{source}: step {step}: no JSON object: {one_line(error)}"))
        if progress:
            progress(rows.added / count)
    try:
        config = _config(store, which, given)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        rows.note(f"its settings are no JSON object: {one_line(error)}")
        config = {}
    return rows.finish(source, config)


def _config(store: sqlite3.Connection, which: str, given: str) -> dict[str, object]:
    if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'configs'").fetchone():
        return {}
    row = store.execute(f"SELECT config FROM configs WHERE {which}", (given,)).fetchone()  # noqa: S608
    return {k: v for k, v in flat(json.loads(row[0]), ".") if not k.startswith("_")} if row else {}


def _numbers(values: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Numbers and texts; histograms, tables and other media, which say their type, are left out."""
    for key, value in values.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from flat(value, "/", f"{key}/")
        elif not isinstance(value, dict | list):
            yield key, value


def trackio_folder() -> Path:
    """Where Trackio keeps its stores: `TRACKIO_DIR`, else `HF_HOME`/trackio."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("TRACKIO_DIR") or Path(home) / "trackio").expanduser()


def project_file(folder: Path, project: str) -> Path:
    """The SQLite file of `project`, which may not be there."""
    safe = "".join(character for character in project if character.isalnum() or character in "-_")
    return folder / f"{safe or 'default'}.db"
