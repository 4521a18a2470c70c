"""W&B: scalars and histograms in your rows, tables and alerts in the run that exists.

The rows of a run are yours. We never create or close one, and never change its number. The diagnostics of a step go
into the row of your call that evaluates it, or of your next one. `diag/step` says which step it is. If you observe more
steps than you log rows, the other steps wait on disk until the end. Another process then brings them to a run of its
own: `SummaryTracker`. No run is begun in your process, as W&B might take it for yours.
"""

import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracker_diag.errors import DiagError, require
from tracker_diag.health import open_in_forks
from tracker_diag.hooks import Unlocked, all_off, before
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.records import Histogram, Scalar
from tracker_diag.report.console import near
from tracker_diag.trackers.delivery.journal import Journal, journal_for
from tracker_diag.trackers.delivery.kept import Kept
from tracker_diag.trackers.delivery.lines import scalars_line
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.delivery.patience import exit_timeout
from tracker_diag.trackers.tracker import (
    Address,
    End,
    Entry,
    Listener,
    Metrics,
    Name,
    Off,
    Tracker,
    is_a,
    on_begin,
    writing,
    writing_of_ours,
)
from tracker_diag.trackers.wandb import listen
from tracker_diag.trackers.wandb.read import finished_address, list_wandb, read_wandb_api
from tracker_diag.trackers.wandb.summary import STEP, SummaryTracker, media

ABOUT_THE_SERVER = ("API_KEY", "BASE_URL", "IDENTITY_TOKEN_FILE", "SILENT", "ERROR_REPORTING")
SAME = {f"WANDB_{name}" for name in (*ABOUT_THE_SERVER, "CONFIG_DIR", "CACHE_DIR", "DATA_DIR")}
"""Settings of the environment that are not about your run, or about the sweep that it belongs to."""


