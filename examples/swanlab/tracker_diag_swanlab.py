"""SwanLab: our series and alerts in the run that is underway. A worked example of a tracker, see CONTRIBUTING.md.

pip install ./examples/swanlab

run = swanlab.init(project="agent", mode="local")
td.wrap(run)  # or td.wrap(swanlab)
run.diag.observe(...)
run.log({"reward": 0.5}, step=step)
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracker_diag.errors import DiagError, require
from tracker_diag.hooks import Unlocked, all_off, before
from tracker_diag.records import Scalar
from tracker_diag.rules.alerts import Notice
from tracker_diag.trackers.tracker import End, Entry, Event, Listener, Off, Tracker, is_a, on_begin, writing_of_ours

RUN = "swanlab.sdk.internal.run"
"""Where SwanLab 0.10 defines its class `Run`."""


class SwanLabTracker(Tracker):
    """Writes into a run of SwanLab that is underway, and never finishes it."""

    name = "swanlab"
    takes = (Scalar, Notice, Event, End)
    library = "swanlab"

    def __init__(self, run: Any) -> None:
        self.run = run
        self._text = require("swanlab", "swanlab").Text

    @classmethod
    def find(cls, target: object = None, *, run_id: str | None = None) -> Tracker | None:
        """For the module `swanlab`, that is for its current run, or for a run.

        Raises:
            DiagError: no run is underway.
        """
        swanlab: Any = sys.modules.get("swanlab")
        if is_a(target, RUN, "Run"):
            return cls(target)
        if swanlab is None or target not in (None, swanlab):
            return super().find(target)  # another tracker's object, or an address, which cannot be opened again
        if swanlab.has_run():
            return cls(swanlab.get_run())
        if target is None:
            return None
        raise DiagError("swanlab: no run is underway, expected one; call swanlab.init() before wrap(swanlab)")

    @classmethod
    def watch(cls, begun: Callable[[Tracker], None]) -> Off:
        return on_begin(sys.modules["swanlab"], lambda run: begun(cls(run)))

    @property
    def address(self) -> Mapping[str, str]:
        return {"run": self.run.id, "folder": str(self.run.dir)}

    @property
    def page(self) -> str:
        """The command that shows a local run."""
        return f"swanlab watch {self.run.dir.parent}" if self.run.mode == "local" else ""

    @property
    def config(self) -> Mapping[str, object]:
        return dict(self.run.config)

    def listen(self, listener: Listener | None) -> Off:
        if listener is None:
            return super().listen(None)
        own = Unlocked(listener.record)

        def hear(given: Mapping[str, Any]) -> None:
            if not writing_of_ours():
                listener.hear(given["data"], given.get("step"), None)

        return all_off(
            before(self.run, "log", ("data", "step"), hear, own),
            before(self.run, "finish", (), lambda _: listener.end(), own),
        )

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        """All of a step in one call. SwanLab takes steps in any order, so no row of the user's is moved."""
        data: dict[str, Any] = {entry.name: entry.value for entry in entries if isinstance(entry, Scalar)}
        texts = [f"{entry.title}\n\n{entry.text}" for entry in entries if isinstance(entry, Notice)]
        texts += [entry.text for entry in entries if isinstance(entry, Event)]
        if texts:
            data["diag/alerts"] = [self._text(text) for text in texts]
        ends = [entry.summary for entry in entries if isinstance(entry, End)]
        if ends:
            data["diag/summary"] = self._text(str(ends[0]))
        if data:
            self.run.log(data, step=step)
