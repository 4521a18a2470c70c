"""Outbox: what a tracker gets, written by a thread of its own from a journal on disk.

Training pays for one line in a file. If the tracker is slow or down, lines wait there; if the process dies, they
wait for `tracker-diag flush`. Nothing is dropped but histograms, which are large: the oldest, and that is counted.
"""

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from tracker_diag.health import open_in_forks
from tracker_diag.records import Record, Scalar, Table
from tracker_diag.rules.alerts import Identity, Notice, identity
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.model import Rule
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.delivery.journal import Journal, journal_for
from tracker_diag.trackers.delivery.memory import Memory
from tracker_diag.trackers.delivery.patience import exit_timeout, jittered
from tracker_diag.trackers.delivery.pictures import Pictures
from tracker_diag.trackers.tracker import Refused, Tracker, writing

MEMORY = 1000
"""Entries that are kept in memory where the disk takes none."""

REFUSALS = 100
"""Times that a tracker may refuse something in one go."""

CLOSE_WITHIN = 30.0
"""Seconds that it waits at most, for one that is slow."""

RETRY, RETRY_AT_MOST = 0.5, 30.0
"""Seconds until a failed delivery is tried again: at first, and after many that brought nothing."""


There: TypeAlias = Mapping[int, Collection[str]]
"""Names of ours that a tracker has, by step."""