class WandbTracker(Tracker):
    """Writes into `run`, a `wandb.Run` that is underway, and never finishes it.

    The thread that logs writes rows, as W&B takes them at once and keeps them in its own process.
    """

    name = "wandb"
    takes = (Metrics, *SummaryTracker.takes)
    library = "wandb"
    local = True
    read = staticmethod(read_wandb_api)
    runs = staticmethod(list_wandb)

    def __init__(self, run: Any) -> None:
        require("wandb", "wandb")
        self.run = run
        self._listener: Listener | None = None  # hears each row of yours before W&B does
        self._row: int | None = None
        """Number of the row that your next call goes into; None in shared mode, where each call has one of its own."""
        self._closing: int | None = None
        """Number of the row that your call, which is about to be made, closes if it goes into another."""
        self._waiting: deque[_Step] = deque()
        """What came after your last call: a step, or two where the first is what came late of one that has its row."""
        self.new_locks()
        open_in_forks(self)
        self._used: tuple[int | None, int | None] = None, None
        """The row that our last step went into, or would have, and the step."""
        self._evaluated: int | None = None
        self._hearing = False
        self._more: Journal | None = None  # the steps that found no row of yours
        self._steps_more = 0
        self._process = os.getpid()
        self._rest = Outbox(SummaryTracker(address_of(run), run))
        self.tally = self._rest.tally
        self._kept = Kept(self._rest.inner)
        """W&B loses its last rows when the process is killed: it writes blocks of 32 KiB."""
        self._off: Off | None = None

    def new_locks(self) -> None:
        self._lock = threading.RLock()  # of what waits; nothing is called while it is held

    @classmethod
    def find(cls, target: object = None, *, run_id: str | None = None) -> Tracker | None:
        """For a run, or for the `wandb` module, that is for its current run.

        Raises:
            DiagError: no run is underway.
        """
        if isinstance(target, Name):
            target = finished_address(target, f"{cls.name}:{target}")
        if isinstance(target, Address):
            return SummaryTracker(target)
        module = sys.modules.get("wandb")
        run: Any = getattr(module, "run", None)
        if target is None:
            return None if run is None or run.disabled else cls(run)  # a disabled one keeps nothing
        if target is module:
            if run is None:
                raise DiagError("wandb: no run is underway, expected one; call wandb.init() before wrap(wandb)")
        elif is_a(target, "wandb", "Run"):
            run = target
        else:
            return None
        return DisabledRun(run) if run.disabled else cls(run)

    @classmethod
    def watch(cls, begun: Callable[[Tracker], None]) -> Off:
        return on_begin(sys.modules["wandb"], lambda run: None if run.disabled else begun(cls(run)))

    @property
    def address(self) -> Mapping[str, str]:
        return self._rest.inner.address

    @property
    def page(self) -> str:
        if self.run.offline:  # W&B warns if such a run is asked for its address
            return f"wandb sync {shlex.quote(self.source)}"
        return str(self.run.url or "")

    @property
    def source(self) -> str:
        return near(self._rest.source) if self.run.offline else self._rest.source

    @property
    def config(self) -> Mapping[str, object]:
        settings: Mapping[str, object] = self.run.config.as_dict()
        return settings

    def listen(self, listener: Listener | None) -> Off:
        if self._off is None:
            with suppress(Exception):  # what it is, your own call is to say
                self._row = self.run.step
            # No summary= here: on a glob it would corrupt the summaries of histograms.
            self.run.define_metric(STEP, hidden=True)
            self.run.define_metric(PREFIX + "*", step_metric=STEP)
            self._off = listen.on_log(self.run, self._logged, self.tally.failed)
        if listener is None:
            return super().listen(None)
        self._listener = listener
        return listen.on_end(self.run, listener)

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        if any(isinstance(entry, Metrics) for entry in entries):
            self._evaluated = step
        of_row = [entry for entry in entries if isinstance(entry, Scalar | Histogram)]
        # An upload that goes wrong would take your row's other values of ours.
        rest = [entry for entry in entries if not isinstance(entry, Metrics | Scalar | Histogram | End)]
        if rest:
            self._rest.write(step, rest, at)
        if of_row:
            self._write_row(step, of_row, at)
        for entry in entries:
            if isinstance(entry, End):
                self._end(step, entry, at)

    def _write_row(self, step: int, of_row: "list[Scalar | Histogram]", at: float) -> None:
        with self._lock:
            if self._waiting and self._waiting[-1].step == step:
                self._waiting[-1].records.extend(of_row)
            else:
                self._waiting.append(_Step(step, of_row, at))
            first = self._waiting[0]
            late = first.held or first.step == self._used[1]  # your next row is for it, and what comes then waits
            many = len(self._waiting) - (2 if late and self._hearing else 1)
            earlier = [self._waiting.popleft() for _ in range(many)]
            used, is_open = self._used, self._row if self._closing is None else self._closing
        if error := self._kept.keep(step, of_row, at):
            self.tally.failed(error)
        for missed in earlier:
            self._put_by(missed)
        if self._row is None or (is_open, step) == used:
            self._join(is_open, None)  # none is yours, or it is open still

    def _end(self, step: int, end: End, at: float) -> None:
        if self._off:
            self._off()
            self._off = None
        with self._lock:
            waiting = [*self._waiting]
            self._waiting.clear()
            # A single one is put into the summary, unless a row that is open still comes after it.
            alone = not self._more and len(waiting) == 1 and (self._row is None or self._row != self._used[0])
        if alone:
            try:
                with writing():
                    self.run.summary.update(waiting[0].as_row())
                waiting.clear()
            except Exception as error:  # noqa: BLE001  # the run may be over
                self.tally.failed(error)
        for missed in waiting:
            self._put_by(missed)
        self._rest.write(step, [end], at)

    def close(self) -> None:
        self._rest.close()
        self._kept.close()
        if self._more:
            self._more.close(keep=True)
            self._bring(self._more.path)
            self._more = None

    def _put_by(self, missed: "_Step") -> None:
        self.tally.count("dropped_histograms", sum(not isinstance(record, Scalar) for record in missed.records))
        self._steps_more += 1
        try:
            if self._more is None:
                self._more = journal_for(self._rest.inner, "-more")
            self._more.append(scalars_line(missed.step, missed.records, missed.at))
        except OSError as error:
            self.tally.failed(error)
            self.tally.count("dropped_steps")

    def _bring(self, path: Path) -> None:
        """Have another process bring `path` to a run next to yours; it may take longer than an exit does."""
        known = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_") or name in SAME}
        command = [sys.executable, "-c", "from tracker_diag.cli.app import app; app()", "flush", str(path)]
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        child = subprocess.Popen(command, env=known, start_new_session=True, **quiet)  # noqa: S603  # our own
        try:
            child.wait(exit_timeout())
        except subprocess.TimeoutExpired:
            left = f"{self._steps_more} steps are still on their way; if they do not come: tracker-diag flush {path}"
            self.tally.failed(TimeoutError(f"wandb: {left}"))

    def _logged(self, given: Mapping[str, Any]) -> None:
        """A call of `Run.log` is about to be made."""
        data, step, commit = given["data"], given.get("step"), given.get("commit")
        if writing_of_ours() or os.getpid() != self._process:
            return
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            return  # W&B raises, and there is no row
        with self._lock:
            row = late = None
            if self._row is not None:  # asking W&B for it would take a message to a process
                late = step is not None and step < self._row
                row = self._row if step is None else max(self._row, step)
                self._closing = self._row if self._listener else None
                self._row = self._row if late else row + (step is None if commit is None else bool(commit))
        if self._listener:
            self._hearing = True
            try:
                self._listener.hear(data, step, row)
            finally:
                self._hearing, self._closing = False, None
        if not late:
            self._join(row, step)

    def _join(self, row: int | None, step: int | None) -> None:
        """Put the step that waits into `row`, which your call then goes into, or went into."""
        with self._lock:
            taken = row is not None and row == self._used[0]
            if not self._waiting and not taken:
                self._used = row, self._evaluated  # what comes of it while the row is open goes there
            if not self._waiting or (taken and self._waiting[0].step != self._used[1]):
                return  # a second step of ours would overwrite the first
            joined = self._waiting.popleft()
            self._used = row, joined.step
            for other in self._waiting:
                other.held = True
        with writing():
            self.run.log(joined.as_row(), step=step, commit=row is None)


