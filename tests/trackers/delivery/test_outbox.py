import json
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag import Monitor
from tracker_diag.health import FOLDER
from tracker_diag.records import Histogram, Scalar
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import rule_called
from tracker_diag.rules.model import Rule
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.delivery import outbox as module
from tracker_diag.trackers.delivery.journal import Journal
from tracker_diag.trackers.delivery.outbox import PICTURES as STEPS
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.tracker import RECORDS, End, Metrics, Refused, Standing, Tracker, give

NOTHING = Summary("test", 0, None, None, (), {}, ())


class Fake(Tracker):
    """Keeps what arrives; fails as it is set to, before it has taken anything in."""

    name = "tracker"
    takes = (Metrics, *RECORDS, Finding, Standing, Notice, End)

    @property
    def address(self):
        return {"run": "r1"}

    def __init__(self):
        self.steps, self.findings, self.notices, self.known, self.pictures = [], [], [], [], []
        self.closed = False
        self.fails = lambda what: None
        self.ready = threading.Event()
        self.ready.set()

    def write(self, step, entries, at):
        records = [entry for entry in entries if isinstance(entry, RECORDS)]
        if records or any(isinstance(entry, Metrics) for entry in entries):
            self.log(step, records)
        for entry in entries:
            if isinstance(entry, Finding):
                self.findings.append((entry.rule.id, entry.state))
            elif isinstance(entry, Standing):
                self.known = [(finding.rule.id, finding.state) for finding in entry.findings]
            elif isinstance(entry, Notice):
                self.fails("alert")
                self.notices.append(entry.title)
            elif isinstance(entry, End):
                self.end()

    def log(self, step, records):
        self.ready.wait()
        self.fails("log")
        if step not in self.steps[-1:]:  # its metrics came before
            self.steps.append(step)
        self.pictures += [step for record in records if isinstance(record, Histogram)]

    def end(self):
        pass

    def flush(self, *, last=False):
        self.fails("flush")
        return True

    def close(self):
        self.closed = True


def ended(outbox):
    give(outbox, 0, [End(NOTHING, ())])
    outbox.close()


def while_it_is(down):
    """What fails as long as `down` holds anything."""

    def fails(what):
        if down:
            raise ConnectionError("down")

    return fails


def failing_at(place, error):
    """What fails at `place` alone."""

    def fails(what):
        if what == place:
            raise error

    return fails


