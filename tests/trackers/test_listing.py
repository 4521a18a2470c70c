"""How runs stand, as files, MLflow and Trackio say it; W&B is in test_wandb.py."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import Gone
from tracker_diag.trackers.listing import list_runs
from tracker_diag.trackers.open import read_run

ROW = '{"step": 1, "reward": 0.5}\n'


def listed(source):
    (result,) = list_runs(str(source))
    return result


def test_a_file_has_another_mark_as_soon_as_it_has_grown_or_was_replaced(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text(ROW)
    first = listed(file)
    assert (first.source, first.name, first.over, first.cut) == (str(file), "metrics.jsonl", None, False)
    assert first.updated == file.stat().st_mtime
    assert listed(file).mark == first.mark
    with file.open("a") as out:
        out.write(ROW)
    grown = listed(file).mark
    assert grown != first.mark
    other = tmp_path / "other"
    other.write_text(2 * ROW)
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert listed(file).mark != grown


def test_a_file_without_a_byte_has_no_mark_and_one_that_went_is_gone(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.touch()
    assert listed(file).mark == ""
    file.unlink()
    with pytest.raises(Gone, match=r"metrics.jsonl: no such file or folder$"):
        listed(file)


@pytest.mark.parametrize(
    ("name", "text", "cut"),
    [
        ("m.jsonl", ROW, False),
        ("m.jsonl", ROW + '{"step": 2, "rew', True),
        ("m.csv", "step,reward\n1,0.5\n2,0.", True),
        ("run.log", "step:1 - loss:0.5", True),
        ("trainer_state.json", '{"log_history": []}', False),
    ],
)
def test_a_last_line_without_an_end_is_cut(name, text, cut, tmp_path):
    (tmp_path / name).write_text(text)
    assert listed(tmp_path / name).cut is cut


def test_a_folder_grows_with_any_file_in_it(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "events.out.tfevents.1").write_bytes(b"x")
    before = listed(tmp_path)
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "events.out.tfevents.1").write_bytes(b"x")
    assert listed(tmp_path).mark != before.mark


def test_of_a_folder_the_files_and_folders_that_are_runs(tmp_path):
    others = ("findings.jsonl", ".hidden.jsonl", "notes.md", "model.safetensors")
    for name in ("b.jsonl", "a.csv", "c.log", *others):
        (tmp_path / name).write_text(ROW)
    for name in ("run 1/metrics.jsonl", "run 2/checkpoint-5/trainer_state.json", "checkpoints/model.pt",
                 "offline-run-1/run-1.wandb", "offline-run-2-diag-1/run-2.wandb"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(ROW)
    (tmp_path / "latest-run").symlink_to("offline-run-1")
    result = list_runs(str(tmp_path), project=True)
    assert [run.name for run in result] == ["a.csv", "b.jsonl", "c.log", "offline-run-1", "run 1", "run 2"]
    assert result[1].source == str(tmp_path / "b.jsonl")


def test_sources_that_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    for source, project, message in (
        ("", False, "no source given, expected a file"),
        ("nowhere", False, "nowhere: no such file or folder"),
        (
            "nowhere",
            True,
            "nowhere: no such folder; --project expects a folder, or a project with mlflow:, trackio:, wandb:",
        ),
        ("trackio:nowhere/run", False, "trackio:nowhere/run: no project 'nowhere' in Trackio's folder"),
        ("trackio:nowhere", True, "trackio:nowhere: no project 'nowhere' in Trackio's folder"),
    ):
        with pytest.raises(SourceError, match=message):
            list_runs(source, project=project)


@pytest.mark.nightly
def test_runs_of_trackio(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    with closing(sqlite3.connect(tmp_path / "agents.db")) as store:
        store.executescript((Path(__file__).parent / "trackio_0_43.sql").read_text())
        store.execute("INSERT INTO configs VALUES(9, 'new', 'run-c', '{}', '2026-11-22T00:00:00+00:00')")
        store.commit()
    result = list_runs("trackio:agents", project=True)
    assert [run.name for run in result] == ["run-a", "run-b", "run-c"]
    assert [run.mark for run in result] == ["5", "6", ""]
    assert {run.over for run in result} == {None}
    assert 0 < result[1].updated < result[2].updated
    for run, rows in zip(result, (4, 1), strict=False):
        assert len(read_run(run.source).rows) == rows
    assert listed("trackio:agents/run-a").mark == "5"
    assert listed(result[0].source).name == "run-a"
    with closing(sqlite3.connect(tmp_path / "agents.db")) as store:
        copy = "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) "
        copy += "SELECT run_id, timestamp, run_name, step, ? FROM metrics WHERE id = 1"
        for metrics, over in (('{"diag/slices": {}}', "finished"), ('{"diag/decision": {}}', "finished"), ("{}", None)):
            store.execute(copy, (metrics,))
            store.commit()
            assert [run.over for run in list_runs("trackio:agents", project=True)] == [over, None, None]


@pytest.mark.slow
def test_runs_of_mlflow(mlflow_store):
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.create_experiment("agents 5")
    ids = [client.create_run(experiment, run_name=name).info.run_id for name in ("a", "b", "c", "d")]
    for run_id in ids[:2]:
        client.log_metric(run_id, "reward", 0.5, step=3, timestamp=1_700_000_000_000)
    client.set_terminated(ids[1], "FAILED", end_time=1_700_000_005_000)
    client.set_tag(ids[0], "diag.alert.state", "warn")
    client.set_tag(ids[0], "diag.first_break", "after tool results @96 (POL001)")
    client.delete_run(ids[3])
    for source in ("mlflow:agents 5", f"mlflow:{experiment}", f"mlflow:agents 5@{mlflow_store}"):
        result = {run.name: run for run in list_runs(source, project=True)}
        assert sorted(result) == ["a", "b", "c"]
        assert len(read_run(result["a"].source).rows) == 1
    assert (result["a"].over, result["a"].updated, result["b"].over) == ("", 1_700_000_000.0, "failed")
    assert result["b"].updated == 1_700_000_005.0
    assert (result["a"].state, result["a"].first_break) == ("warn", "after tool results @96 (POL001)")
    assert (result["c"].mark, result["c"].last, result["a"].last) == ("", None, 3)
    mark = listed(f"mlflow:{ids[0]}").mark
    assert mark == result["a"].mark
    client.log_metric(ids[0], "reward", 0.5, step=4, timestamp=1_700_000_000_000)
    assert listed(f"mlflow:{ids[0]}").mark != mark
    for source, project, error, message in (
        (f"mlflow:{ids[3]}", False, Gone, "the run was deleted"),
        ("mlflow:0000", False, Gone, "Run with id=0000 not found"),
        ("mlflow:nowhere", True, SourceError, "no experiment 'nowhere'"),
        ("mlflow:@x", True, SourceError, r"expected mlflow:<experiment name or id>\[@tracking uri\]"),
    ):
        with pytest.raises(error, match=message):
            list_runs(source, project=project)