class DisabledRun(Tracker):
    """A run of `mode="disabled"`: your calls are heard, so that rules see your metrics. W&B keeps nothing of it."""

    name = "wandb"
    takes = ()
    local = True

    def __init__(self, run: Any) -> None:
        self.run = run
        self._row = 0
        self._off: Off | None = None
        self._listener: Listener | None = None

    @property
    def key(self) -> tuple[str, object]:
        return self.name, self.run.id

    @property
    def config(self) -> Mapping[str, object]:
        settings: Mapping[str, object] = self.run.config.as_dict()
        return settings

    def listen(self, listener: Listener | None) -> Off:
        if listener is None:
            return super().listen(None)
        self._listener = listener
        self._off = listen.on_log(self.run, self._logged, self.tally.failed)
        # Such a run has no teardown: a `with` block calls this alone.
        own = Unlocked(listener.record)
        left = [before(self.run, "_finish", (), lambda _: listener.end(), own)] if hasattr(self.run, "_finish") else []
        return all_off(listen.on_end(self.run, listener), *left)

    def _logged(self, given: Mapping[str, Any]) -> None:
        data, step, commit = given["data"], given.get("step"), given.get("commit")
        if self._listener and isinstance(data, Mapping):
            row = self._row if step is None else step
            self._row = row + (step is None if commit is None else bool(commit))
            self._listener.hear(data, step, row)

    def close(self) -> None:
        if self._off:
            self._off()
            self._off = None


@dataclass
class _Step:
    step: int
    records: list[Scalar | Histogram]
    at: float
    held: bool = False  # a row of yours was there, and an earlier step took it

    def as_row(self) -> dict[str, Any]:
        return {STEP: self.step} | {record.name: media(record) for record in self.records}


def address_of(run: Any) -> dict[str, str]:
    """What it takes to begin a second run next to `run`, also long after."""
    return {
        "run": run.id,
        "name": run.name or run.id,
        "project": run.project or "",
        "entity": run.entity or "",
        "group": run.group or "",
        "folder": str(Path(run.dir).parents[2]),
        "mode": "offline" if run.offline else "online",
        "source": str(Path(run.dir).parent.absolute()) if run.offline else f"wandb:{run.path}",
    }
