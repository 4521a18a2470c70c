"""Trackio: scalars, histograms, tables and alerts, in the run that exists.

Trackio queues its input, sends it from a thread of its own, and keeps it while its server is away. So a call costs no
more than handing it to a thread of ours. Trackio's automatic step counter is not thread-safe. So our calls come from
the thread that logs, and leave the counter as it was.
"""

import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from tracker_diag.errors import DiagError, require
from tracker_diag.hooks import Unlocked, all_off, before
from tracker_diag.records import Drawing, Histogram, Scalar, Table
from tracker_diag.report.picture import Pixels, drawn, ready
from tracker_diag.report.tables import DECISION
from tracker_diag.rules.alerts import Notice
from tracker_diag.trackers.delivery.kept import Kept
from tracker_diag.trackers.tables import Tables
from tracker_diag.trackers.tracker import (
    RECORDS,
    Address,
    End,
    Entry,
    Event,
    Listener,
    Name,
    Off,
    Standing,
    Tracker,
    is_a,
    on_begin,
    writing_of_ours,
)
from tracker_diag.trackers.trackio.read import list_trackio, read_trackio, split

ORDER = "TRACKIO_PLOT_ORDER='diag/*/p95,diag/*,*'"
"""Puts the diagnostics before your charts, the tail of both slices first."""


class TrackioTracker(Tracker):
    """Writes into `run`, a `trackio.Run` that is underway, and never finishes it."""

    name = "trackio"
    takes = (*RECORDS, Standing, Notice, Event, End)
    library = "trackio"
    local = True
    read = staticmethod(read_trackio)
    runs = staticmethod(list_trackio)
    shows_alerts = True

    def __init__(self, run: Any) -> None:
        self._trackio: Any = require("trackio", "trackio")
        if not hasattr(run, "_next_step"):
            version = self._trackio.__version__
            raise DiagError(f"trackio {version}: does not count steps as 0.43 does, and your rows could get wrong ones")
        ready()
        self.run = run
        self._step = 0
        self._tables = Tables()
        self._waiting: dict[str, Table] = {}
        self._reopened = False  # whether the run was begun by `find`, and is ended by `close`
        self._drawn: Pixels | None = None  # the time line, once it is drawn
        self._artist: threading.Thread | None = None
        self._kept = Kept(self)
        """Trackio loses what it has queued when the process is killed: half a second, or what its server missed."""

    @classmethod
    def find(cls, target: object = None, *, run_id: str | None = None) -> Tracker | None:
        """For the `trackio` module, that is for its current run, or for a run.

        Raises:
            DiagError: no run is underway.
        """
        if isinstance(target, Name):
            source = f"{cls.name}:{target}"
            list_trackio(target, source)  # Trackio would begin one that is not there
            target = Address(zip(("project", "name"), split(target, source), strict=True))
        if isinstance(target, Address):
            options = {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
            with redirect_stdout(StringIO()):
                run = require("trackio", "trackio").init(project=target["project"], name=target["name"], **options)
                tracker = cls(run)
            tracker._kept.close()  # what it is given is in a journal
            tracker._reopened = True
            return tracker
        trackio: Any = sys.modules.get("trackio")
        if trackio is None or (target is not None and target is not trackio):
            return cls(target) if is_a(target, "trackio", "Run") else None
        run = trackio.context_vars.current_run.get() if hasattr(trackio, "context_vars") else None
        if run is not None and not run._stop_flag.is_set():  # noqa: SLF001  # `run.finish()` leaves it the current one
            return cls(run)
        if target is None:
            return None
        raise DiagError("trackio: no run is underway, expected one; call trackio.init() before wrap(trackio)")

    @classmethod
    def watch(cls, begun: Callable[[Tracker], None]) -> Off:
        return on_begin(sys.modules["trackio"], lambda run: begun(cls(run)))

    def listen(self, listener: Listener | None) -> Off:
        if listener is None:
            return super().listen(None)
        own = Unlocked(listener.record)

        def hear(given: Mapping[str, Any]) -> None:
            if not writing_of_ours():
                listener.hear(given["metrics"], given.get("step"), self._next_step)

        return all_off(
            before(self.run, "log", ("metrics", "step"), hear, own),
            before(self.run, "finish", (), lambda _: listener.end(), own),
        )

    @property
    def address(self) -> Mapping[str, str]:
        return {"run": self.run.id, "name": self.run.name, "project": self.run.project, "source": self.source}

    @property
    def config(self) -> Mapping[str, object]:
        """Settings of the run, without what Trackio adds."""
        return {key: value for key, value in self.run.config.items() if not key.startswith("_")}

    @property
    def page(self) -> str:
        return f"{ORDER} trackio show --project {shlex.quote(self.run.project)}"

    @property
    def source(self) -> str:
        return f"trackio:{self.run.project}/{self.run.name}"

    @property
    def _next_step(self) -> int:
        """The step that a call of yours without one gets."""
        upcoming: int = self.run._next_step  # noqa: SLF001  # there is no other way
        return upcoming

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        records = [entry for entry in entries if isinstance(entry, RECORDS)]
        if records:
            self._put_waiting()
            self._step = step
            if error := self._kept.keep(step, records, at):
                self.tally.failed(error)
        media = {record.name: self._media(record) for record in records if not isinstance(record, Drawing)}
        if media:
            self._put(media)
        for entry in entries:
            if isinstance(entry, Drawing):
                self._draw(entry)
            elif isinstance(entry, Notice):
                level = self._trackio.AlertLevel(entry.level)
                self.run.alert(entry.headline or entry.title, entry.text, level=level, step=step)
            elif not isinstance(entry, Table):  # with the next step, since several may change in one
                self._waiting |= {table.name: table for table in self._tables.changed_by(step, entry)}
            if isinstance(entry, End):
                if self._artist:
                    self._artist.join()
                self._put_waiting()
                self._kept.close()

    def close(self) -> None:
        self._kept.close()
        if self._reopened:
            with redirect_stdout(StringIO()):
                self.run.finish()

    def _draw(self, drawing: Drawing) -> None:
        """Draw in a thread of its own: the one that logs does not wait for it."""

        def draw() -> None:
            try:
                require("matplotlib", "trackio")
                self._drawn = drawn(drawing)
            except Exception as error:  # noqa: BLE001  # it may lack matplotlib
                self.tally.failed(error)

        artist = threading.Thread(target=draw, daemon=True)
        try:
            artist.start()
        except RuntimeError:  # none starts in `atexit` from Python 3.12 on
            draw()
        else:
            self._artist = artist

    def _put_waiting(self) -> None:
        """Log the tables, and the time line that was drawn, since the last step, at that one."""
        tables, self._waiting = self._waiting, {}
        image, self._drawn = self._drawn, None
        if tables:
            self._put({name: self._media(table) for name, table in tables.items()})
        if image is not None:
            self._put({DECISION: self._trackio.Image(image)})

    def _put(self, values: dict[str, Any]) -> None:
        """Log `values` at the step of ours; the next row of yours without a step gets the number it would have had."""
        upcoming = self._next_step
        self.run.log(values, step=self._step)
        if upcoming <= self._step and self.run._next_step == self._step + 1:  # noqa: SLF001
            self.run._next_step = upcoming  # noqa: SLF001

    def _media(self, record: Scalar | Histogram | Table) -> Any:
        if isinstance(record, Histogram):
            return self._trackio.Histogram(np_histogram=(record.counts, record.edges))
        if isinstance(record, Table):
            return self._trackio.Table(data=[dict(zip(record.columns, row, strict=True)) for row in record.rows])
        return record.value