class Outbox(Tracker):
    """Stands before `inner`: takes all that a tracker takes, at once, and never raises or waits but in `close`.

    Args:
        journal: that of a process that has died; else there is a new one.
        there: what the tracker has already of each step, by name, whatever the journal says.
    """

    def __init__(self, inner: Tracker, journal: Journal | None = None, there: There | None = None) -> None:
        self.name, self.inner = inner.name, inner
        self._journal = journal
        self._there = there or {}
        self._memory = Memory()
        """What the disk did not take; it comes after all that is in the journal."""
        self._pictures = Pictures()
        self._number = time.time_ns() // 1000  # distinct from those that an earlier process left
        self._known: dict[Identity, Finding] = {}
        self._changed: int | None = None
        """Step of a finding that `standing` has not been told of yet."""
        self.new_locks()
        open_in_forks(self)
        self._errors: deque[Exception] = deque(maxlen=100)
        self._counts: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._end: tuple[Summary, Sequence[Table]] | None = None
        self._deadline = self._latest = float("inf")
        self._patience = CLOSE_WITHIN
        self._pause = 0.0
        """Between two attempts at the end."""
        self._stop = False
        self._handing: object = None
        """Number of the entry that is on its way to the tracker."""
        self._told = False
        """The tracker's end was told, or there is none to tell."""
        self._whole = False
        """All was delivered, and the tracker's end was told."""

    def new_locks(self) -> None:
        self._wake = threading.Condition()

    @property
    def address(self) -> Mapping[str, str]:
        return self.inner.address

    @property
    def page(self) -> str:
        return self.inner.page

    @property
    def source(self) -> str:
        return self.inner.source

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.inner.hears("metrics"):
            self._put({"metrics": dict(metrics), "step": step})

    def log(self, step: int, records: Sequence[Record], at: float) -> None:
        if self.inner.hears("log"):
            scalars = {record.name: record.value for record in records if isinstance(record, Scalar)}
            pictures = [record for record in records if not isinstance(record, Scalar)]
            self._put({"scalars": scalars, "step": step, "at": at}, pictures)

    def finding(self, step: int, finding: Finding) -> None:
        if self.inner.hears("finding", "standing"):
            rule = finding.rule.model_dump(mode="json", by_alias=True)
            self._put({"finding": finding.state_dict(), "rule": rule, "step": step}, keep=True)

    def alert(self, step: int, notice: Notice) -> None:
        if self.inner.hears("alert"):
            self._put({"alert": [notice.level, notice.title, notice.text], "step": step})

    def event(self, step: int, event: str) -> None:
        if self.inner.hears("event"):
            self._put({"event": event, "step": step})

    def file(self, name: str, text: str) -> None:
        if self.inner.hears("file"):
            self._put({"file": name, "text": text})

    def errors(self) -> Sequence[Exception]:
        with self._wake:
            found = list(self._errors)
            self._errors.clear()
        return found

    def counts(self) -> Mapping[str, int]:
        with self._wake:
            found, self._counts = self._counts, Counter()
        return found

    def close(self, summary: Summary, tables: Sequence[Table]) -> None:
        """Deliver what waits and end, as long as something gets through; what is left then stays in the journal."""
        self.end(summary, tables)
        self._finish()

    def end(self, summary: Summary, tables: Sequence[Table]) -> None:
        """Say that nothing comes after this, and wait for nothing; `close` then waits."""
        with self._wake:
            if self._end is None:
                now, self._patience = time.monotonic(), min(exit_timeout(), CLOSE_WITHIN)
                self._latest, self._deadline = now + CLOSE_WITHIN, now + self._patience
                self._end = summary, tables
                self._start()
                self._wake.notify()

    def drain(self, seconds: float) -> bool:
        """Deliver what waits and end, for a journal that a dead process left; whether all was delivered."""
        with self._wake:
            self._stop, self._patience = True, seconds
            self._deadline = self._latest = time.monotonic() + seconds
            self._start()
            self._wake.notify()
        return self._finish()

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
            self._counts["dropped_steps"] += (lost := self._memory.steps)
            left = f"; what is in {self._journal.path} waits for tracker-diag flush" if self._journal else ""
            left += f"; {lost} steps were in memory alone, and are lost" if lost else ""
            every = "every step was delivered, but not all of the report at the end"
            self._errors.append(
                TimeoutError(f"{self.name}: {f'not all was delivered{left}' if self._waits else every}")
            )
        return False

    @property
    def _waits(self) -> bool:
        return bool(self._memory) or (self._journal is not None and self._journal.undelivered)

    def _put(self, entry: dict[str, Any], pictures: Sequence[Record] = (), *, keep: bool = False) -> None:
        with self._wake:
            self._number += 1
            entry["n"] = self._number
            if pictures and (dropped := self._pictures.add(self._number, pictures)):
                self._counts["dropped_histograms"] += dropped
            self._start()
            if self._memory or not self._on_disk(entry, keep=keep):
                self._counts["dropped_steps"] += self._memory.append(entry, MEMORY)
            self._wake.notify()

    def _on_disk(self, entry: dict[str, Any], *, keep: bool) -> bool:
        if self._journal is None:
            return False
        try:
            self._journal.append(entry, keep=keep)
        except OSError as error:
            self._counts["spool_errors"] += 1
            self._errors.append(error)
            return False
        return True

    def _start(self) -> None:
        if self._thread is None:
            self._open()
            # A daemon: unlike an executor's it still works in `atexit`, when a run that nobody closed is closed.
            self._thread = threading.Thread(target=self._work, name=f"tracker_diag-{self.name}", daemon=True)
        if self._thread.ident is None:
            with contextlib.suppress(RuntimeError):  # none starts in `atexit` from Python 3.12 on: see `_finish`
                self._thread.start()

    def _open(self) -> None:
        if self._journal is None:
            try:
                self._journal = journal_for(self.inner)
            except OSError as error:
                self._counts["spool_errors"] += 1
                self._errors.append(error)
        if self._journal:
            for entry in self._journal.kept():
                self._attempt(partial(self._remember, entry))  # one of another version is told, and left out
            self._tell_damage(self._journal)

    def _tell_damage(self, journal: Journal) -> None:
        with self._wake:
            if journal.damaged:
                self._counts["damaged_lines"] += journal.damaged
                told = f"{self.name}: {journal.damaged} damaged lines, put aside in {journal.aside}"
                self._errors.append(Refused(told))
                journal.damaged = 0

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
                    self._wake.wait_for(lambda: self._ending or self._pictures.crowded, self.inner.pace)
                if self._ending and (not self._waits or time.monotonic() > self._deadline):
                    break
            try:
                pause, failed = (0.0 if self._deliver() else RETRY), False
            except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
                before, place = place, self._progress()
                pause, failed = (min(RETRY_AT_MOST, 2 * pause) if failed and place == before else RETRY), True
                self._failed(error)
        self._told = self._end is None or (not self._waits and self._tell_end(*self._end))
        with self._wake:
            self._whole = self._told and not self._waits
            if self._journal:
                self._journal.close(keep=self._waits)

    def _progress(self) -> tuple[object, int, bool]:
        """Something else than before, if anything was delivered since: the entry that failed, what the tracker took.

        How far the journal was read tells nothing: a tracker that collects takes entries while its server is down.
        """
        return self._handing, self.inner.sent, self._waits

    def _failed(self, error: Exception) -> None:
        """Count what may go well later; at the end, pause."""
        with self._wake:
            self._errors.append(error)
        if self._ending:
            self._pause = min(2 * self._pause, 8 * RETRY) if self._pause else RETRY
            time.sleep(max(0.0, min(jittered(self._pause), self._deadline - time.monotonic())))

    def _tell_end(self, summary: Summary, tables: Sequence[Table]) -> bool:
        """`close` of the tracker, then `flush` for what that could not bring, until the deadline."""
        call: Callable[[], object] = partial(self.inner.close, summary, tables)
        refused = 0
        while refused < REFUSALS:
            try:
                call()
            except Exception as error:  # noqa: BLE001, PERF203  # whatever a tracker raises is to be counted
                call = partial(self.inner.flush, last=True)
                if self._lasting(error):
                    refused += 1
                    with self._wake:
                        self._errors.append(error)
                    continue
                self._failed(error)
                if time.monotonic() > self._deadline:
                    return False
            else:
                return True
        return False

    @property
    def _ending(self) -> bool:
        return self._end is not None or self._stop

    def _deliver(self) -> bool:
        """Hand on what waits; whether all of it has arrived."""
        journal = self._journal
        if journal:
            waiting = journal.read()
            self._tell_damage(journal)
            for place, entry in waiting:
                if self.inner.full:
                    break
                self._handing = entry.get("n")
                self._attempt(partial(self._hand, entry))
                journal.given = place
        if journal is None or not journal.unread:
            for entry in self._memory.read():
                if self.inner.full:
                    break
                self._handing = entry["n"]
                self._attempt(partial(self._hand, entry))
                self._memory.given += 1
        self._handing = None
        if self._changed is not None:
            step, known = self._changed, tuple(self._known.values())
            self._attempt(lambda: self.inner.standing(step, known))
            self._changed = None
        arrived = self._arrives()
        if arrived:
            with self._wake:
                self._memory.delivered()
                if journal:
                    journal.delivered()
                    journal.shrink()
        return arrived and not (journal and journal.unread)

    def _arrives(self) -> bool:
        """Flush the tracker; whether all that it was given arrived: not where one thing after another is refused."""
        for _ in range(REFUSALS):
            arrived = self._attempt(lambda: self.inner.flush(last=self._ending))
            if arrived is not None:
                return bool(arrived)
        return False

    def _hand(self, entry: Mapping[str, Any]) -> None:
        """Give one entry to the tracker."""
        step = entry.get("step", 0)
        if "scalars" in entry:
            known = self._there.get(step, ())
            scalars = [Scalar(name, value) for name, value in entry["scalars"].items() if name not in known]
            if known and not scalars:
                return
            with self._wake:
                pictures = self._pictures.take(entry["n"])
            try:
                self.inner.log(step, [*scalars, *pictures], entry["at"])
            except Exception:
                with self._wake:
                    self._pictures.put_back(entry["n"], pictures)
                raise
        elif "metrics" in entry:
            self.inner.metrics(step, entry["metrics"])
        elif "alert" in entry:
            self.inner.alert(step, Notice(step, *entry["alert"]))
        elif "event" in entry:
            self.inner.event(step, entry["event"])
        elif "file" in entry:
            self.inner.file(entry["file"], entry["text"])
        elif "finding" in entry:
            finding = self._remember(entry)
            if finding.fired is not None:
                self._changed = step
            self.inner.finding(step, finding)

    def _remember(self, entry: Mapping[str, Any]) -> Finding:
        finding = Finding.of_state(Rule.model_validate(entry["rule"]), entry["finding"])
        if finding.fired is not None:
            self._known[identity(finding)] = finding
        return finding

    def _attempt(self, call: Callable[[], object]) -> object:
        """`call()`; what will never go well is counted and given up, what may is raised, to be tried again."""
        try:
            return call()
        except Exception as error:
            if not self._lasting(error):
                raise
            with self._wake:
                self._errors.append(error)
            return None

    def _lasting(self, error: Exception) -> bool:
        """Whether what raised `error` will never go well."""
        return isinstance(error, Refused) or not self.inner.temporary(error)
