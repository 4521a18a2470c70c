"""Outbox: what a tracker gets, written by a thread of its own from a journal on disk.

Training pays for one line in a file. If the tracker is slow or down, lines wait there; if the process dies, they
wait for `tracker-diag flush`. Nothing is dropped but histograms, which are large: the oldest, and that is counted.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tracker_diag.health import open_in_forks
from tracker_diag.records import Record, Scalar
from tracker_diag.rules.alerts import Identity, Notice, identity
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import rule_called
from tracker_diag.rules.model import Rule
from tracker_diag.trackers.delivery.journal import Journal, journal_for
from tracker_diag.trackers.delivery.memory import Memory
from tracker_diag.trackers.delivery.patience import exit_timeout, jittered
from tracker_diag.trackers.delivery.pictures import Pictures
from tracker_diag.trackers.tracker import (
    RECORDS,
    End,
    Entry,
    Event,
    File,
    Metrics,
    Refused,
    Standing,
    Tracker,
    give,
    writing,
)

MEMORY = 1000
"""Entries that are kept in memory where the disk takes none."""

REFUSALS = 100
"""Times that a tracker may refuse something in one go."""

CLOSE_WITHIN = 30.0
"""Seconds that it waits at most, for one that is slow."""

RETRY, RETRY_AT_MOST = 0.5, 30.0
"""Seconds until a failed delivery is tried again: at first, and after many that brought nothing."""


T = TypeVar("T")

There: TypeAlias = Mapping[int, Collection[str]]
"""Names of ours that a tracker has, by step."""


class Outbox(Tracker):
    """Stands before `inner`: takes all that a tracker takes, at once, and never raises or waits but in `close`.

    Args:
        journal: that of a process that has died; else there is a new one.
        there: what the tracker has already of each step, by name, whatever the journal says.
    """

    def __init__(self, inner: Tracker, journal: Journal | None = None, there: There | None = None) -> None:
        self.name, self.inner, self.tally = inner.name, inner, inner.tally
        self.takes = (*inner.takes, End, *((Finding,) if Standing in inner.takes else ()))  # type: ignore[misc]
        self._journal = journal
        self._there = there or {}
        self._memory = Memory()
        """What the disk did not take; it comes after all that is in the journal."""
        self._pictures = Pictures()
        self._number = time.time_ns() // 1000  # distinct from those that an earlier process left
        self._known: dict[Identity, Finding] = {}
        self._changed: int | None = None
        """Step of a finding that is not yet in what stands."""
        self.new_locks()
        open_in_forks(self)
        self._thread: threading.Thread | None = None
        self._end: End | None = None
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
        return self._of_inner("address", {})

    @property
    def page(self) -> str:
        return self._of_inner("page", "")

    @property
    def source(self) -> str:
        return self._of_inner("source", "")

    def _of_inner(self, name: str, missing: T) -> T:
        try:
            value: T = getattr(self.inner, name)
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
            self.tally.failed(error)
            return missing
        return value

    def write(self, step: int, entries: Sequence[Entry], at: float) -> None:
        records = [entry for entry in entries if isinstance(entry, RECORDS)]
        for entry in entries:
            if isinstance(entry, Metrics):
                self._put({"metrics": dict(entry.values), "step": step, "at": at})
        if records:
            scalars = {record.name: record.value for record in records if isinstance(record, Scalar)}
            pictures = [record for record in records if not isinstance(record, Scalar)]
            self._put({"scalars": scalars, "step": step, "at": at}, pictures)
        for entry in entries:
            if isinstance(entry, Finding):
                self._put({**_line_of(entry), "step": step, "at": at}, keep=True)
            elif isinstance(entry, Notice):
                self._put({"alert": [entry.level, entry.title, entry.text], "step": step, "at": at})
            elif isinstance(entry, Event):
                self._put({"event": entry.text, "step": step, "at": at})
            elif isinstance(entry, File):
                self._put({"file": entry.name, "text": entry.text, "step": step, "at": at})
            elif isinstance(entry, End):
                self._begin_end(entry)

    def close(self) -> None:
        """Wait for what is underway, as long as something gets through; what is left then stays in the journal."""
        self._finish()

    def _begin_end(self, end: End) -> None:
        """Nothing comes after this. It waits for nothing; `close` then waits."""
        with self._wake:
            if self._end is None:
                now, self._patience = time.monotonic(), min(exit_timeout(), CLOSE_WITHIN)
                self._latest, self._deadline = now + CLOSE_WITHIN, now + self._patience
                self._end = end
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

    def wait(self, deadline: float) -> bool:
        """Wait until all that was given is delivered, until `deadline` (of `time.monotonic`); whether it is."""
        while self._waits and time.monotonic() < deadline:
            time.sleep(0.02)
        return not self._waits

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
            self.tally.count("dropped_steps", lost := self._memory.steps)
            left = f"; what is in {self._journal.path} waits for tracker-diag flush" if self._journal else ""
            left += f"; {lost} steps were in memory alone, and are lost" if lost else ""
            every = "every step was delivered, but not all of the report at the end"
            self.tally.failed(TimeoutError(f"{self.name}: {f'not all was delivered{left}' if self._waits else every}"))
        return False

    @property
    def _waits(self) -> bool:
        return bool(self._memory) or (self._journal is not None and self._journal.undelivered)

    def _put(self, entry: dict[str, Any], pictures: Sequence[Record] = (), *, keep: bool = False) -> None:
        with self._wake:
            self._number += 1
            entry["n"] = self._number
            if pictures and (dropped := self._pictures.add(self._number, pictures)):
                self.tally.count("dropped_histograms", dropped)
            self._start()
            if self._memory or not self._on_disk(entry, keep=keep):
                self.tally.count("dropped_steps", self._memory.append(entry, MEMORY))
            self._wake.notify()

    def _on_disk(self, entry: dict[str, Any], *, keep: bool) -> bool:
        if self._journal is None:
            return False
        try:
            self._journal.append(entry, keep=keep)
        except OSError as error:
            self.tally.count("spool_errors")
            self.tally.failed(error)
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
                self.tally.count("spool_errors")
                self.tally.failed(error)
        if self._journal:
            for entry in self._journal.kept():
                self._attempt(partial(self._remember, entry))  # one of another version is told, and left out
            self._tell_damage(self._journal)

    def _tell_damage(self, journal: Journal) -> None:
        with self._wake:
            if journal.damaged:
                self.tally.count("damaged_lines", journal.damaged)
                told = f"{self.name}: {journal.damaged} damaged lines, put aside in {journal.aside}"
                self.tally.failed(Refused(told))
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
        self._told = self._end is None or (not self._waits and self._write_end(self._end))
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
        self.tally.failed(error)
        if self._ending:
            self._pause = min(2 * self._pause, 8 * RETRY) if self._pause else RETRY
            time.sleep(max(0.0, min(jittered(self._pause), self._deadline - time.monotonic())))

    def _write_end(self, end: End) -> bool:
        """Write the end and flush the tracker until all is there, or until the deadline; then close it."""
        step, refused = end.summary.last_step or 0, 0
        try:
            give(self.inner, step, [end])
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
            refused += 1
            self.tally.failed(error)
        whole = False
        while not whole and refused < REFUSALS and time.monotonic() <= self._deadline:
            try:
                whole = bool(self.inner.flush(last=True))
                time.sleep(0.0 if whole else 0.05)
            except Exception as error:  # noqa: BLE001, PERF203
                if isinstance(error, OSError):
                    self._failed(error)
                else:
                    refused += 1
                    self.tally.failed(error)
        self._attempt_last(self.inner.close)
        return whole

    def _attempt_last(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
            self.tally.failed(error)

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
            self._attempt(partial(give, self.inner, self._changed, [Standing(tuple(self._known.values()))]))
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
        """Give one entry to the tracker; an empty one was damaged, or said how far all was delivered."""
        if not entry:
            return
        step, at = entry.get("step", 0), entry.get("at", 0.0)
        if "scalars" in entry:
            known = self._there.get(step, ())
            scalars = [Scalar(name, value) for name, value in entry["scalars"].items() if name not in known]
            if known and not scalars:
                return
            with self._wake:
                pictures = self._pictures.take(entry["n"])
            try:
                self.inner.write(step, [*scalars, *pictures], at)
            except Exception:
                with self._wake:
                    self._pictures.put_back(entry["n"], pictures)
                raise
        else:
            given = self._entry(step, entry)
            if isinstance(given, self.inner.takes):
                self.inner.write(step, [given], at)

    def _entry(self, step: int, entry: Mapping[str, Any]) -> Entry:
        """What was put into the journal; a finding that has fired changes what stands."""
        if "finding" in entry:
            finding = self._remember(entry)
            if finding.fired is not None:
                self._changed = step
            return finding
        if "alert" in entry:
            return Notice(step, *entry["alert"])
        if "event" in entry:
            return Event(entry["event"])
        if "file" in entry:
            return File(entry["file"], entry["text"])
        return Metrics(entry["metrics"])

    def _remember(self, entry: Mapping[str, Any]) -> Finding:
        own = entry.get("own_rule")
        rule = rule_called(entry["rule"]) if own is None else Rule.model_validate(own)
        finding = Finding.of_state(rule, entry["finding"])
        if finding.fired is not None:
            self._known[identity(finding)] = finding
        return finding

    def _attempt(self, call: Callable[[], object]) -> object:
        """`call()`; what will never go well is counted and given up, what may is raised, to be tried again."""
        try:
            return call()
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises is to be counted
            self.tally.failed(error)
            return None


def _line_of(finding: Finding) -> dict[str, Any]:
    """A finding with the id of its rule; with all of the rule if that is a user's own, which nobody can look up."""
    rule = finding.rule
    own = {"own_rule": rule.model_dump(mode="json", by_alias=True)} if rule.own else {}
    return {"finding": finding.state_dict(), "rule": rule.id, **own}
