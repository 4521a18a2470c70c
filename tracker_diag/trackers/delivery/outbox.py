"""Outbox: what a tracker gets, written by a thread of its own from a journal on disk.

Training pays for one line in a file. If the tracker is slow or down, lines wait there; if the process dies, they
wait for `tracker-diag flush`. Nothing is dropped but histograms, which are large: the oldest, and that is counted.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from tracker_diag.health import folder, open_in_forks, private
from tracker_diag.records import Record, Scalar
from tracker_diag.trackers.delivery.journal import Journal, base_of, journal_for
from tracker_diag.trackers.delivery.lines import LINED, entry_of, line_of, scalars_line
from tracker_diag.trackers.delivery.patience import EXIT_TIMEOUT, exit_timeout, jittered
from tracker_diag.trackers.tracker import RECORDS, Description, End, Entry, Refused, Tracker, asked, give, writing

MEMORY = 1000
"""Entries that are kept in memory where the disk takes none."""

PICTURES = 200
"""Steps whose histograms and tables may wait, in memory: they take about 7 kB a step."""

SHRINK = 1 << 20
"""Bytes of a journal from which on it starts afresh once all of it is delivered."""

REFUSALS = 100
"""Times that a tracker may refuse something in one go."""

CLOSE_WITHIN = 30.0
"""Seconds that it waits at most, for one that is slow; longer where the exit timeout is."""

SERIES = {"scalars", "metrics"}
"""Keys of entries of which there is one a step."""

RETRY, RETRY_AT_MOST = 0.5, 30.0
"""Seconds until a failed delivery is tried again: at first, and after many that brought nothing."""

GIVEN_UP = object()
"""In place of what an attempt returns that will never go well."""

There: TypeAlias = Mapping[int, Collection[str]]
"""Names of ours that a tracker has, by step."""


class Undelivered(TimeoutError):
    """What the tracker does not have at the end; the message says where it is."""


class Outbox(Tracker):
    """In front of `inner`: takes all that a tracker takes, at once, and never raises or waits but in `close`.

    Args:
        journal: that of a process that has died; else there is a new one.
        there: what the tracker has already of each step, by name, whatever the journal says.
    """

    def __init__(self, inner: Tracker, journal: Journal | None = None, there: There | None = None) -> None:
        self.name, self.inner, self.tally = inner.name, inner, inner.tally
        self.takes = (*inner.takes, End)  # type: ignore[misc]
        self._journal = journal
        if journal:
            journal.tally = self.tally
        self._there = there or {}
        self._memory: list[dict[str, Any]] = []
        """What the disk did not take; it comes after all that is in the journal."""
        self._given = 0
        """How many of these the tracker was handed; they stay until it is known that they have arrived."""
        self._pictures: dict[int, Sequence[Record]] = {}
        """By the number of their entry, the oldest first."""
        self._number = time.time_ns() // 1000  # distinct from those that an earlier process left
        self.new_locks()
        open_in_forks(self)
        self._thread: threading.Thread | None = None
        self._end: End | None = None
        self._report: Path | Exception | None = None
        """Where the report is until the tracker has it; or why it could not be kept."""
        self._deadline = self._latest = float("inf")
        self._patience = CLOSE_WITHIN
        self._pause = 0.0
        """Between two attempts at the end."""
        self._stop = False
        self._left_over = False
        """Whether a dead process left the journal."""
        self._hurry = False
        """Something that is not to wait for the tracker's pace is there, or is waited for."""
        self._handing: object = None
        """Number of the entry that is on its way to the tracker."""
        self._whole = False
        """All was delivered, and the tracker has the end, if there is one."""

    def new_locks(self) -> None:
        self._wake = threading.Condition()

    @property
    def address(self) -> Mapping[str, str]:
        return asked(self.inner, "address", {})

    @property
    def page(self) -> str:
        return asked(self.inner, "page", "")

    @property
    def source(self) -> str:
        return asked(self.inner, "source", "")

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        for entry in entries:
            if isinstance(entry, LINED):
                self._put({**line_of(entry), "step": step, "at": at})
        if records := [entry for entry in entries if isinstance(entry, RECORDS)]:
            pictures = [record for record in records if not isinstance(record, Scalar)]
            self._put(scalars_line(step, records, at), pictures)
        for entry in entries:
            if isinstance(entry, End):
                self._keep_report(entry)
                patience = exit_timeout()
                with self._wake:
                    self._end = self._end or entry
                    self._end_within(patience, max(patience, CLOSE_WITHIN))

    def drain(self, seconds: float) -> bool:
        """Deliver what waits and end, for a journal that a dead process left; whether all was delivered."""
        with self._wake:
            self._stop = self._left_over = True
            self._end_within(seconds, seconds)
        return self._finish()

    def _end_within(self, patience: float, at_most: float) -> None:
        """End after so many seconds, or once nothing got through for `patience`. It waits for nothing."""
        now, self._patience = time.monotonic(), patience
        self._latest, self._deadline = now + at_most, now + patience
        self._start()
        self._wake.notify()

    def wait(self, deadline: float) -> bool:
        """Wait until all that was given is delivered, until `deadline` (of `time.monotonic`); whether it is."""
        while self._waits and time.monotonic() < deadline:
            with self._wake:
                self._hurry = True
                self._wake.notify()
            time.sleep(0.02)
        return not self._waits

    def close(self) -> None:
        """Wait for what is underway, as long as something gets through; what is left then stays in the journal."""
        if self._ending:
            self._finish()
        else:  # the end could not be written
            self.drain(exit_timeout())

    def _finish(self) -> bool:
        if self._thread is None or self._thread.ident is None:
            self._work()
        else:
            before = self._progress()
            while self._thread.is_alive() and time.monotonic() <= self._deadline + 1:
                if (place := self._progress()) != before:
                    before, self._deadline = place, min(self._latest, time.monotonic() + self._patience)
                self._thread.join(0.05)
        with self._wake:
            if self._whole:
                return True
            lost = len({entry["step"] for entry in self._memory})
        self.tally.count("dropped_steps", lost)
        left = "every step was delivered, but not all of the report" if not self._waits else "not all was delivered"
        if self._waits and self._journal:
            left += f"; what is in {self._journal.path} waits for tracker-diag flush"
        left += f"; {lost} steps were in memory alone, and are lost" if lost else ""
        if isinstance(self._report, Path):
            left += f"; the report is in {self._report}; {EXIT_TIMEOUT} gives it longer"
        elif self._report:
            self.tally.failed(self._report)
        self.tally.failed(Undelivered(f"{self.name}: {left}"))
        return False

    def _keep_report(self, end: End) -> None:
        """Keep the report on disk until the tracker has it: we may be killed while we send it."""
        if End not in self.inner.takes or self._end:
            return
        file = folder().absolute() / f"report-{base_of(self.inner)}-{os.getpid()}.html"
        try:
            private(file, end.report)
        except Exception as error:  # noqa: BLE001  # the disk may be full
            self._report = error
        else:
            self._report = file

    @property
    def _waits(self) -> bool:
        return bool(self._memory) or (self._journal is not None and self._journal.undelivered)

    def _put(self, entry: dict[str, Any], pictures: Sequence[Record] = ()) -> None:
        with self._wake:
            self._number += 1
            entry["n"] = self._number
            self._hurry |= not entry.keys() & SERIES
            if pictures:
                self._pictures[self._number] = pictures
            while len(self._pictures) > PICTURES:
                oldest = self._pictures.pop(next(iter(self._pictures)))
                self.tally.count("dropped_histograms", len(oldest))
            self._start()
            if self._memory or self._journal is None:
                self._in_memory(entry)
            else:
                try:
                    self._journal.append(entry)
                except OSError as error:
                    self._spool_error(error)
                    self._in_memory(entry)
            self._wake.notify()

    def _spool_error(self, error: OSError) -> None:
        self.tally.count("spool_errors")
        self.tally.failed(error)

    def _in_memory(self, entry: dict[str, Any]) -> None:
        """Keep an entry that the disk did not take; where there are many the oldest scalars go, findings never."""
        self._memory.append(entry)
        if len(self._memory) > MEMORY:
            later = range(self._given + 1, len(self._memory))  # the one before may be on its way
            oldest = next((i for i in later if self._memory[i].keys() & SERIES), None)
            if oldest is not None:
                del self._memory[oldest]
                self.tally.count("dropped_steps")

    def _start(self) -> None:
        if self._thread is None:
            try:
                self._journal = self._journal or journal_for(self.inner)
            except OSError as error:
                self._spool_error(error)
            # A daemon: unlike an executor's it still works in `atexit`, when a run that nobody closed is closed.
            self._thread = threading.Thread(target=self._work, name=f"tracker_diag-{self.name}", daemon=True)
            with contextlib.suppress(RuntimeError):  # none starts in `atexit` from Python 3.12 on: `_finish` works
                self._thread.start()

    def _work(self) -> None:
        with writing():
            self._deliver_all()

    def _deliver_all(self) -> None:
        pause, failed, place = 0.0, False, self._progress()
        while True:
            with self._wake:
                if failed:  # what arrives meanwhile is no reason to try again sooner
                    left = max(0.0, self._deadline - time.monotonic())
                    self._wake.wait_for(lambda: self._ending, min(jittered(pause), left))
                elif pause:
                    self._wake.wait(pause)
                else:
                    self._wake.wait_for(lambda: self._waits or self._ending)
                    self._wake.wait_for(self._is_due, self.inner.pace)
                    self._hurry = False
                if self._ending and (not self._waits or time.monotonic() > self._deadline):
                    break
            try:
                pause, failed = (0.0 if self._deliver() else RETRY), False
            except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
                before, place = place, self._progress()
                pause, failed = (min(RETRY_AT_MOST, 2 * pause) if failed and place == before else RETRY), True
                self._failed(error)
        at_end = self._end is None or (not self._waits and self._write_end(self._end))
        with self._wake:
            self._whole = at_end and not self._waits
            if self._journal:
                self._journal.close(keep=self._waits)

    def _progress(self) -> tuple[object, int, bool]:
        """Something else than before, if anything was delivered since: the entry that failed, what the tracker took.

        How far the journal was read tells nothing: a tracker that collects takes entries while its server is down.
        """
        return self._handing, self.inner.sent, self._waits

    def _failed(self, error: Exception) -> None:
        """Count what may go well later; at the end, pause."""
        self.tally.failed(error)
        if self._ending:
            self._pause = min(2 * self._pause, 8 * RETRY) if self._pause else RETRY
            time.sleep(max(0.0, min(jittered(self._pause), self._deadline - time.monotonic())))

    def _write_end(self, end: End) -> bool:
        """Write the end and flush the tracker until all is there, or until the deadline; then close it."""
        refused, whole = 0, False
        given = self._attempt(partial(give, self.inner, end.summary.last_step or 0, [end]), again=()) is not GIVEN_UP
        while not whole and refused < REFUSALS and time.monotonic() <= self._deadline:
            try:
                whole = bool(self.inner.flush(last=True))
                time.sleep(0.0 if whole else 0.05)
            except OSError as error:  # noqa: PERF203
                self._failed(error)
            except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
                refused += 1
                self.tally.failed(error)
        if whole and isinstance(self._report, Path):
            if refused or not given:
                left = f"it refused a part of the end; the report is in {self._report}"
                self.tally.failed(Undelivered(f"{self.name}: {left}"))
            else:
                with contextlib.suppress(OSError):
                    self._report.unlink()
        self._attempt(self.inner.close, again=())
        return whole

    def _is_due(self) -> bool:
        """Whether the tracker's pace is no reason to wait: for a chart, and not for an alert."""
        return self._hurry or self._ending or len(self._pictures) > PICTURES // 2

    @property
    def _ending(self) -> bool:
        return self._end is not None or self._stop

    def _deliver(self) -> bool:
        """Hand on what waits; whether all of it has arrived."""
        for entry in self._upcoming():
            if self.inner.full or time.monotonic() > self._deadline:
                break
            self._handing = entry.get("n")
            self._attempt(partial(self._hand, entry))
        self._handing = None
        if not self._arrives():
            return False
        with self._wake:
            del self._memory[: self._given]
            self._given = 0
            if self._journal:
                self._journal.delivered()
                if not self._journal.undelivered and self._journal.size > SHRINK:
                    self._journal.restart()
        return not (self._journal and self._journal.unread)

    def _upcoming(self) -> Iterator[dict[str, Any]]:
        """What waits, in order; each entry counts as given once the next is asked for."""
        if self._journal:
            for place, entry in self._journal.entries():
                yield entry
                self._journal.given = place
        while True:
            with self._wake:
                if (self._journal and self._journal.unread) or self._given == len(self._memory):
                    return
                entry = self._memory[self._given]
            yield entry
            self._given += 1

    def _arrives(self) -> bool:
        """Flush the tracker; whether all that it was given arrived: not where one thing after another is refused."""
        for _ in range(REFUSALS):
            arrived = self._attempt(lambda: self.inner.flush(last=self._ending))
            if arrived is not GIVEN_UP:
                return bool(arrived)
        return False

    def _hand(self, line: Mapping[str, Any]) -> None:
        """Give one line to the tracker; some lines only say how far all was delivered."""
        step, at = line.get("step", 0), line.get("at", 0.0)
        if "damaged" in line:
            self.tally.count("damaged_lines")
            raise Refused(f"{self.name}: a damaged line in {self._journal and self._journal.path} is left out")
        if "scalars" not in line:
            if "sent" not in line:
                entry = entry_of(line)
                if isinstance(entry, Description) and self._left_over:
                    entry = replace(entry, over=False)  # the report is not sent with it
                give(self.inner, step, [entry], at)
            return
        known, number = self._there.get(step, ()), line["n"]
        scalars = [Scalar(name, value) for name, value in line["scalars"].items() if name not in known]
        if known and not scalars:
            return
        with self._wake:
            pictures = self._pictures.pop(number, ())
        try:
            self.inner.write(step, [*scalars, *pictures], at)
        except OSError:
            if pictures:
                with self._wake:
                    self._pictures = {number: pictures, **self._pictures}
            raise

    def _attempt(self, call: Callable[[], object], again: type[OSError] | tuple[()] = OSError) -> object:
        """`call()`; what is to be tried `again` is raised. All else is counted, and gives `GIVEN_UP`."""
        try:
            return call()
        except again:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
            self.tally.failed(error)
            return GIVEN_UP
