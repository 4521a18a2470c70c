"""W&B, next to your rows: tables and alerts, and a run of our own for the steps that found no row of yours."""

import sys
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracker_diag.errors import require
from tracker_diag.health import private
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Drawing, Histogram, Record, Scalar, Table
from tracker_diag.report.html import render_html
from tracker_diag.rules.alerts import Notice
from tracker_diag.trackers.tables import Tables
from tracker_diag.trackers.tracker import RECORDS, End, Entry, Event, File, Standing, Tracker, Unavailable

STEP = PREFIX + "step"
OF = "diag_of"
"""Setting of the second run: the id of yours."""


class SummaryTracker(Tracker):
    """What a row of yours has no place for.

    Tables and alerts go to `run`, tables into its summary. Without it, in a process of `tracker-diag flush`, all goes
    into a run of its own. It begins with the first step and has an id that no other process takes.

    Args:
        address: of your run, as `WandbTracker.address` gives it. That of a replay has `beside`: the id of its
            own run, so that another replay continues it.
        run: your run, while it is underway.
    """

    name = "wandb"
    takes = (*RECORDS, Standing, Notice, Event, File, End)

    def __init__(self, address: Mapping[str, str], run: Any = None) -> None:
        self._wandb: Any = require("wandb", "wandb")
        self._address, self._run = address, run
        self._own: Any = None
        self._refused: Exception | None = None  # why no run can be begun
        self.sent = 0
        """Rows and tables that W&B has taken."""
        self._rows: deque[dict[str, Any]] = deque()
        self._tables = Tables()
        self._waiting: dict[str, Table | Drawing] = {}  # what goes into the summary: of several with one name the last
        self._files: dict[str, str] = {}

    @property
    def address(self) -> Mapping[str, str]:
        return self._address

    @property
    def source(self) -> str:
        return self._address["source"]

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        of_row = {entry.name: media(entry) for entry in entries if isinstance(entry, Scalar | Histogram)}
        if of_row and (not self._rows or self._rows[-1][STEP] != step):
            self._rows.append({STEP: step})
        if of_row:
            self._rows[-1] |= of_row
        for entry in entries:
            self._waiting |= {table.name: table for table in self._tables.changed_by(step, entry)}
            if isinstance(entry, Drawing):
                self._waiting[entry.name] = entry
            elif isinstance(entry, Notice) and "beside" not in self._address:  # a replay alerts nobody
                with self._network():
                    self._open.alert(entry.title, entry.text, level=entry.level.upper(), wait_duration=1)
            elif isinstance(entry, File):
                self._files[PREFIX + entry.name] = entry.text

    def flush(self, *, last: bool = False) -> bool:
        with self._network():
            while self._rows:
                self._begin().log(self._rows[0], commit=True)
                self._rows.popleft()
                self.sent += 1
            while self._waiting:
                name, record = next(iter(self._waiting.items()))
                try:
                    self._open.summary[name] = media(record)
                except Exception as error:
                    if not self._passes(error):  # as of a run that is over; making a table takes time
                        del self._waiting[name]
                    raise
                del self._waiting[name]
                self.sent += 1
            while self._files:
                # Whatever comes of it: a disk that takes nothing now would be asked for ever.
                name, text = self._files.popitem()
                file = Path(self._open.dir) / name  # W&B takes files from the run's own folder alone
                private(file, text)
                self._open.save(str(file), base_path=self._open.dir, policy="now")
                self.sent += 1
        return True

    @contextmanager
    def _network(self) -> Generator[None, None, None]:
        """What W&B says of the network is an error that may pass."""
        try:
            yield
        except self._wandb.errors.CommError as error:
            raise Unavailable(f"wandb: {error}") from error

    def close(self) -> None:
        """End the run of our own, if there is one; what it was given is in a file of W&B's already."""
        if self._own is not None and self._run is None:
            self._own.finish()

    def _passes(self, error: Exception) -> bool:
        return isinstance(error, OSError | self._wandb.errors.CommError)

    @property
    def _open(self) -> Any:
        """The run that tables and alerts go to."""
        return self._run or self._begin()

    def _begin(self) -> Any:
        """The run next to yours: a number of its own for each process, as W&B counts rows from 0 in each."""
        if self._refused:
            raise self._refused
        if self._own is None:
            address, here = self._address, self._wandb
            replay = address.get("beside", "")
            try:
                self._own = here.init(
                    id=replay or f"{address['run']}-diag-{time.time_ns() // 1_000_000:x}",
                    name=f"{address['name']} diag",
                    **{name: address[name] or None for name in ("project", "entity", "group")},
                    dir=address["folder"],
                    mode=address["mode"],
                    job_type="diag",
                    config={OF: address["run"]},
                    resume="allow" if replay else "never",
                    reinit="create_new",
                    settings=here.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True),
                )
            except Exception as error:
                self._refused = None if self._passes(error) else error
                raise
            self._own.define_metric(STEP, hidden=True)
            self._own.define_metric(PREFIX + "*", step_metric=STEP)
        return self._own


def media(record: Record) -> Any:
    """`record` as W&B takes it."""
    wandb: Any = sys.modules["wandb"]
    if isinstance(record, Histogram):
        return wandb.Histogram(np_histogram=(record.counts, record.edges))
    if isinstance(record, Drawing):
        return wandb.Html(render_html(record.summary), inject=False)
    if isinstance(record, Table):
        return wandb.Table(columns=list(record.columns), data=[list(row) for row in record.rows])
    return record.value
