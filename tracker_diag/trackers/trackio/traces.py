"""Trackio: the traces of a run, out of the SQLite file of its project. Trackio itself need not be installed."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.odd import Odd
from tracker_diag.trackers.trackio.read import UNREADABLE, project_file, split, store_of


def traces_in(name: str, source: str, odd: Odd) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The traces of `<project>` or `<project>/<run>`: where each is, and the object that `chats` reads."""
    whole = "/" not in name or project_file(name).is_file()
    project, run = (name, "") if whole else split(name, source)
    with store_of(project, source) as store:
        if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'traces'").fetchone():
            raise SourceError(f"{source}: no traces: project {project!r} has no table of them")
        query = "SELECT id, run_id, step, timestamp, messages, metadata, spans FROM traces"
        rows = store.execute(f"{query} WHERE ? IN ('', run_name, run_id) ORDER BY rowid", (run,))
        for trace, run_id, step, at, *parts in rows:
            try:
                messages, metadata, spans = map(json.loads, parts)
            except UNREADABLE as error:
                odd.count("traces that cannot be read, left out", f"{trace}: {one_line(error)}")
                continue
            about = {"id": trace, "run_id": run_id, "step": step, "timestamp": at}
            yield str(trace), {"messages": messages, "metadata": metadata, "spans": spans, **about}
