"""What tracker_diag needs to know of toylog."""

import json
import sys
from pathlib import Path

from tracker_diag.errors import SourceError
from tracker_diag.hooks import Unlocked, after, all_off, before
from tracker_diag.records import Scalar
from tracker_diag.rules.alerts import Notice
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.tracker import Address, End, File, Tracker, is_a, writing_of_ours


class ToyTracker(Tracker):
    name = "toy"
    takes = (Scalar, Notice, File, End)
    library = "toylog"

    def __init__(self, run):
        self.run = run

    @classmethod
    def find(cls, target=None, *, run_id=None):
        toylog = sys.modules.get("toylog")
        if isinstance(target, Address):
            import toylog

            return cls(toylog.Run(target["folder"]))
        if target is None or target is toylog:
            run = getattr(toylog, "current", None)
            return None if run is None else cls(run)
        return cls(target) if is_a(target, "toylog", "Run") else None

    @classmethod
    def watch(cls, begun):
        own = Unlocked(lambda kind, error: None)
        return after(sys.modules["toylog"], "start", ("folder",), lambda run, _: begun(cls(run)), own)

    @classmethod
    def read(cls, name, source, progress=None):
        file = Path(name) / "rows.jsonl"
        if not file.is_file():
            raise SourceError(f"{source}: no run of toylog in {name}")
        rows = {}
        for line in file.read_text().splitlines():
            row = json.loads(line)
            rows.setdefault(row.pop("step"), {}).update(row)
        return FinishedRun(source, dict(sorted(rows.items())), {}, {}, ())

    @property
    def address(self):
        return {"run": self.run.id, "folder": str(self.run.folder)}

    @property
    def source(self):
        return f"toy:{self.run.folder}"

    def listen(self, listener):
        if listener is None:
            return super().listen(None)
        own = Unlocked(listener.record)

        def hear(given):
            if not writing_of_ours():
                listener.hear(given["values"], given["step"], None)

        return all_off(
            before(self.run, "track", ("values", "step"), hear, own),
            before(self.run, "stop", (), lambda _: listener.end(), own),
        )

    def write(self, step, entries, at):
        if scalars := {entry.name: entry.value for entry in entries if isinstance(entry, Scalar)}:
            self.run.track(scalars, step)
        for entry in entries:
            if isinstance(entry, Notice):
                self.run.put("alerts", {"step": step, "title": entry.title})
            elif isinstance(entry, File):
                self.run.put("files", {"name": entry.name})
            elif isinstance(entry, End):
                self.run.put("end", {"steps": entry.summary.steps})
