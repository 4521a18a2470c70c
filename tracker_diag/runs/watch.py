"""Watch: look at runs from outside again and again, and send each alert once.

A run that has new rows is read and diagnosed from its start. An alert is the same as an earlier one if it has the same
run, step, level and title; so a restarted watch sends only those that its state does not list.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracker_diag.detect.growth import USUAL
from tracker_diag.errors import DiagError, SourceError
from tracker_diag.health import private
from tracker_diag.report.console import cut
from tracker_diag.report.fleet import Fleet
from tracker_diag.report.terminal import alert
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.model import Rule
from tracker_diag.runs.diagnose import SoFar, diagnose
from tracker_diag.runs.watched_run import RunState, WatchedRun, has_ended, short_hash
from tracker_diag.scrub import without_password
from tracker_diag.trackers.finished import FinishedRun, Gone, Listed, one_line
from tracker_diag.trackers.listing import list_runs
from tracker_diag.trackers.notify import Notifier
from tracker_diag.trackers.tracker import Refused

SHARE = 10
"""A run rests for this many times the seconds that its last diagnosis took."""
NAME = 40
"""Characters of a run's name before its alerts in the log."""
VERSION: Final = 3
"""Of the format of the state, kept in its file."""
FILE = "watch.json"

Receiver: TypeAlias = Callable[[str, Notice], None]
"""Sends a notice of the run of this name. OSError: it may work later. Refused: it never will."""

_log = logging.getLogger("tracker_diag")


