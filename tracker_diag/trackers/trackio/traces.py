"""Trackio: the traces of a run, out of the SQLite file of its project. Trackio itself need not be installed."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.trackio.read import project_file, trackio_folder


def traces_in(name: str, source: str, odd: Odd) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The traces of `<project>` or `<project>/<run>`: where each stands, and the object that `chats` reads.

    Raises:
        SourceError: "source: what is wrong".
    """
    splits = [(name, "")] + [(name[:at], name[at + 1 :]) for at, character in enumerate(name) if character == "/"]
    project, run = next(
        ((project, run) for project, run in splits if project and project_file(trackio_folder(), project).is_file()),
        ("", ""),
    )
    if not project:
        raise SourceError(f"{source}: no project {name.partition('/')[0]!r} in Trackio's folder {trackio_folder()}")
    file = project_file(trackio_folder(), project)
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as store:
            if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'traces'").fetchone():
                raise SourceError(f"{source}: no traces: {file} has no table of them")
            spans = "spans" if "spans" in {row[1] for row in store.execute("PRAGMA table_info(traces)")} else "'[]'"
            query = f"SELECT id, run_id, step, timestamp, messages, metadata, {spans} FROM traces"  # noqa: S608  # of two constants
            rows = store.execute(f"{query} WHERE ? IN ('', run_name, run_id) ORDER BY rowid", (run,))
            for trace, run_id, step, at, messages, metadata, kept in rows:
                try:
                    document = {
                        "messages": json.loads(messages),
                        "metadata": json.loads(metadata),
                        "spans": json.loads(kept),
                    }
                except (ValueError, TypeError, RecursionError) as error:
                    odd.count("traces that cannot be read, left out", f"{trace}: {one_line(error)}")
                    continue
                yield str(trace), {**document, "id": trace, "run_id": run_id, "step": step, "timestamp": at}
    except sqlite3.Error as error:
        raise SourceError(f"{source}: no store of Trackio in {file}: {one_line(error)}") from error
