"""Several runs in one process: what is told, what stands in the table, and what stays out of the way."""

import json
import logging
import os
import time
from dataclasses import replace

import pytest

from tracker_diag.errors import SourceError
from tracker_diag.rules.judge import Judge
from tracker_diag.rules.loader import in_force
from tracker_diag.runs import watched
from tracker_diag.runs.fleet import FleetWatch
from tracker_diag.runs.logbook import Logbook
from tracker_diag.trackers.listing import list_runs

RULES = in_force()
HOSTILE = ("<script>alert(1)", "[red]markup[bold]", "x" * 200, "🤖\x1b[31m\ttab", "المكافأة")


class Ear:
    id = "ear"

    def __init__(self):
        self.heard = []

    def tell(self, message):
        self.heard.append((message.run, message.notice.step, message.notice.title.split()[0]))


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """Opens watches one after another, all with one state; gives the watch and who hears its alerts."""
    monkeypatch.setattr(watched, "SHARE", 0)  # a look that follows at once reads all the same
    underway = []

    def start(source, *, project=True):
        while underway:
            underway.pop().close()
        ear = Ear()
        logbook = Logbook(tmp_path / "state", str(source), project=project)
        underway.append(FleetWatch(str(source), logbook, project=project, rules=RULES, channels=[ear]))
        return underway[-1], ear

    yield start
    while underway:
        underway.pop().close()


@pytest.fixture
def runs(tmp_path):
    """A folder of runs; writes rows into one of them."""
    folder = tmp_path / "runs"
    folder.mkdir()

    def write(name, steps, *, nan_at=None, age=60.0, mode="a", **more):
        file = folder / name
        with file.open(mode) as out:
            for step in steps:
                row = {"step": step, "reward": step / 100, "kl": float("nan") if step == nan_at else 0.01, **more}
                out.write(json.dumps(row) + "\n")
        now = time.time()
        os.utime(file, (now - age, now - age))
        return file

    write.folder = folder
    return write


def rows_of(fleet):
    return {row.run: row for row in fleet.rows}


def test_alerts_are_told_once_also_by_a_later_watch(runs, watch):
    runs("a.jsonl", range(20), nan_at=7)
    runs("b.jsonl", range(20))
    first, ear = watch(runs.folder)
    first.look()
    first.look()
    assert ear.heard == [("a.jsonl", 7, "NUM004")]
    runs("b.jsonl", range(20, 30), nan_at=25)
    second, ear = watch(runs.folder)
    second.look()
    assert ear.heard == [("b.jsonl", 25, "NUM004")]


def test_a_watch_that_is_started_again_reads_only_what_has_changed(runs, watch, monkeypatch):
    for name in "abc":
        runs(f"{name}.jsonl", range(12), nan_at=5)
    first, _ = watch(runs.folder)
    before = rows_of(first.look())
    read = []
    real = watched.read_run
    monkeypatch.setattr(watched, "read_run", lambda source: read.append(source) or real(source))
    runs("b.jsonl", range(12, 22), age=30)
    second, _ = watch(runs.folder)
    after = rows_of(second.look())
    assert [os.path.basename(name) for name in read] == ["b.jsonl"]  # noqa: PTH119
    assert after["a.jsonl"] == before["a.jsonl"]
    assert (before["b.jsonl"].step, after["b.jsonl"].step) == (11, 21)


