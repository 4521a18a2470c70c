"""Runs watched in one process: which alerts are sent, what the table shows, and which troubles stop nothing."""

import json
import logging
import math
import os
import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.errors import DiagError, SourceError
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.loader import in_force
from tracker_diag.runs import watch as watching
from tracker_diag.runs import watched_run
from tracker_diag.runs.watch import Watch, receivers_for
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.listing import list_runs
from tracker_diag.trackers.tracker import Refused

RULES = in_force()
HOSTILE = ("<script>alert(1)", "[red]markup[bold]", "x" * 200, "🤖\x1b[31m\ttab", "المكافأة")


class Receiver:
    """Keeps the alerts it gets, unless it is to fail."""

    def __init__(self):
        self.got, self.ids, self.fails = [], [], None

    def __call__(self, run, notice):
        if self.fails:
            raise self.fails
        self.got.append((run, notice.step, notice.title.split("(")[-1][:6]))
        self.ids.append(notice.id)


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Starts watches in turn, all with one state; gives the watch and its receiver."""
    monkeypatch.setattr(watching, "SHARE", 0)  # no rest between two checks

    def start(source, *, project=True, **receivers):
        receivers = receivers or {"receiver": Receiver()}
        made = Watch(str(source), tmp_path / "state", project=project, rules=RULES, receivers=receivers)
        return made, next(iter(receivers.values()))

    return start


@pytest.fixture
def runs(tmp_path):
    """A folder of runs; writes rows into a run."""
    folder = tmp_path / "runs"
    folder.mkdir()

    def write(name, steps, *, nan_at=None, age=60.0, mode="a", **more):
        file = folder / name
        with file.open(mode) as out:
            for step in steps:
                row = {"step": step, "reward": step / 100, "kl": float("nan") if step == nan_at else 0.01, **more}
                out.write(json.dumps(row) + "\n")
        os.utime(file, (time.time() - age,) * 2)
        return file

    write.folder = folder
    return write


def rows_of(fleet):
    return {row.run: row for row in fleet.rows}


@pytest.mark.slow
def test_each_alert_is_sent_once_also_by_a_later_watch(runs, watch):
    runs("a.jsonl", range(20), nan_at=7)
    runs("b.jsonl", range(20))
    first, receiver = watch(runs.folder)
    first.check()
    first.check()
    assert receiver.got == [("a.jsonl", 7, "NUM004")]
    runs("a.jsonl", range(20, 22))
    runs("b.jsonl", range(20, 30), nan_at=25)
    second, receiver = watch(runs.folder)
    second.check()
    assert receiver.got == [("b.jsonl", 25, "NUM004")]


def falling(nan_at=140):
    """Rows of a run whose reward rises, falls and stays low, with a NaN and an evaluation now and then."""
    rng = np.random.default_rng(0)
    rows = {}
    for step in range(170):
        reward = step / 100 if step < 100 else max(1 - (step - 100) / 10, 0.0)
        rows[step] = {"reward": reward + 0.02 * rng.normal(), "kl": 0.01 * rng.uniform(0.5, 2), "entropy": 1.0}
        if step % 10 == 0:
            rows[step]["eval_reward"] = reward
    rows[nan_at]["kl"] = math.nan
    return rows


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
def test_whenever_it_checks_and_restarts_the_alerts_are_those_of_a_monitor_in_the_run(seed, runs, watch):
    live = CapturingTracker()
    monitor = td.Monitor([live], source="test")
    rows = falling()
    for step, row in rows.items():
        monitor.log(row, step)
    dice = np.random.default_rng(seed)
    got, ids = [], []
    cuts = sorted(dice.integers(1, len(rows), size=5))
    for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        with (runs.folder / "a.jsonl").open("a") as out:
            out.writelines(json.dumps({"step": s, **row}) + "\n" for s, row in islice(rows.items(), start, end))
        os.utime(runs.folder / "a.jsonl", (time.time() - 60 * dice.integers(0, 2),) * 2)
        watcher, receiver = watch(runs.folder)
        watcher.check()
        got, ids = got + receiver.got, ids + receiver.ids
    os.utime(runs.folder / "a.jsonl", (time.time() - 60,) * 2)
    watcher, receiver = watch(runs.folder)
    watcher.check()
    got, ids = got + receiver.got, ids + receiver.ids
    expected = [("a.jsonl", notice.step, notice.title.split("(")[-1][:6]) for notice in live.notices]
    assert got == expected
    assert {"OUT001", "NUM004"} <= {rule for _, _, rule in got}
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
def test_a_run_that_had_ended_at_first_sight_is_judged_by_its_length_as_diagnose_does(runs, watch):
    rows = dict(islice(falling(nan_at=30).items(), 45))
    file = runs.folder / "a.jsonl"
    file.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in rows.items()))
    runs("a.jsonl", [45], train_runtime=9.0, age=7200)
    watcher, receiver = watch(file, project=False)
    watcher.check()
    assert [step for _, step, _ in receiver.got] == [notice.step for notice in td.diagnose(str(file)).notices]


@pytest.mark.slow
def test_a_restarted_watch_reads_only_what_has_changed(runs, watch, monkeypatch):
    for name in "abc":
        runs(f"{name}.jsonl", range(12), nan_at=5)
    first, _ = watch(runs.folder)
    before = rows_of(first.check())
    read = []
    real = watched_run.read_run
    monkeypatch.setattr(watched_run, "read_run", lambda source: read.append(source) or real(source))
    runs("b.jsonl", range(12, 22), age=30)
    second, _ = watch(runs.folder)
    after = rows_of(second.check())
    assert read == [str(runs.folder / "b.jsonl")]
    assert after["a.jsonl"] == before["a.jsonl"]
    assert (before["b.jsonl"].step, after["b.jsonl"].step) == (11, 21)


@pytest.mark.slow
def test_the_table(runs, watch):
    runs("healthy.jsonl", range(20), timestamp=0)
    runs("nan.jsonl", range(20), nan_at=7, step_seconds=60.0)
    runs("finished.jsonl", range(20))
    runs("finished.jsonl", [20], train_runtime=300.0)
    runs("silent.jsonl", range(20), age=1800)
    runs("no number.jsonl", [])
    (runs.folder / "starting.log").write_text("hello\n")
    (runs.folder / "no reward.jsonl").write_text('{"step": 1, "entropy": 0.5}\n{"step": 2, "entropy": 0.5}\n')
    (runs.folder / "foreign.jsonl").write_text("".join(f'{{"step": {step}, "foo": 0.5}}\n' for step in range(120)))
    fleet, _ = watch(runs.folder)
    shown = fleet.check()
    rows = rows_of(shown)
    assert {name: (row.level, row.activity.partition(" since")[0]) for name, row in rows.items()} == {
        "healthy.jsonl": ("ok", "running"),
        "nan.jsonl": ("error", "running"),
        "finished.jsonl": ("ok", "finished"),
        "silent.jsonl": ("ok", "silent"),
        "no number.jsonl": ("unknown", "no row yet"),
        "starting.log": ("unknown", "no row yet"),
        "no reward.jsonl": ("unknown", "running"),
        "foreign.jsonl": ("unknown", "running"),
    }
    broken = rows["nan.jsonl"]
    assert (broken.rule, broken.since, broken.cost) == ("NUM004", 7, "12 steps, 12 min")
    assert broken.first_break == "NUM004: NaN or infinity in kl"
    assert rows["no reward.jsonl"].reward == ""
    assert "no metrics" in rows["starting.log"].note
    assert rows["foreign.jsonl"].note.startswith("none of its metrics is known")
    assert shown.sorted[0] is broken
    assert shown.counts == "8 runs: 1 error, 4 unknown, 3 ok"


@pytest.mark.slow
def test_the_best_and_the_last_reward(runs, watch):
    file = runs("a.jsonl", range(120))
    with file.open("a") as out:
        out.writelines(json.dumps({"step": step, "reward": 1e-9, "kl": 0.01}) + "\n" for step in range(120, 200))
    os.utime(file, (time.time() - 60,) * 2)
    fleet, _ = watch(runs.folder)
    (row,) = fleet.check().rows
    best, last = row.reward.split(" → ")
    assert (row.rule, last) == ("OUT001", "0")
    assert 1.0 <= float(best) <= 1.2


@pytest.mark.slow
def test_runs_of_a_project_that_had_ended_before_raise_no_alert(runs, watch):
    runs("old.jsonl", range(20), nan_at=7, age=7200)
    runs("new.jsonl", range(20), nan_at=7)
    fleet, receiver = watch(runs.folder)
    rows = rows_of(fleet.check())
    assert rows["old.jsonl"].level == rows["new.jsonl"].level == "error"
    assert receiver.got == [("new.jsonl", 7, "NUM004")]
    runs("old.jsonl", range(20, 40))  # resumed, and from here on a run like any other: its NaN is over
    fleet.check()
    assert receiver.got == [("new.jsonl", 7, "NUM004"), ("old.jsonl", 28, "NUM004")]


def test_a_single_run_that_has_ended_raises_its_alerts_since_it_was_asked_for(runs, watch):
    fleet, receiver = watch(runs("old.jsonl", range(20), nan_at=7, age=7200), project=False)
    fleet.check()
    assert receiver.got == [("old.jsonl", 7, "NUM004")]


def test_a_run_with_the_diagnostics_inside_sends_its_alerts_itself(runs, watch):
    runs("a.jsonl", range(20), nan_at=7, **{"diag/health/nonfinite_metrics": 0})
    fleet, receiver = watch(runs.folder)
    (row,) = fleet.check().rows
    assert (row.level, row.rule, receiver.got) == ("error", "NUM004", [])
    assert row.note == ""
    runs("a.jsonl", range(20, 24), **{"diag/rule/NUM004": 2, "diag/rule/POL001": 2}, train_runtime=9.0)
    (row,) = fleet.check().rows
    assert (row.level, row.note, receiver.got) == ("error", "", [])


@pytest.mark.slow
def test_what_only_the_diagnostics_inside_can_see_is_in_the_table(runs, watch):
    runs("a.jsonl", range(20), **{"diag/rule/POL001": 2})
    fleet, receiver = watch(runs.folder)
    (row,) = fleet.check().rows
    assert (row.level, row.rule, row.first_break, row.since) == ("warn", "POL001", "POL001, found live", 0)
    assert (row.note, receiver.got) == ("", [])
    runs("a.jsonl", range(20, 30), **{"diag/rule/POL001": 0})
    (row,) = fleet.check().rows
    assert (row.level, row.rule) == ("ok", "POL001")


def test_what_the_diagnostics_inside_have_missed_is_sent_at_the_end(runs, watch):
    runs("a.jsonl", range(20), **{"diag/rule/NUM004": 0})
    fleet, receiver = watch(runs.folder)
    fleet.check()
    runs("a.jsonl", [20, 21], nan_at=20, train_runtime=300.0)
    (row,) = fleet.check().rows
    assert (row.level, row.activity, row.note) == ("error", "finished", watched_run.MISSED_INSIDE)
    assert receiver.got == [("a.jsonl", 20, "NUM004")]


@pytest.mark.slow
def test_files_that_are_cut_truncated_replaced_or_gone(runs, watch):
    file = runs("a.jsonl", range(20), nan_at=7)
    fleet, receiver = watch(runs.folder)
    fleet.check()
    whole = file.read_text()
    later = "".join(json.dumps({"step": step, "reward": 0.3, "kl": 0.01}) + "\n" for step in range(20, 26))
    for text in (whole + later[:-20], whole[: len(whole) // 2], "", whole + later[:-1], whole + later):
        file.write_text(text)
        fleet.check()
    os.utime(file, (time.time() - 60,) * 2)
    (row,) = fleet.check().rows
    assert (row.step, row.level) == (25, "error")
    assert receiver.got == [("a.jsonl", 7, "NUM004")], "the same alert of the same rows"
    runs("a.jsonl", range(25), nan_at=9, mode="w")
    fleet.check()
    assert receiver.got[1:] == [("a.jsonl", 9, "NUM004")], "another run under the same name"
    file.unlink()
    (row,) = fleet.check().rows
    assert (row.activity, row.active, row.step) == ("gone", False, 24)
    runs("a.jsonl", range(25), nan_at=9, mode="w")
    (row,) = fleet.check().rows
    assert (row.activity, len(receiver.got)) == ("running", 2)
    file.unlink()
    fleet, _ = watch(runs.folder)
    assert fleet.check().rows == (), "gone before this watch began"


def test_a_value_that_is_logged_late_for_an_earlier_step_is_judged(runs, watch):
    file = runs("a.jsonl", range(20))
    fleet, receiver = watch(runs.folder)
    fleet.check()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[4]["loss"] = math.nan
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fleet.check()
    assert receiver.got == [("a.jsonl", 4, "NUM004")]


@pytest.mark.slow
def test_a_last_row_waits_until_it_is_complete(runs, watch):
    fleet, _ = watch(runs.folder)
    runs("fresh.jsonl", range(10), age=0)
    runs("a.csv", [])
    (runs.folder / "a.csv").write_text("step,reward\n1,12\n2,12\n3,1")
    os.utime(runs.folder / "a.csv", (time.time() - 60,) * 2)
    rows = rows_of(fleet.check())
    assert (rows["fresh.jsonl"].step, rows["a.csv"].step) == (8, 2)
    (runs.folder / "a.csv").write_text("step,reward\n1,12\n2,12\n3,12\n")
    for file in runs.folder.iterdir():
        os.utime(file, (time.time() - 60,) * 2)
    rows = rows_of(fleet.check())
    assert (rows["fresh.jsonl"].step, rows["a.csv"].step) == (9, 3)


def test_a_single_run_that_is_away_is_reported_once_and_watched_again_when_it_is_back(runs, watch, caplog):
    file = runs("a.jsonl", range(20))
    fleet, receiver = watch(file, project=False)
    fleet.check()
    text = file.read_text()
    file.unlink()
    for _ in range(3):
        shown = fleet.check()
    assert "cannot be reached since" in shown.note
    assert shown.rows[0].activity == "gone"
    file.write_text(text)
    runs("a.jsonl", range(20, 30), nan_at=25)
    shown = fleet.check()
    assert (shown.note, shown.rows[0].activity, shown.rows[0].step) == ("", "running", 29)
    assert receiver.got == [("a.jsonl", 25, "NUM004")]
    assert [record.getMessage()[:30] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the source cannot be reached, ", "the source can be reached agai",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_folder_without_runs_waits_for_the_first(runs, watch):
    fleet, receiver = watch(runs.folder)
    assert fleet.check().counts == "0 runs"
    for name in HOSTILE:
        runs(f"{name}.jsonl", range(10), nan_at=3)
    assert sorted(row.run for row in fleet.check().rows) == sorted(f"{name}.jsonl" for name in HOSTILE)
    assert len(receiver.got) == len(HOSTILE)


def test_a_state_that_cannot_be_saved_is_reported_and_delays_no_alert(runs, watch, tmp_path, caplog):
    runs("a.jsonl", range(20), nan_at=7)
    fleet, receiver = watch(runs.folder)
    state = tmp_path / "state"
    state.rename(tmp_path / "elsewhere")
    state.write_text("a file where the folder should be")
    for _ in range(2):
        shown = fleet.check()
    assert len(receiver.got) == 1
    assert "cannot save the state" in shown.note
    assert caplog.text.count("the state cannot be saved") == 1
    state.unlink()
    (tmp_path / "elsewhere").rename(state)
    assert fleet.check().note == ""
    later, receiver = watch(runs.folder)
    later.check()
    assert receiver.got == []


def test_a_run_that_cannot_be_judged_is_named_and_stops_no_other(runs, watch, monkeypatch):
    for name in "ab":
        runs(f"{name}.jsonl", range(20), nan_at=7)
    fleet, receiver = watch(runs.folder)
    real = watched_run.read_run

    def read_or_fail(source):
        if source.endswith("a.jsonl"):
            raise ZeroDivisionError("no good")
        return real(source)

    with monkeypatch.context() as patch:
        patch.setattr(watched_run, "read_run", read_or_fail)
        rows = rows_of(fleet.check())
    assert rows["a.jsonl"].note == "could not be judged: ZeroDivisionError: no good"
    assert (rows["b.jsonl"].level, len(receiver.got)) == ("error", 1)
    assert rows_of(fleet.check())["a.jsonl"].level == "error"
    assert len(receiver.got) == 2


@pytest.mark.slow
def test_when_the_tracker_goes_away_only_one_run_waits_for_it(runs, watch, monkeypatch):
    for name in "abc":
        runs(f"{name}.jsonl", range(12))
    fleet, _ = watch(runs.folder)
    fleet.check()
    for name in "abc":
        runs(f"{name}.jsonl", range(12, 20))
    real, listed, read = watching.list_runs, [], []

    def list_once(*arguments, **options):
        listed.append(arguments)
        if len(listed) > 1:
            raise SourceError("no answer")
        return real(*arguments, **options)

    def timeout(source):
        read.append(source)
        raise SourceError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(watching, "list_runs", list_once)
        patch.setattr(watched_run, "read_run", timeout)
        for _ in range(3):
            shown = fleet.check()
    assert len(read) == 1
    assert "no answer" in shown.note
    assert {row.step for row in fleet.check().rows} == {19}


def test_rows_that_came_while_a_tracker_was_read_metric_by_metric_wait_for_the_next_check(runs, watch, monkeypatch):
    """Otherwise a step would be judged by some of its metrics."""
    file = runs("a.jsonl", range(10))
    real = watched_run.read_run
    listed = replace(list_runs(str(file))[0], last=9)
    monkeypatch.setattr(watching, "list_runs", lambda *_, **__: [listed])

    def torn(source):
        run = real(source)
        rows = {step: {"reward": row["reward"]} if step > 9 else row for step, row in run.rows.items()}
        return replace(run, rows=rows)

    fleet, receiver = watch(runs.folder)
    runs("a.jsonl", range(10, 20), nan_at=15)
    with monkeypatch.context() as patch:
        patch.setattr(watched_run, "read_run", torn)
        assert rows_of(fleet.check())["a.jsonl"].step == 9
    listed = replace(listed, last=19, mark="another")
    assert rows_of(fleet.check())["a.jsonl"].step == 19
    assert receiver.got == [("a.jsonl", 15, "NUM004")]


@pytest.mark.slow
def test_a_receiver_that_is_away_delays_no_other_and_gets_its_alerts_in_order_from_a_later_watch(runs, watch, caplog):
    here, away = Receiver(), Receiver()
    away.fails = OSError("http://there: Connection refused")
    for name in "ab":
        runs(f"{name}.jsonl", range(20), nan_at=7)
    fleet, _ = watch(runs.folder, away=away, here=here)
    for _ in range(2):
        fleet.check()
    assert (here.got, away.got) == ([("a.jsonl", 7, "NUM004"), ("b.jsonl", 7, "NUM004")], [])
    assert caplog.text.count("alerts wait for a receiver that is away") == 1
    later, _ = watch(runs.folder, away=away, here=here)
    later.check()
    away.fails = None
    later.check()
    assert away.got == here.got
    assert away.ids == here.ids
    assert "the receiver is back" in caplog.text


def test_a_refused_alert_is_not_sent_again(runs, watch, caplog):
    receiver = Receiver()
    receiver.fails = Refused("http://there: HTTP 404")
    runs("a.jsonl", range(20), nan_at=7)
    fleet, _ = watch(runs.folder, receiver=receiver)
    fleet.check()
    receiver.fails = None
    fleet.check()
    assert receiver.got == []
    assert "HTTP 404" in caplog.text


@pytest.mark.slow
def test_a_new_receiver_begins_with_the_alerts_that_come_from_then_on(runs, watch):
    runs("a.jsonl", range(20), nan_at=7)
    fleet, _ = watch(runs.folder)
    fleet.check()
    runs("a.jsonl", range(20, 30))
    fleet, new = watch(runs.folder, new=Receiver(), receiver=Receiver())
    fleet.check()
    assert [step for _, step, _ in new.got] == [28], "the NaN is over"


def test_the_log_names_the_run_and_a_url_gets_run_and_id(caplog, receive):
    there = receive([503, 404])
    receivers = receivers_for([there.url])
    log, url = receivers.values()
    assert list(receivers) == list(receivers_for([there.url]))
    assert there.url not in str(list(receivers))
    with caplog.at_level(logging.INFO, "tracker_diag"):
        log("a run\n" + 50 * "x", Notice(7, "warn", "a title", "text\nmore", "id"))
        log("run", Notice(7, "info", "over", "", "id"))
    first, second = caplog.records
    assert first.getMessage().startswith("a run xxx")
    assert first.getMessage().endswith("…: a title\n  text\n  more")
    assert (first.levelno, second.levelno) == (logging.WARNING, logging.INFO)
    with pytest.raises(OSError, match="HTTP 503"):
        url("mine", Notice(7, "warn", "a title", "a text", "an id"))
    with pytest.raises(Refused, match="HTTP 404"):
        url("mine", Notice(7, "warn", "a title", "a text", "an id"))
    url("mine", Notice(7, "warn", "a title", "a text", "an id"))
    assert there.got == [
        {"title": "a title", "text": "a text", "level": "warn", "step": 7, "run": "mine", "id": "an id"}
    ]
    with pytest.raises(DiagError, match="the URL is not shown"):
        receivers_for(["nonsense"])


def test_what_a_run_says_of_its_end():
    def ended(rows, **more):
        return watched_run.has_ended(FinishedRun("run", rows, {}, {}, (), **more))

    assert ended({1: {"loss": 1.0}, 2: {"train_runtime": 9.0}}), "the last row of a trainer of Hugging Face"
    assert ended({}, ended="failed")
    assert not ended({1: {"train_runtime": 9.0}, 2: {"loss": 1.0}})
    assert not ended({})


@pytest.mark.nightly
def test_of_a_run_of_mlflow_that_is_watched_from_inside_the_tags_are_read(mlflow_store, watch):
    import mlflow

    with mlflow.start_run(run_name="inside"):
        run = td.wrap(mlflow)
        for step in range(20):
            mlflow.log_metrics({"reward": 0.5, "kl": float("nan") if step == 7 else 0.01}, step=step)
        run.diag.close()
    fleet, receiver = watch("mlflow:Default")
    (row,) = fleet.check().rows
    assert (row.run, row.activity, row.step, row.level, row.rule) == ("inside", "finished", 19, "error", "NUM004")
    assert row.first_break == "NUM004: NaN or infinity"
    assert (row.note, receiver.got) == ("", [])