def until(holds):
    """Until `holds()`, within a minute."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def records(step):
    return [Scalar("diag/x", float(step))]


def picture(step):
    counts = np.array([1, 2])
    return [*records(step), Histogram("diag/h", "policy", "all", counts, np.array([0.0, 1.0, 2.0]), counts)]


@pytest.fixture
def quick(monkeypatch, journals):
    monkeypatch.setattr(module, "RETRY", 0.02)
    monkeypatch.setattr(module, "CLOSE_WITHIN", 1.0)
    monkeypatch.setenv("TRACKER_DIAG_EXIT_TIMEOUT", "1")  # the end takes the longer of the two


@pytest.mark.slow
def test_a_slow_tracker_gets_all_but_the_oldest_histograms_and_nobody_waits_for_it(journals):
    tracker = Fake()
    outbox = Outbox(tracker)
    tracker.ready.clear()
    for step in range(STEPS + 300):
        outbox.write(step, picture(step), 0.0)
    assert tracker.steps == []
    tracker.ready.set()
    ended(outbox)
    assert tracker.steps == list(range(STEPS + 300))
    assert tracker.pictures[-STEPS:] == list(range(300, STEPS + 300))
    counts, errors = outbox.tally.taken()
    assert counts["dropped_histograms"] + len(tracker.pictures) == STEPS + 300
    assert not errors
    assert tracker.closed
    assert list(journals.iterdir()) == []  # nothing waits: nothing is left


class Hourly(Fake):
    def __init__(self):
        super().__init__()
        self.asked = threading.Event()

    @property
    def pace(self):
        self.asked.set()  # now the thread that delivers begins to wait
        return 3600.0


def test_a_tracker_with_a_pace_gets_many_steps_at_once_before_a_histogram_goes_and_at_the_end(journals):
    tracker = Hourly()
    outbox = Outbox(tracker)
    half = STEPS // 2
    for step in range(half):
        outbox.write(step, picture(step), 0.0)
    assert tracker.asked.wait(60)
    assert tracker.steps == []
    outbox.write(half, picture(half), 0.0)
    until(lambda: len(tracker.steps) > half)
    outbox.write(half + 1, records(half + 1), 0.0)
    ended(outbox)
    assert tracker.steps == list(range(half + 2))
    assert tracker.pictures == list(range(half + 1))


def test_an_alert_and_somebody_who_waits_do_not_wait_for_the_pace(journals):
    tracker = Hourly()
    outbox = Outbox(tracker)
    outbox.write(0, records(0), 0.0)
    assert tracker.asked.wait(60)
    assert tracker.steps == []
    outbox.write(0, [Notice(0, "error", "POL001", "")], 0.0)
    until(lambda: tracker.notices)
    outbox.write(1, records(1), 0.0)
    assert outbox.wait(time.monotonic() + 60)
    assert tracker.steps == [0, 1]
    ended(outbox)


@pytest.mark.slow
@given(failing=st.lists(st.integers(0, 60), max_size=15), refused=st.sets(st.integers(0, 60), max_size=5))
def test_whatever_fails_for_a_while_arrives_in_order_and_once(tmp_path_factory, failing, refused):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RETRY", 0.001)
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("journals")))
        tracker, calls, down = Fake(), [], list(failing)

        def fails(what):
            calls.append(what)
            if len(calls) in down:
                raise ConnectionError("down")
            if what == "log" and len(tracker.steps) in refused and len(calls) % 2:
                raise Refused("not this one")

        tracker.fails = fails
        outbox = Outbox(tracker)
        for step in range(20):
            outbox.write(step, records(step), 0.0)
        ended(outbox)
    gone = [error for error in outbox.tally.taken()[1] if isinstance(error, Refused)]
    assert tracker.steps == sorted(set(tracker.steps))
    assert len(tracker.steps) + len(gone) == 20
    assert tracker.closed


def test_what_a_tracker_refuses_is_given_up_and_holds_up_nothing(journals):
    tracker = Fake()
    tracker.fails = failing_at("alert", ValueError("no such level"))
    monitor = Monitor([tracker])
    monitor.log({"loss": float("nan")}, 0)
    monitor.log({"loss": 0.1}, 1)
    monitor.close()
    assert tracker.steps == [0, 1]
    assert ("NUM004", "firing") in tracker.findings
    assert tracker.known == [("NUM004", "firing")]
    assert monitor.health["tracker_errors"] == 1
    assert "no such level" in monitor.failures[0]


@pytest.mark.slow
def test_a_tracker_that_stays_down_costs_nothing_that_flush_does_not_bring_back(quick, journals):
    down = Fake()
    down.fails = while_it_is([True])
    monitor = Monitor([down])
    for step in range(30):
        monitor.log({"loss": float("nan") if step == 20 else 0.5}, step)
    monitor.close()
    assert down.steps == []
    assert not down.closed
    (path,) = journals.glob("tracker-r1.*.journal")
    up = Fake()
    left = Outbox(up, Journal.taken(path))
    assert left.drain(10)
    assert up.steps == list(range(30))
    assert up.known == [("NUM004", "firing")]
    assert up.notices == ["NaN or infinity (NUM004)"]
    assert [file.suffix for file in journals.iterdir()] == [".html"]


def test_of_a_step_that_is_there_in_part_the_rest_is_sent(journals):
    journal = Journal.new("one", {})
    for step in range(3):
        journal.append({"scalars": {"a": 1.0 * step, "b": 2.0 * step}, "step": step, "at": 0.0, "n": step})
    tracker = Fake()
    sent = []
    tracker.log = lambda step, records: sent.append((step, {record.name: record.value for record in records}))
    assert Outbox(tracker, journal, {0: {"a", "b", "c"}, 1: {"a"}}).drain(10)
    assert sent == [(1, {"b": 2.0}), (2, {"a": 2.0, "b": 4.0})]


FULL = """
import json, resource, signal, sys
sys.path.insert(0, sys.argv[1])
from test_outbox import Fake, ended, records
from tracker_diag.trackers.delivery.outbox import Outbox
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tracker = Fake()
tracker.ready.clear()
outbox = Outbox(tracker)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for step in range(300):
    outbox.write(step, records(step), 0.0)