def test_what_stands_in_the_table(runs, watch):
    runs("healthy.jsonl", range(20), timestamp=0)
    runs("nan.jsonl", range(20), nan_at=7, step_seconds=60.0)
    runs("finished.jsonl", range(20))
    runs("finished.jsonl", [20], train_runtime=300.0)
    runs("silent.jsonl", range(20), age=1200)
    runs("no number.jsonl", [])
    (runs.folder / "starting.log").write_text("hello\n")
    runs("no reward.jsonl", [], mode="w")
    (runs.folder / "no reward.jsonl").write_text('{"step": 1, "entropy": 0.5}\n{"step": 2, "entropy": 0.5}\n')
    fleet, _ = watch(runs.folder)
    shown = fleet.look()
    rows = rows_of(shown)
    assert {name: row.level for name, row in rows.items()} == {
        "healthy.jsonl": "ok", "nan.jsonl": "error", "finished.jsonl": "ok", "silent.jsonl": "ok",
        "no number.jsonl": "unknown", "starting.log": "unknown", "no reward.jsonl": "ok",
    }  # fmt: skip
    assert {name: row.activity.partition(" since")[0] for name, row in rows.items()} == {
        "healthy.jsonl": "running", "nan.jsonl": "running", "finished.jsonl": "finished", "silent.jsonl": "silent",
        "no number.jsonl": "no row yet", "starting.log": "no row yet", "no reward.jsonl": "running",
    }  # fmt: skip
    broken = rows["nan.jsonl"]
    assert (broken.rule, broken.since, broken.cost) == ("NUM004", 7, "12 steps, 12 min")
    assert broken.first_break == "NUM004: NaN or infinity"
    assert broken.when
    assert (rows["no reward.jsonl"].best, rows["no reward.jsonl"].last) == ("", "")
    assert "no metrics" in rows["starting.log"].note
    assert shown.sorted[0] is broken
    assert shown.counts == "7 runs: 1 error, 2 unknown, 4 ok"
    assert fleet.levels == {"error"}


def test_the_reward_at_its_best_and_last(runs, watch):
    file = runs("a.jsonl", range(120))
    with file.open("a") as out:
        out.writelines(json.dumps({"step": step, "reward": 1e-9, "kl": 0.01}) + "\n" for step in range(120, 200))
    os.utime(file, (time.time() - 60,) * 2)
    fleet, ear = watch(runs.folder)
    (row,) = fleet.look().rows
    assert row.rule == "OUT001"
    assert 1.0 <= float(row.best) <= 1.2
    assert row.last == "0"
    assert ear.heard[0][2] == "OUT001"


def test_runs_that_had_ended_before_are_shown_and_not_told(runs, watch):
    runs("old.jsonl", range(20), nan_at=7, age=7200)
    runs("new.jsonl", range(20), nan_at=7)
    fleet, ear = watch(runs.folder)
    rows = rows_of(fleet.look())
    assert rows["old.jsonl"].level == rows["new.jsonl"].level == "error"
    assert ear.heard == [("new.jsonl", 7, "NUM004")]
    runs("old.jsonl", range(20, 40))  # taken up again: from here on it is one as any other, and the NaN are over
    fleet.look()
    assert ear.heard == [("new.jsonl", 7, "NUM004"), ("old.jsonl", 28, "NUM004")]


def test_a_single_run_that_has_ended_is_told_as_it_was_asked_for(runs, watch):
    file = runs("old.jsonl", range(20), nan_at=7, age=7200)
    fleet, ear = watch(file, project=False)
    fleet.look()
    assert ear.heard == [("old.jsonl", 7, "NUM004")]


def test_a_run_that_the_diagnostics_watch_from_inside_tells_its_alerts_itself(runs, watch):
    runs("a.jsonl", range(20), nan_at=7, **{"diag/health/nonfinite_metrics": 0})
    fleet, ear = watch(runs.folder)
    (row,) = fleet.look().rows
    assert (row.level, row.rule, ear.heard) == ("error", "NUM004", [])
    assert row.note == "its alerts are told by the diagnostics in the run itself"
    runs("a.jsonl", range(20, 24), **{"diag/rule/NUM004": 2})
    (row,) = fleet.look().rows
    assert row.note == "told by the diagnostics in the run itself"


def test_what_the_diagnostics_found_from_inside_counts_though_the_rows_do_not_show_it(runs, watch):
    runs("a.jsonl", range(20), **{"diag/rule/POL001": 2, "diag/rule/POL002": 2})
    fleet, ear = watch(runs.folder)
    (row,) = fleet.look().rows
    assert (row.level, row.rule, row.first_break, row.since) == ("warn", "POL001", "POL001, found live", 0)
    assert (row.note, ear.heard) == ("told by the diagnostics in the run itself", [])
    runs("a.jsonl", range(20, 30), **{"diag/rule/POL001": 0, "diag/rule/POL002": 0})
    (row,) = fleet.look().rows
    assert (row.level, row.rule) == ("ok", "POL001")


