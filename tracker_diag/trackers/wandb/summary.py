"""W&B, beside your rows: tables and alerts, and a run of our own for the steps that found no row of yours."""

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracker_diag.errors import require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Drawing, Histogram, Record, Scalar, Table
from tracker_diag.report.painter import Painter
from tracker_diag.report.tables import TIMELINE, events_table, findings_table
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.tracker import Tracker

STEP = PREFIX + "step"
MORE = PREFIX + "more"
"""Key in the summary of your run: how many steps are in runs beside it."""

OF = "diag_of"
"""Setting of the run beside: the id of yours."""


class Beside(Tracker):
    """What a row of yours has no place for.

    Tables and alerts go to `run`, tables into its summary. Without it, in a process of `tracker-diag flush`, all goes
    into a run of its own, which begins with the first step and has an id that no other process takes.

    Args:
        address: of your run, as `WandbTracker.address` gives it.
        run: your run, while it is underway.
    """

    name = "wandb"

    def __init__(self, address: Mapping[str, str], run: Any = None) -> None:
        self._wandb: Any = require("wandb", "wandb")
        self._address, self._run = address, run
        self._own: Any = None
        self._refused: Exception | None = None
        """Why no run can be begun."""
        self.sent = 0
        """Rows and tables that W&B has taken."""
        self._rows: deque[dict[str, Any]] = deque()
        self._tables: dict[str, Table] = {}
        self._events: list[tuple[int, str]] = []
        self._files: dict[str, str] = {}
        self._painter = Painter()
        self._drawing: Drawing | None = None
        """The time line that is to be drawn next."""

    @property
    def address(self) -> Mapping[str, str]:
        return self._address

    @property
    def source(self) -> str:
        return self._address["source"]

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        self._tables |= {record.name: record for record in records if isinstance(record, Table)}
        self._drawing = next((record for record in records if isinstance(record, Drawing)), self._drawing)
        of_row = {record.name: media(record) for record in records if isinstance(record, Scalar | Histogram)}
        if of_row and (not self._rows or self._rows[-1][STEP] != step):
            self._rows.append({STEP: step})
        if of_row:
            self._rows[-1] |= of_row

    def standing(self, step: int, findings: Sequence[Finding]) -> None:
        table = findings_table(findings)
        self._tables[table.name] = table

    def alert(self, step: int, notice: Notice) -> None:
        run = self._run or self._begin()
        run.alert(notice.title, notice.text, level=notice.level.upper(), wait_duration=1)

    def event(self, step: int, event: str) -> None:
        self._events.append((step, event))
        table = events_table(self._events)
        self._tables[table.name] = table

    def file(self, name: str, text: str) -> None:
        self._files[PREFIX + name] = text

    def flush(self, *, last: bool = False) -> bool:
        while self._rows:
            self._begin().log(self._rows[0], commit=True)
            self._rows.popleft()
            self.sent += 1
        while self._tables:
            name, table = next(iter(self._tables.items()))
            try:
                (self._run or self._begin()).summary[name] = media(table)
            except Exception as error:
                if not self.temporary(error):  # as of a run that is over; making a table takes time
                    del self._tables[name]
                raise
            del self._tables[name]
            self.sent += 1
        while self._files:
            self._save(*next(iter(self._files.items())))
            self.sent += 1
        if self._drawing:
            drawing, self._drawing = self._drawing, None  # the next alert has another one
            picture = self._wandb.Image(self._painter.picture(drawing))
            (self._run or self._begin()).summary[drawing.name] = picture
        return True

    def _save(self, name: str, text: str) -> None:
        """Put a file among those of the run; W&B takes them from the run's own folder alone."""
        del self._files[name]  # whatever comes of it: a disk that takes nothing now would be asked for ever
        run = self._run or self._begin()
        file = Path(run.dir) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        run.save(str(file), base_path=run.dir, policy="now")

    def finish(self) -> None:
        """End the run beside, if there is one; what it was given lies in a file of W&B's already."""
        if self._own is not None:
            self._own.finish()

    def temporary(self, error: Exception) -> bool:
        return isinstance(error, self._wandb.errors.CommError) or super().temporary(error)

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        self._tables |= {table.name: table for table in (*tables, findings_table(summary.findings))}
        self._painter.close()
        self._drawing = None  # that of the end comes in its place
        self.flush(last=True)
        require("matplotlib", "wandb")
        from tracker_diag.report.figures import pixels, timeline_figure

        figure = timeline_figure(summary)
        if figure is not None:
            picture = self._wandb.Image(pixels(figure))
            (self._run or self._begin()).summary[TIMELINE] = picture

    def _begin(self) -> Any:
        """The run beside yours: a number of its own for each process, as W&B counts rows from 0 in each."""
        if self._refused:
            raise self._refused
        if self._own is None:
            of, here = self._address, self._wandb
            run_id = f"{of['run']}-diag-{time.time_ns() // 1_000_000:x}"
            try:
                self._own = here.init(
                    id=run_id,
                    name=f"{of['name']} diag",
                    project=of["project"] or None,
                    entity=of["entity"] or None,
                    group=of["group"] or None,
                    dir=of["folder"],
                    mode=of["mode"],
                    job_type="diag",
                    config={OF: of["run"]},
                    resume="never",
                    reinit="create_new",
                    settings=here.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True),
                )
            except Exception as error:
                self._refused = None if self.temporary(error) else error
                raise
            self._own.define_metric(STEP, hidden=True)
            self._own.define_metric(PREFIX + "*", step_metric=STEP)
        return self._own


def media(record: Scalar | Histogram | Table) -> Any:
    """`record` as W&B takes it."""
    wandb: Any = sys.modules["wandb"]
    if isinstance(record, Histogram):
        return wandb.Histogram(np_histogram=(record.counts, record.edges))
    if isinstance(record, Table):
        return wandb.Table(columns=list(record.columns), data=[list(row) for row in record.rows])
    return record.value