tracker.ready.set()
ended(outbox)
print(json.dumps({"steps": tracker.steps, "counts": outbox.tally.taken()[0]}))
"""


@pytest.mark.slow
def test_a_full_disk_is_counted_and_nothing_is_lost(tmp_path):
    folder = __file__.rpartition("/")[0]
    done = subprocess.run([sys.executable, "-c", FULL, folder], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["steps"] == list(range(300))
    assert result["counts"]["spool_errors"] >= 1


@pytest.fixture
def no_disk(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "below"))


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "no_disk")
def test_without_a_disk_memory_serves_and_costs_scalars_but_no_finding(monkeypatch):
    monkeypatch.setattr(module, "MEMORY", 20)
    tracker = Fake()
    tracker.ready.clear()
    monitor = Monitor([tracker])
    for step in range(100):
        monitor.log({"loss": float("nan") if step == 3 else 0.5}, step)
    tracker.ready.set()
    monitor.close()
    assert tracker.known == [("NUM004", "resolved")]
    assert tracker.steps == sorted(tracker.steps)
    assert monitor.health["dropped_steps"] > 50
    assert monitor.health["spool_errors"] >= 1
    assert tracker.steps[-1] == 99


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "no_disk")
def test_what_neither_disk_nor_tracker_took_by_the_end_is_counted():
    tracker = Fake()
    tracker.fails = while_it_is([True])
    outbox = Outbox(tracker)
    for step in range(7):
        outbox.write(step, records(step), 0.0)
    ended(outbox)
    counts, errors = outbox.tally.taken()
    assert counts["dropped_steps"] == 7
    assert "7 steps were in memory alone, and are lost" in str(errors[-1])


@pytest.mark.slow
def test_a_tracker_that_hangs_holds_up_the_end_as_long_as_was_set(quick, monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_EXIT_TIMEOUT", "2")  # longer than `CLOSE_WITHIN` here
    tracker = Fake()
    outbox = Outbox(tracker)
    tracker.ready.clear()
    outbox.write(0, records(0), 0.0)
    start = time.monotonic()
    ended(outbox)  # and it comes back, though the tracker does not
    assert time.monotonic() - start >= 2
    (error,) = outbox.tally.taken()[1]
    assert "tracker-diag flush" in str(error)
    tracker.ready.set()


class Collector(Fake):
    """Collects steps, and brings one with each request."""

    def __init__(self):
        super().__init__()
        self.waiting, self.sent, self.requests = [], 0, 0

    def log(self, step, records):
        self.waiting.append(step)

    def flush(self, *, last=False):
        while self.waiting:
            self.requests += 1
            self.fails("flush")
            self.steps.append(self.waiting.pop(0))
            self.sent += 1
        return True


@pytest.mark.slow
def test_a_failure_after_something_was_delivered_is_a_first_one(monkeypatch, journals):
    monkeypatch.setattr(module, "RETRY", 0.01)
    monkeypatch.setattr(module, "RETRY_AT_MOST", 1e9)
    tracker, calls = Collector(), []

    def fails(what):  # every other time
        calls.append(what)
        if len(calls) % 2:
            raise ConnectionError("down")

    tracker.fails = fails
    outbox = Outbox(tracker)
    for step in range(40):
        outbox.write(step, records(step), 0.0)
    until(lambda: len(tracker.steps) == 40)  # doubled each time, the pauses would come to centuries
    assert tracker.steps == list(range(40))
    ended(outbox)


def test_a_tracker_that_is_down_is_asked_more_and_more_seldom(monkeypatch, journals):
    monkeypatch.setattr(module, "RETRY", 0.01)
    monkeypatch.setattr(module, "RETRY_AT_MOST", 1e9)
    tracker, down, pauses = Collector(), [True], []
    monkeypatch.setattr(module, "jittered", lambda pause: pauses.append((pause, time.monotonic())) or pause)
    tracker.fails = while_it_is(down)
    outbox = Outbox(tracker)
    for step in range(100):  # that it takes new steps in is no progress, and cuts no pause short
        outbox.write(step, records(step), 0.0)
        until(lambda: len(pauses) > step // 20)  # noqa: B023  # it is called here
    assert [pause for pause, _ in pauses[:5]] == [0.01 * 2**i for i in range(5)]
    assert all(later - before >= pause for (pause, before), (_, later) in pairwise(pauses[:5]))
    down.clear()
    ended(outbox)
    assert tracker.steps == list(range(100))


class Small(Collector):
    """Has no room for more than five steps."""

    @property
    def full(self):
        return len(self.waiting) >= 5


@pytest.mark.slow
def test_a_tracker_that_is_full_and_down_is_handed_nothing_more(quick, journals):
    tracker, down = Small(), [True]
    tracker.fails = while_it_is(down)
    outbox = Outbox(tracker)
    for step in range(100):
        outbox.write(step, records(step), 0.0)
    until(lambda: tracker.requests >= 3)
    assert tracker.waiting == list(range(5))
    down.clear()
    until(lambda: len(tracker.steps) == 100)
    ended(outbox)
    assert tracker.steps == list(range(100))


class Reporter(Fake):
    """Brings three things at the end, one after another."""

    def __init__(self):
        super().__init__()
        self.left, self.arrived = [], []

    def flush(self, *, last=False):
        while self.left:
            try:
                self.fails(self.left[0])
            except Exception as error:
                if not isinstance(error, OSError):
                    self.left.pop(0)
                raise
            self.arrived.append(self.left.pop(0))
        return True

    def end(self):
        self.left += ["findings", "slices", "report"]


def test_what_fails_at_the_end_is_tried_again_and_what_is_refused_costs_itself_alone(quick, monkeypatch, journals):
    monkeypatch.setattr(module, "CLOSE_WITHIN", 60.0)
    tracker, failures = Reporter(), {"findings": [OSError("a")], "slices": [Refused("b")], "report": [OSError("c")] * 3}

    def fails(what):
        if failures.get(what):
            raise failures[what].pop()

    tracker.fails = fails
    outbox = Outbox(tracker)
    outbox.write(0, records(0), 0.0)
    ended(outbox)
    assert tracker.arrived == ["findings", "report"]
    *errors, last = map(str, outbox.tally.taken()[1])
    (report,) = journals.iterdir()  # nobody knows whether what was refused was the report
    assert (errors, last.partition("; ")[2]) == (["a", "b", "c", "c", "c"], f"the report is in {report}")


@pytest.mark.slow
def test_a_report_that_a_busy_tracker_does_not_take_in_time_is_on_disk(quick, journals):
    tracker = Reporter()
    tracker.fails = failing_at("slices", ConnectionError("down"))
    outbox = Outbox(tracker)
    outbox.write(0, records(0), 0.0)
    ended(outbox)
    assert tracker.steps == [0]
    assert tracker.arrived == ["findings"]
    (report,) = journals.iterdir()
    assert "</html>" in report.read_text()
    assert report.stat().st_mode & 0o777 == 0o600
    assert str(outbox.tally.taken()[1][-1]) == (
        f"tracker: every step was delivered, but not all of the report; the report is in {report}; "
        "TRACKER_DIAG_EXIT_TIMEOUT gives it longer"
    )


def test_what_is_left_is_said_although_the_tracker_was_down_before(quick, journals, caplog):
    tracker = Fake()
    tracker.fails = failing_at("log", ConnectionError("down"))
    monitor = Monitor([tracker])
    for step in range(3):
        monitor.log({"loss": 0.5}, step)
    monitor.close()
    (report,) = journals.glob("report-*.html")
    assert monitor.health["undelivered"] == 1
    assert f"the report is in {report}" in " ".join(monitor.failures)
    assert "waits for tracker-diag flush" in caplog.text


KILLED = """
import sys
sys.path.insert(0, sys.argv[1])
from test_outbox import Fake, failing_at
from tracker_diag import Monitor