class WatchState(BaseModel):
    """What is kept of a watch, in one file that outlives it."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[3] = VERSION
    source: str
    project: bool
    began: float = Field(default_factory=time.time)
    """When the first watch of this source began, in seconds since 1970."""
    runs: dict[str, RunState] = {}
    """By the source of the run."""

    @classmethod
    def kept_in(cls, folder: Path, source: str, *, project: bool) -> "WatchState":
        """The state that `folder` has of the watch of `source`; a new one, saved there, where it has none."""
        new, file = cls(source=source, project=project), folder / FILE
        again = f"delete {folder} to start over, or name another folder with --state"
        try:
            state = cls.model_validate_json(file.read_bytes()) if file.exists() else new
            for field in ("source", "project"):
                given, expected = getattr(state, field), getattr(new, field)
                if given != expected:
                    raise DiagError(f"{file}: {field} {given!r} given, expected {expected!r}; {again}")
            private(file, state.model_dump_json())
        except ValidationError as error:
            problem = error.errors()[0]  # that of the version, where another one's fields differ too
            if problem["loc"] == ("version",):
                raise DiagError(f"{file}: version {problem['input']!r} given, expected {VERSION}; {again}") from error
            where = ".".join(map(str, problem["loc"]))
            raise DiagError(f"{file}: damaged: {where}: {problem['msg']}; {again}") from error
        except OSError as error:
            raise DiagError(f"{file}: {error.strerror or error}; name another folder with --state") from error
        return state


def receivers_for(urls: Iterable[str]) -> dict[str, Receiver]:
    """The log and `urls`, by names that are the same in each process. A URL is a secret, so its name is a hash."""
    receivers: dict[str, Receiver] = {"log": _log_receiver()}
    for url in urls:
        Notifier([url])  # an address that cannot be used is an error now

        def send(run: str, notice: Notice, url: str = url) -> None:
            notifier = Notifier([url], run=run)
            notifier.write(notice.step, [notice], time.time())
            notifier.flush()

        receivers[short_hash(url)] = send
    return receivers


def _log_receiver() -> Receiver:
    """Logs the first notice of a title in six lines, and that of any further run in one line."""
    explained: dict[str, str] = {}

    def send(run: str, notice: Notice) -> None:
        text, _, see = notice.text.rpartition("\n")
        shown = alert(replace(notice, text=text), see)
        if (before := explained.setdefault(notice.title, run)) != run:
            shown = f"{notice.title}, at step {notice.step:,}, as in {cut(before, NAME)}"
        _log.log(logging.INFO if notice.level == "info" else logging.WARNING, "%s: %s", cut(run, NAME), shown)

    return send


class Watch:
    """Watches `source`, one run, or all runs of a project; `folder` has what earlier watches of it have left."""

    def __init__(
        self,
        source: str,
        folder: Path,
        *,
        project: bool,
        rules: Sequence[Rule],
        receivers: Mapping[str, Receiver],
        expected_runs_between_false_alarms: float = USUAL,
    ) -> None:
        self._source, self._project = source, project
        self._state = WatchState.kept_in(folder, without_password(source), project=project)
        self._file, self._receivers, self._rules = folder / FILE, receivers, rules
        self._expected_runs_between_false_alarms = expected_runs_between_false_alarms
        kept = self._state.runs
        self._runs = {key: WatchedRun(Listed(key, run.row.run, run.mark), run) for key, run in kept.items()}
        self._listed = False
        """The tracker has answered at least once."""
        self._unreachable = ""
        """Since when the tracker does not answer, and what it says."""
        self._unsaved = ""
        """Why the state cannot be saved."""
        self._away: set[str] = set()
        """Receivers whose absence was logged."""

    def check(self, after_each: Callable[[], object] = lambda: None) -> Fleet:
        """Check each run once, those that are underway first; `after_each` is called after each diagnosis."""
        failing: set[str] = set()
        self._list()
        for run in sorted(self._runs.values(), key=lambda run: bool(run.listed.over)):
            if run.due and not self._unreachable:
                failed_before = bool(run.problem)
                self._judge(run)
                after_each()
                if run.problem and not failed_before:
                    self._list()  # if the tracker is away, no other run has to wait for its timeout
            self._send(run, failing)
        self._save()
        return self.fleet

    def _list(self) -> None:
        try:
            listed = {without_password(run.source): run for run in list_runs(self._source, project=self._project)}
        except SourceError as error:
            if not self._runs:
                raise
            for run in self._runs.values():
                run.gone = run.gone or (isinstance(error, Gone) and not self._project)
            if not self._unreachable:
                self._unreachable = f"cannot be reached since {datetime.now().astimezone():%H:%M:%S}: {error}"
                _log.warning("the source cannot be reached, and is tried again: %s", error)
            return
        if self._unreachable:
            _log.warning("the source can be reached again: %s", without_password(self._source))
            self._unreachable = ""
        before = self._runs if self._listed else {}  # what went before this watch began is left out
        for key, run in self._runs.items():
            run.gone = key not in listed
        for key, there in listed.items():
            self._runs.setdefault(key, WatchedRun(there, self._state.runs.get(key))).listed = there
        self._runs = {key: self._runs[key] for key in (listed | before)}
        self._listed = True

    def _judge(self, run: WatchedRun) -> None:
        begun, mark, run.problem = time.monotonic(), run.listed.mark, ""
        try:
            read, complete = run.readable()
            if read.rows:
                self._diagnose(run, read)
            run.judged = mark if complete else ""
        except SourceError as error:
            run.problem = str(error).removeprefix(f"{run.key}: ")
        except Exception as error:  # noqa: BLE001  # from a library or a rule; the other runs continue
            run.problem = f"could not be judged: {type(error).__name__}: {one_line(error)}"
        run.rests_until = time.monotonic() + SHARE * (time.monotonic() - begun)

    def _diagnose(self, run: WatchedRun, read: FinishedRun) -> None:
        new = run.key not in self._state.runs
        underway = not (run.listed.over or has_ended(read)) if new else run.kept.underway
        so_far, run.so_far = run.so_far, SoFar()  # what raises midway is of no use for the next look
        diagnosis = diagnose(
            read, rules=self._rules, catalog=False, underway=underway, so_far=so_far if underway else None,
            expected_runs_between_false_alarms=self._expected_runs_between_false_alarms,
        )  # fmt: skip
        run.so_far = so_far
        run.judge(diagnosis)
        run.kept.underway, self._state.runs[run.key] = underway, run.kept
        if new and self._project and run.ended_before(self._state.began):  # it is listed, and raises no alert
            run.kept.sent = {name: [notice.id for notice in run.notices] for name in self._receivers}

    def _send(self, run: WatchedRun, failing: set[str]) -> None:
        """Send the run's alerts; receivers that are `failing` are not tried again before the next check."""
        kept = run.kept
        before = sorted(set().union(*kept.sent.values()))
        for name in self._receivers:  # a new one begins with the alerts that come from now on
            kept.sent.setdefault(name, [*before])
        waiting = False
        for name, receiver in self._receivers.items():
            for notice in run.notices:
                if notice.id in kept.sent[name]:
                    continue
                if name in failing or not self._sent(name, receiver, run.listed.name, notice):
                    failing.add(name)
                    waiting = True
                    break
                kept.sent[name].append(notice.id)
                self._save()
        kept.mark = "" if waiting else run.judged

    def _sent(self, name: str, receiver: Receiver, run: str, notice: Notice) -> bool:
        """Send `notice`; whether it need not be sent again."""
        try:
            receiver(run, notice)
        except Refused as error:
            _log.warning("an alert was refused, and is not sent there again: %s", error)
        except OSError as error:
            if name not in self._away:
                _log.warning("alerts wait for a receiver that is away: %s", error)
            self._away.add(name)
            return False
        if name in self._away:
            _log.warning("the receiver is back, and got an alert that waited")
            self._away.remove(name)
        return True

    def _save(self) -> None:
        try:
            private(self._file, self._state.model_dump_json())
        except OSError as error:
            if not self._unsaved:
                _log.warning("the state cannot be saved, so a restarted watch may repeat alerts: %s", error)
            self._unsaved = f"cannot save the state: {error.strerror or error}"
        else:
            self._unsaved = ""

    @property
    def fleet(self) -> Fleet:
        """The state of all runs."""
        rows = tuple(run.row for run in self._runs.values())
        note = self._unreachable or self._unsaved
        return Fleet(without_password(self._source), datetime.now().astimezone(), rows, note)
