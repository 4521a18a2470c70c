"""W&B: scalars, histograms, tables and alerts, in the run that exists.

W&B has one open row, which every call without a commit goes into. A call of ours with a step of its own could drop
a row of yours, and one that commits would cut one in two; so ours go into whatever row is open, one step a row,
and `diag/step` says which step they are of.
"""

import shlex
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracker_diag.backends.base import Backend, is_a
from tracker_diag.errors import DiagError, require
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Histogram, Record, Table
from tracker_diag.report.console import near
from tracker_diag.report.tables import events_table, findings_table
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary

STEP = PREFIX + "step"

ALONE = 20
"""Steps of ours that wait for a first row of yours; a run that then has none is ours alone."""


class WandbBackend(Backend):
    """Writes into `run`, a `wandb.Run` that is underway, and never finishes it."""

    name = "wandb"

    def __init__(self, run: Any) -> None:
        self._wandb: Any = require("wandb", "wandb")
        self.run = run
        self._goes_on = False
        self._rows: deque[dict[str, Any]] = deque()
        self._tables: dict[str, Table] = {}
        self._events: list[tuple[int, str]] = []
        self._used: int | None = None
        """The row that our last step went into."""
        self._last: int | None = None
        """That step; what comes of it later may go into the same row."""
        self._ours = 0
        self.first = row_of(run)
        """Number of the row that was open when we came; None in shared mode."""
        # No summary= here: on a glob it would corrupt the summaries of histograms.
        run.define_metric(STEP, hidden=True)
        run.define_metric(PREFIX + "*", step_metric=STEP)

    @classmethod
    def of(cls, target: object, *, run_id: str | None = None) -> Backend | None:
        """For a run, or for the `wandb` module, that is for its current run.

        Raises:
            DiagError: no run is underway.
        """
        wandb = sys.modules.get("wandb")
        if wandb is not None and target is wandb:
            backend = cls.underway()
            if backend is None:
                raise DiagError("wandb: no run is underway, expected one; call wandb.init() before wrap(wandb)")
            return backend
        return cls(target) if is_a(target, "wandb", "Run") else None

    @classmethod
    def underway(cls) -> Backend | None:
        run = getattr(sys.modules.get("wandb"), "run", None)
        return None if run is None else cls(run)

    @classmethod
    @contextmanager
    def reopened(cls, address: Mapping[str, str]) -> Generator[Backend]:
        wandb: Any = require("wandb", "wandb")
        place = {"project": address["project"], "entity": address["entity"] or None}
        with wandb.init(id=address["run"], resume="must", **place) as run:
            yield cls(run)

    @property
    def address(self) -> Mapping[str, str]:
        return {"run": self.run.id, "project": self.run.project, "entity": self.run.entity or ""}

    @property
    def page(self) -> str:
        if self.run.offline:  # W&B warns whoever asks such a run for its address
            return f"wandb sync {shlex.quote(self.source)}"
        return str(self.run.url or "")

    @property
    def source(self) -> str:
        return near(Path(self.run.dir).parent) if self.run.offline else f"wandb:{self.run.path}"

    @property
    def config(self) -> Mapping[str, object]:
        settings: Mapping[str, object] = self.run.config.as_dict()
        return settings

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        if not records:
            return
        if not self._rows or self._rows[-1][STEP] != step:
            self._rows.append({STEP: step})
        self._rows[-1] |= {record.name: self._media(record) for record in records}

    def standing(self, step: int, findings: Sequence[Finding]) -> None:
        table = findings_table(findings)
        self._tables[table.name] = table  # rarely, since a table waits for the server

    def alert(self, step: int, notice: Notice) -> None:
        self.run.alert(notice.title, notice.text, level=notice.level.upper(), wait_duration=1)

    def event(self, step: int, event: str) -> None:
        self._events.append((step, event))
        table = events_table(self._events)
        self._tables[table.name] = table

    def flush(self, *, last: bool = False) -> bool:
        return self._write(appending=last and not self._goes_on) or last

    def until_finish(self, ended: Callable[[], None]) -> None:
        """The run may be logged to after `close`, by steps of its own: have `ended` called just before it is finished.

        What then still waits for a row is appended by `append`. Where this W&B has no hook for that, `close` does it.
        """
        self._goes_on = before_finish(self.run, ended)

    def append(self) -> None:
        """Append what still waits for a row, now that nothing of yours comes after it."""
        self._write(appending=True)

    def _write(self, *, appending: bool) -> bool:
        """Write one step a row; whether none is left."""
        while self._rows:
            self._log({})  # a run that is finished says so here, and only after 30 s when asked for its row
            row = row_of(self.run)
            if row is not None and row != self._used and self._rows[0][STEP] == self._last and not appending:
                # The row of its step was closed in between: the next step's takes what that has not itself.
                if len(self._rows) == 1:
                    return False
                late = self._rows.popleft()
                self._rows[0] = late | self._rows[0]
            # A second step of ours would overwrite the first.
            if row is not None and row == self._used and self._rows[0][STEP] != self._last:
                if not (appending or self._alone(row)):
                    return False
                self._log({}, commit=True)
                self._ours += 1
            self._log(self._rows[0], commit=row is None)  # in shared mode each call is a row of its own
            self._last = self._rows.popleft()[STEP]
            self._used = row_of(self.run)
        while self._tables:  # W&B itself adds our latest step, where a row has none yet
            name, table = self._tables.popitem()
            self.run.log({name: self._media(table)}, commit=False)
        return True

    def _log(self, data: dict[str, Any], *, commit: bool = False) -> None:
        try:
            self.run.log(data, commit=commit)
        except Exception as error:
            if not self.temporary(error):
                self._rows.popleft()  # it would hold up all that come after it
            raise

    def _alone(self, row: int) -> bool:
        """Whether nobody but us has written into this run since we came."""
        return self.first is not None and row == self.first + self._ours and len(self._rows) > ALONE

    def temporary(self, error: Exception) -> bool:
        return isinstance(error, self._wandb.errors.CommError) or super().temporary(error)

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        self._tables |= {table.name: table for table in (*tables, findings_table(summary.findings))}
        if not self._rows:  # else they come after those, in `append`
            self._write(appending=False)

    def _media(self, record: Record) -> Any:
        if isinstance(record, Histogram):
            return self._wandb.Histogram(np_histogram=(record.counts, record.edges))
        if isinstance(record, Table):
            return self._wandb.Table(columns=list(record.columns), data=[list(row) for row in record.rows])
        return record.value


def before_finish(run: Any, call: Callable[[], None]) -> bool:
    """Have `call` run just before `run` is finished, by whoever; False where this W&B has no hook for that."""
    try:
        from wandb.sdk.wandb_run import TeardownHook, TeardownStage

        run._teardown_hooks.append(TeardownHook(call, TeardownStage.EARLY))  # noqa: SLF001  # there is no other way
    except (ImportError, AttributeError):
        return False
    return True


def row_of(run: Any) -> int | None:
    """Number of the row that the next call goes into; None in shared mode, where W&B has none."""
    try:
        step: int = run.step
    except Exception:  # noqa: BLE001  # whatever it is, the call itself is to say it
        return None
    return step