class Waits(Fake):
    def end(self):
        print("ends", flush=True)
        sys.stdin.read()

tracker = Waits()
if sys.argv[2] == "down":
    tracker.fails = lambda what: print("ends", flush=True) or failing_at("log", ConnectionError("down"))(what)
monitor = Monitor([tracker])
for step in range(80):
    monitor.log({"loss": 0.5}, step)
monitor.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("server", ["down", "slow"])
def test_a_kill_in_the_midst_of_the_end_leaves_the_report_on_disk(server, journals):
    command = [sys.executable, "-c", KILLED, __file__.rpartition("/")[0], server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ends\n"
        report = journals / f"report-tracker-r1-{process.pid}.html"
        if server == "down":
            until(report.exists)
        process.kill()
    assert report.stat().st_mode & 0o777 == 0o600
    assert "</html>" in report.read_text()
    up = Fake()
    (left,) = journals.glob("*.journal")
    assert Outbox(up, Journal.taken(left)).drain(10)
    assert up.steps[-1] == 79 if server == "down" else up.steps == []
    assert [*journals.iterdir()] == [report]


def test_a_timeout_that_is_no_number_is_counted_and_waits_for_nothing(journals):
    tracker = Fake()
    tracker.ready.clear()
    monitor = Monitor([tracker])
    monitor.log({"loss": 0.5}, 0)
    assert [monitor.flush(timeout) for timeout in ("x", None, float("nan"), -1)] == [False] * 4
    assert "flush: timeout: 'x' given, expected seconds" in monitor.failures[0]
    assert monitor.health["internal_errors"] == 2
    tracker.ready.set()
    assert monitor.flush()
    monitor.close()


def test_what_cannot_be_synced_is_counted_and_named_once(quick, journals, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: os.read(fd, -1))  # an OSError
    tracker = Fake()
    tracker.fails = while_it_is([True])
    monitor = Monitor([tracker])
    monitor.log({"loss": 0.5}, 0)
    monitor.close()
    assert monitor.health["sync_errors"] >= 1
    (failure,) = [failure for failure in monitor.failures if "sync_errors" in failure]
    assert "a power cut may cost what is in it, [Errno 22]" in failure


EXIT = """
import atexit, sys, threading
sys.path.insert(0, sys.argv[1])
from test_outbox import Fake
from tracker_diag import Monitor

class File(Fake):
    def log(self, step, records):
        print(step)

    def end(self):
        print("end")

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

monitor = Monitor([File()])
for step in range(int(sys.argv[2])):
    monitor.log({"loss": 0.5}, step)
late = sys.argv[3] == "late"
if late:
    atexit.register(lambda: [monitor.log({"loss": 0.5}, step) for step in range(2)])
atexit.register(setattr, threading.Thread, "start", refuse)  # as from Python 3.12 on; it is the first to be called
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("steps", "late"), [(0, ""), (5, ""), (0, "late")])
def test_a_run_that_nobody_closes_delivers_what_it_has_when_no_thread_can_start(steps, late, journals):
    command = [sys.executable, "-c", EXIT, __file__.rpartition("/")[0], str(steps), late]
    quiet = os.environ | {"TRACKER_DIAG_QUIET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=quiet)
    assert (done.returncode, done.stderr) == (0, "")
    expected = [0, 1] if late else [*range(steps)]
    assert done.stdout.split() == [*map(str, expected), "end"]
    assert list(journals.iterdir()) == []


@pytest.mark.slow
def test_the_end_of_a_process_waits_for_the_picture_that_is_being_drawn():
    # By the lock that each drawing holds: matplotlib itself takes a different time on each machine.
    drawing = """
import threading, time
from tracker_diag.report import picture
began = threading.Event()
def draw():
    with picture._turn:
        began.set()
        time.sleep(0.5)
        print("drawn", flush=True)
threading.Thread(target=draw, daemon=True).start()
began.wait()
"""
    done = subprocess.run([sys.executable, "-c", drawing], capture_output=True, text=True, check=True)
    assert done.stdout == "drawn\n"


def test_a_run_that_is_resumed_delivers_what_its_last_process_left_first_with_its_findings(quick, journals):
    """A finding travels by the id of its rule, and that of a user's own rule with all of the rule."""
    own = Rule(id="ACM001", title="Loss is off", signals={"off": "loss above 1"}, when=["off"], summary="loss is off")
    first, second = Fake(), Fake()
    first.fails = while_it_is([True])
    outbox = Outbox(first)
    for step, rule in enumerate((rule_called("NUM004"), own)):
        outbox.write(step, records(step), 0.0)
        finding = Finding(rule, None, "all", "firing", 0, step, None, "off", ())
        give(outbox, step, [finding, Standing((finding,))])
    ended(outbox)
    (path,) = journals.glob("tracker-r1.*.journal")
    lines = [json.loads(line.rpartition("\t")[0]) for line in path.read_text().splitlines()]
    kept = [line["finding"]["rule"] for line in lines if "finding" in line]
    assert (kept[0], kept[1]["id"]) == ("NUM004", "ACM001")
    outbox = Outbox(second)
    outbox.write(2, records(2), 0.0)
    ended(outbox)
    assert second.steps == [0, 1, 2]
    assert second.findings == [("NUM004", "firing"), ("ACM001", "firing")]
    assert second.known == [("ACM001", "firing")]
    assert list(journals.glob("*.journal")) == []


def test_a_journal_of_which_all_is_delivered_starts_afresh(monkeypatch, journals):
    monkeypatch.setattr(module, "SHRINK", 2000)
    tracker = Fake()
    outbox = Outbox(tracker)
    for step in range(100):
        outbox.write(step, records(step), 0.0)
    assert outbox.wait(time.monotonic() + 60)
    (path,) = journals.iterdir()
    until(lambda: path.stat().st_size < 2000)
    tracker.fails = while_it_is([True])
    outbox.write(100, records(100), 0.0)
    outbox.drain(0.1)
    (path,) = journals.iterdir()
    there = Fake()
    assert Outbox(there, Journal.taken(path)).drain(10)
    assert there.steps == [100]


def test_a_damaged_line_is_counted_and_costs_itself_alone(journals):
    journal = Journal.new("one", {})
    for step in range(3):
        journal.append({"scalars": {"a": 1.0}, "step": step, "at": 0.0, "n": step})
    journal.path.write_bytes(journal.path.read_bytes().replace(b'"step": 1', b'"step": 7'))
    tracker = Fake()
    outbox = Outbox(tracker, journal)
    assert outbox.drain(10)
    assert tracker.steps == [0, 2]
    counts, (error,) = outbox.tally.taken()
    assert counts["damaged_lines"] == 1
    assert "damaged line" in str(error)