def test_what_the_diagnostics_in_a_run_have_not_told_by_its_end_is_told(runs, watch):
    runs("a.jsonl", range(20), **{"diag/rule/NUM004": 0})
    fleet, ear = watch(runs.folder)
    fleet.look()
    runs("a.jsonl", [20, 21], nan_at=20, train_runtime=300.0)
    (row,) = fleet.look().rows
    assert (row.level, row.rule, row.activity) == ("error", "NUM004", "finished")
    assert row.note == "found here, and not told by the diagnostics in the run itself"
    assert ear.heard == [("a.jsonl", 20, "NUM004")]


def test_files_that_are_cut_truncated_replaced_or_gone(runs, watch):
    file = runs("a.jsonl", range(20), nan_at=7)
    fleet, ear = watch(runs.folder)
    fleet.look()
    whole = file.read_text()
    later = "".join(json.dumps({"step": step, "reward": 0.3, "kl": 0.01}) + "\n" for step in range(20, 26))
    for text in (whole + later[:-20], whole[: len(whole) // 2], "", whole + later[:-1], whole + later):
        file.write_text(text)
        fleet.look()
    os.utime(file, (time.time() - 60,) * 2)
    (row,) = fleet.look().rows
    assert (row.step, row.level) == (25, "error")
    assert ear.heard == [("a.jsonl", 7, "NUM004")], "the same alert of the same rows"
    runs("a.jsonl", range(25), nan_at=9, mode="w")
    fleet.look()
    assert ear.heard[1:] == [("a.jsonl", 9, "NUM004")], "another run under the same name"
    file.unlink()
    (row,) = fleet.look().rows
    assert (row.activity, row.goes_on, row.step) == ("gone", False, 24)
    runs("a.jsonl", range(25), nan_at=9, mode="w")
    (row,) = fleet.look().rows
    assert row.activity == "running"
    assert len(ear.heard) == 2


def test_a_run_that_went_while_nobody_watched_is_shown_no_more(runs, watch):
    runs("a.jsonl", range(5))
    runs("b.jsonl", range(5))
    fleet, _ = watch(runs.folder)
    fleet.look()
    (runs.folder / "a.jsonl").unlink()
    fleet, _ = watch(runs.folder)
    assert list(rows_of(fleet.look())) == ["b.jsonl"]


def test_a_last_line_without_its_end_is_not_judged(runs, watch):
    file = runs("a.csv", [])
    file.write_text("step,reward\n1,12\n2,12\n3,1")
    os.utime(file, (time.time() - 60,) * 2)
    fleet, _ = watch(runs.folder)
    assert rows_of(fleet.look())["a.csv"].step == 2
    file.write_text("step,reward\n1,12\n2,12\n3,12\n")
    os.utime(file, (time.time() - 60,) * 2)
    assert rows_of(fleet.look())["a.csv"].step == 3


def test_a_single_run_that_goes_away_is_said_once_and_goes_on(runs, watch, caplog):
    file = runs("a.jsonl", range(20))
    fleet, ear = watch(file, project=False)
    fleet.look()
    text = file.read_text()
    file.unlink()
    for _ in range(3):
        shown = fleet.look()
    assert "cannot be reached since" in shown.note
    assert shown.rows[0].activity == "gone"
    file.write_text(text)
    runs("a.jsonl", range(20, 30), nan_at=25)
    shown = fleet.look()
    assert (shown.note, shown.rows[0].activity, shown.rows[0].step) == ("", "running", 29)
    assert ear.heard == [("a.jsonl", 25, "NUM004")]
    assert [record.getMessage()[:30] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "what is watched cannot be reac", "what is watched can be reached",
    ]  # fmt: skip


def test_a_source_that_never_was_is_refused(tmp_path, watch):
    fleet, _ = watch(tmp_path / "nowhere")
    with pytest.raises(SourceError, match="nowhere: no such folder"):
        fleet.look()


def test_a_folder_without_runs_waits_for_one(runs, watch):
    fleet, ear = watch(runs.folder)
    assert fleet.look().counts == "0 runs"
    runs("a.jsonl", range(10), nan_at=3)
    assert fleet.look().counts == "1 run: 1 error"
    assert len(ear.heard) == 1


def test_hostile_names_are_names(runs, watch):
    for name in HOSTILE:
        runs(f"{name}.jsonl", range(10), nan_at=3)
    fleet, ear = watch(runs.folder)
    assert sorted(row.run for row in fleet.look().rows) == sorted(f"{name}.jsonl" for name in HOSTILE)
    assert len(ear.heard) == len(HOSTILE)


def test_a_state_that_cannot_be_written_tells_nothing_and_is_said(runs, watch, tmp_path, caplog):
    runs("a.jsonl", range(20), nan_at=7)
    fleet, ear = watch(runs.folder)
    state = tmp_path / "state"
    state.rename(tmp_path / "elsewhere")
    shown = fleet.look()
    assert ear.heard == []
    assert "cannot keep what was read" in shown.note
    assert "alerts wait until it can" in caplog.text
    (tmp_path / "elsewhere").rename(state)
    shown = fleet.look()
    assert (shown.note, len(ear.heard)) == ("", 1)


def test_what_breaks_off_in_the_midst_of_a_row_is_judged_again(runs, watch, monkeypatch):
    """As after a second Ctrl-C: half of a row is no state to go on from."""
    runs("a.jsonl", range(20), nan_at=7)
    real = Judge.take

    def take(judge, step, *rest):
        told = real(judge, step, *rest)
        if step == 7:
            raise KeyboardInterrupt
        return told

    fleet, ear = watch(runs.folder)
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "take", take)
        with pytest.raises(KeyboardInterrupt):
            fleet.look()
    fleet, later = watch(runs.folder)
    fleet.look()
    assert (ear.heard, later.heard) == ([], [("a.jsonl", 7, "NUM004")])


def test_a_run_that_cannot_be_judged_is_said_and_holds_up_no_other(runs, watch, monkeypatch):
    for name in "ab":
        runs(f"{name}.jsonl", range(20), nan_at=7)
    fleet, ear = watch(runs.folder)
    real = watched.read_run

    def read(source):
        if source.endswith("a.jsonl"):
            raise ZeroDivisionError("no good")
        return real(source)

    with monkeypatch.context() as patch:
        patch.setattr(watched, "read_run", read)
        rows = rows_of(fleet.look())
    assert rows["a.jsonl"].note == "could not be judged: ZeroDivisionError: no good"
    assert (rows["b.jsonl"].level, len(ear.heard)) == ("error", 1)
    assert rows_of(fleet.look())["a.jsonl"].level == "error"
    assert len(ear.heard) == 2


def test_what_came_while_a_tracker_was_read_metric_by_metric_waits_for_the_next_look(runs, watch, monkeypatch):
    """Else a step would be judged by the metrics that were read late, and the others would be left out as too late."""
    file = runs("a.jsonl", range(10))
    real = watched.read_run
    listed = replace(list_runs(str(file))[0], last=9)
    monkeypatch.setattr("tracker_diag.runs.fleet.list_runs", lambda *_, **__: [listed])

    def torn(source):
        run = real(source)
        rows = {step: {"reward": row["reward"]} if step > 9 else row for step, row in run.rows.items()}
        return replace(run, rows=rows)

    fleet, ear = watch(runs.folder)
    runs("a.jsonl", range(10, 20), nan_at=15)
    with monkeypatch.context() as patch:
        patch.setattr(watched, "read_run", torn)
        assert rows_of(fleet.look())["a.jsonl"].step == 9
    listed = replace(listed, last=19, mark="another")
    assert rows_of(fleet.look())["a.jsonl"].step == 19
    assert ear.heard == [("a.jsonl", 15, "NUM004")]


@pytest.mark.slow
def test_a_long_history_takes_turns(runs, watch):
    for name in "ab":
        runs(f"{name}.jsonl", range(200), nan_at=150)
    fleet, ear = watch(runs.folder)
    looks = 0
    while {name for name, *_ in ear.heard} != {"a.jsonl", "b.jsonl"}:  # one may have ended before the other begins
        shown = fleet.look(turn=0.01)
        looks += 1
        assert looks < 2000
    assert looks > 1
    assert set(ear.heard) >= {("a.jsonl", 150, "NUM004"), ("b.jsonl", 150, "NUM004")}
    assert len(shown.rows) == 2


@pytest.mark.nightly
@pytest.mark.slow
def test_two_hundred_runs(runs, watch):
    for number in range(200):
        runs(f"{number:03}.jsonl", range(12), nan_at=5 if number % 50 == 0 else None)
    fleet, ear = watch(runs.folder)
    assert fleet.look().counts == "200 runs: 4 error, 196 ok"
    assert sorted(ear.heard) == [(f"{number:03}.jsonl", 5, "NUM004") for number in (0, 50, 100, 150)]
    again, ear = watch(runs.folder)
    assert again.look().counts == "200 runs: 4 error, 196 ok"
    assert ear.heard == []


def as_csv(folder, rows):
    lines = ["step,reward,kl", *(f"{step},{row['reward']},{row['kl']}" for step, row in rows)]
    (folder / "progress.csv").write_text("\n".join(lines) + "\n")


def as_console(folder, rows):
    text = "".join(f"step:{step} - critic/rewards/mean:{row['reward']} - actor/kl:{row['kl']}\n" for step, row in rows)
    (folder / "train.log").write_text("starting\n" + text)


def as_trainer_state(folder, rows):
    place = folder / "out" / f"checkpoint-{rows[-1][0]}"
    place.mkdir(parents=True)
    (place / "trainer_state.json").write_text(json.dumps({"log_history": [{"step": s, **row} for s, row in rows]}))


def as_tensorboard(folder, rows):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    known = rows[len(rows) // 2 :] if (folder / "tb").exists() else rows
    writer = EventFileWriter(str(folder / "tb"), filename_suffix=f".{len(rows)}")
    for step, row in known:
        values = [Summary.Value(tag=key, simple_value=value) for key, value in row.items()]
        writer.add_event(Event(step=step, wall_time=1000.0 + step, summary=Summary(value=values)))
    writer.close()


@pytest.mark.parametrize("write", [as_csv, as_console, as_trainer_state, as_tensorboard])
def test_each_kind_of_file_is_followed(write, tmp_path, watch):
    folder = tmp_path / "runs"
    folder.mkdir()
    rows = [(step, {"reward": 0.25, "kl": float("nan") if step == 15 else 0.01}) for step in range(1, 21)]
    fleet, ear = watch(folder)
    for end in (10, 20):
        write(folder, rows[:end])
        for path in folder.rglob("*"):
            os.utime(path, (time.time() - 60 + end,) * 2)
        (row,) = fleet.look().rows
        assert (row.step, row.note) == (end, "")
    assert [(step, rule) for _, step, rule in ear.heard] == [(15, "NUM004")]


@pytest.mark.slow
def test_of_a_run_of_mlflow_that_is_watched_from_inside_the_tags_are_read(mlflow_store, watch):
    import mlflow

    import tracker_diag as td

    with mlflow.start_run(run_name="inside"):
        run = td.wrap(mlflow)
        for step in range(20):
            mlflow.log_metrics({"reward": 0.5, "kl": float("nan") if step == 7 else 0.01}, step=step)
        run.diag.close()
    fleet, ear = watch("mlflow:Default")
    (row,) = fleet.look().rows
    assert (row.run, row.activity, row.step, row.level, row.rule) == ("inside", "finished", 19, "error", "NUM004")
    assert row.first_break == "NUM004 on all at step 7"
    assert "told by the diagnostics" in row.note
    assert ear.heard == []
