"""Against a real MLflow store; the pages are looked at in test_pages.py."""

import json
import math
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path

import pytest
import requests
from typer.testing import CliRunner

from tracker_diag import DiagError, Monitor, wrap
from tracker_diag.cli.app import app
from tracker_diag.records import Scalar
from tracker_diag.trackers.delivery import outbox
from tracker_diag.trackers.mlflow.artifacts import TABLES_TAG
from tracker_diag.trackers.mlflow.write import NOTE_TAG, TRIES, MlflowTracker
from tracker_diag.trackers.tracker import Event, File, Refused, Unavailable

pytestmark = pytest.mark.slow


@pytest.fixture
def mlflow(mlflow_store):
    import mlflow

    return mlflow


def metric_names(client, run_id):
    return set(client.get_run(run_id).data.metrics)


def test_the_alert_stands_in_the_tags_while_the_run_continues(rng, make_batch, mlflow):
    with mlflow.start_run() as active:
        run = wrap(active)
        run.diag.observe(**make_batch(rng))
        mlflow.log_metrics({"loss": math.nan}, 0)
        mlflow.log_metrics({"loss": 0.1}, 1)
        tags, until = {}, time.monotonic() + 60
        while not ("NaN" in tags.get(NOTE_TAG, "") and "diag.alert.state" in tags) and time.monotonic() < until:
            time.sleep(0.1)  # a reader without a pause keeps SQLite from taking what is written
            tags = mlflow.MlflowClient().get_run(active.info.run_id).data.tags
        assert tags["diag.alert.state"] == "error"
        assert "**Stop. NaN or infinity in loss, since step 0.** [Charts]" in tags[NOTE_TAG], (
            "the report comes at the end"
        )
        assert "no step before it is known to be good" in tags[NOTE_TAG]
        assert "get-artifact?path=diag/decision.png" in tags[NOTE_TAG]
        while not drawn(mlflow, active.info.run_id) and time.monotonic() < until:
            time.sleep(0.1)
        assert drawn(mlflow, active.info.run_id) == ["diag/decision.png"]  # and not at the end alone
        run.diag.close()


def drawn(mlflow, run_id):
    paths = [artifact.path for artifact in mlflow.MlflowClient().list_artifacts(run_id, "diag")]
    return [path for path in paths if path.endswith(".png")]


def test_what_a_run_could_not_send_is_brought_with_its_verdict(mlflow, journals, monkeypatch):
    monkeypatch.setattr(outbox, "CLOSE_WITHIN", 0.5)
    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id

    class Away(mlflow.MlflowClient):
        def log_batch(self, *args, **kwargs):
            raise ConnectionError("away")

        set_tag = log_batch

    with Monitor([MlflowTracker(Away(), run_id)]) as monitor:
        for step in range(3):
            monitor.log({"loss": math.nan if step == 1 else 0.1}, step)
    assert NOTE_TAG not in client.get_run(run_id).data.tags
    done = CliRunner().invoke(app, ["flush", str(journals)])
    assert done.exit_code == 0, done.output
    note = client.get_run(run_id).data.tags[NOTE_TAG]
    assert (
        note.count("**Fix it, then start again. NaN or infinity in loss, since step 1.** [Charts](#/experiments/0") == 1
    )
    assert "As of step" not in note  # it is that of the end, and not that of the alert


def test_a_run_that_does_not_exist_is_reported_at_set_up(mlflow):
    with pytest.raises(DiagError, match=r"run_id: '0+' given, expected a run at sqlite:.*not found"):
        wrap(mlflow.MlflowClient(), run_id="0" * 32)
    with pytest.raises(DiagError, match="run_id: nothing given"):
        wrap(mlflow.MlflowClient())


@pytest.fixture
def shaky(mlflow, monkeypatch):
    """A real client that every write fails once, half of them after they were done; and the files it was to write."""
    monkeypatch.setattr(outbox, "RETRY", 0.01)
    monkeypatch.setattr(outbox, "CLOSE_WITHIN", 120.0)
    number, files = count(), []

    class Shaky(mlflow.MlflowClient):
        def log_artifact(self, run_id, local_path, artifact_path=None):
            files.append(f"{artifact_path}/{Path(local_path).name}")
            self._shake(super().log_artifact, run_id, local_path, artifact_path)

        def log_batch(self, *args, **kwargs):
            self._shake(super().log_batch, *args, **kwargs)

        def set_tag(self, *args, **kwargs):
            self._shake(super().set_tag, *args, **kwargs)

        def set_experiment_tag(self, *args, **kwargs):
            self._shake(super().set_experiment_tag, *args, **kwargs)

        def _shake(self, call, *args, **kwargs):
            now = next(number)
            if now % 4 != 0:
                call(*args, **kwargs)
            if now % 2 == 0:
                raise mlflow.MlflowException("no answer")

    return Shaky(), files


@pytest.mark.nightly
def test_each_request_is_tried_again_on_its_own(rng, make_batch, mlflow, shaky):
    client, files = shaky
    with mlflow.start_run(description="What I tried.") as active:
        mlflow.log_table({"mine": [1]}, "mine.json")
        monitor = Monitor([MlflowTracker(client, active.info.run_id)])
        for step in range(3):
            monitor.rebaseline(f"change {step}")
            monitor.observe(**make_batch(rng))
            monitor.log({"loss": math.nan if step == 1 else 0.1}, step)
        monitor.close()
    run_id = active.info.run_id
    assert monitor.health["tracker_errors"] > 10
    assert all("no answer" in failure for failure in monitor.failures)

    for name in metric_names(client, run_id):
        steps = [point.step for point in client.get_metric_history(run_id, name)]
        assert steps == sorted(set(steps))
    assert mlflow.load_table("diag/events.json", run_ids=[run_id])["step"].tolist() == [0, 0, 1, 2]
    slices = mlflow.load_table("diag/slices.json", run_ids=[run_id])
    assert len(slices) == len(slices[["pair", "slice"]].drop_duplicates())
    assert len(files) > len(set(files))
    tags = client.get_run(run_id).data.tags
    assert tags["diag.first_break"] == "NaN or infinity @1 (NUM004)"
    assert tags[NOTE_TAG].startswith("What I tried.")
    assert tags[NOTE_TAG].count("**Fix it, then start again. NaN or infinity in loss, since step 1.**") == 1
    tables = [table["path"] for table in json.loads(tags[TABLES_TAG])]
    assert sorted(tables) == ["diag/events.json", "diag/slices.json", "mine.json"]
    assert {artifact.path for artifact in client.list_artifacts(run_id, "diag")} == {
        "diag/events.json",
        "diag/findings.json",
        "diag/policy",
        "diag/reference",
        "diag/report.html",
        "diag/slices.json",
        "diag/decision.png",
    }
    again = f"tracker-diag diagnose mlflow:{run_id}"
    assert again in Path(client.download_artifacts(run_id, "diag/report.html")).read_text()


def of_status(status):
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(response=response)


def test_artifacts_that_cannot_be_stored_hold_up_neither_metrics_nor_tags(rng, make_batch, mlflow, monkeypatch):
    client, refused = mlflow.MlflowClient(), threading.Event()

    def refuse(*args, **kwargs):
        refused.set()
        raise of_status(503)

    monkeypatch.setattr(client, "log_artifact", refuse)
    monkeypatch.setattr(outbox, "RETRY", 0.01)
    monkeypatch.setattr(outbox, "CLOSE_WITHIN", 2.0)
    with mlflow.start_run() as active:
        run_id = active.info.run_id
        monitor = Monitor([MlflowTracker(client, run_id)])
        for step in range(3):
            monitor.observe(**make_batch(rng))
            monitor.log({"loss": math.nan}, step)
        assert refused.wait(60)  # the first picture takes seconds where matplotlib is slow to import
        monitor.close()
    assert "HTTPError" in monitor.failures[0]
    points = client.get_metric_history(run_id, "diag/policy/text_only/p95")
    assert [point.step for point in points] == [0, 1, 2]
    tags = client.get_run(run_id).data.tags
    assert tags["diag.first_break"] == "NaN or infinity @0 (NUM004)"
    assert tags["diag.alert.rules"] == "NUM004"
    assert "**Fix it, then start again. NaN or infinity in loss, since step 0.**" in tags[NOTE_TAG]
    assert client.list_artifacts(run_id) == []


@pytest.mark.parametrize(("status", "tries", "then"), [
    (403, TRIES - 1, [Refused]), (404, TRIES - 1, [Refused]), (413, 0, [Refused, None]), (429, TRIES, []),
    (500, TRIES, []),
])  # fmt: skip
def test_what_an_artifact_store_answers_says_how_often_to_try_again(status, tries, then, mlflow, monkeypatch):
    client = mlflow.MlflowClient()
    tracker = MlflowTracker(client, client.create_run("0").info.run_id)

    def refuse(*args, **kwargs):
        raise of_status(status)

    monkeypatch.setattr(client, "log_artifact", refuse)
    tracker.write(0, [File("context.json", "{}")], 0.0)
    answers = []
    for _ in range(tries + len(then)):
        try:
            tracker.flush()
            answers.append(None)
        except (Unavailable, Refused) as error:
            answers.append(type(error))
    assert answers == [Unavailable] * tries + then


@pytest.mark.nightly
def test_a_run_that_nobody_closes_is_closed_when_the_process_ends(mlflow_store, tmp_path, mlflow):
    """As in the README: a `with` block around the module's own run, and no word of ours at the end."""
    script = tmp_path / "train.py"
    script.write_text(
        """
import mlflow, numpy as np, sys
import tracker_diag as td
mlflow.set_tracking_uri(sys.argv[1])
with mlflow.start_run() as run:
    tracker = td.wrap(mlflow)
    new = np.full((8, 100), -1.0)
    for step in range(3):
        tracker.diag.observe(logprobs=new, old_logprobs=new - 0.1, model_mask=np.ones((8, 100), bool))
        tracker.log_metrics({"loss": float("nan") if step == 2 else 0.1}, step=step)
print(run.info.run_id)
"""
    )
    done = subprocess.run([sys.executable, script, mlflow_store], capture_output=True, text=True, check=True)
    run_id = done.stdout.split()[-1]
    client = mlflow.MlflowClient()
    left = {Path(artifact.path).name for artifact in client.list_artifacts(run_id, "diag")}
    assert left >= {"findings.json", "report.html", "context.json", "postmortem"}  # it ends on NaN
    assert len(left) == 8
    assert client.get_run(run_id).data.tags["diag.first_break"] == "NaN or infinity @2 (NUM004)"
    assert client.get_run(run_id).info.status == "FINISHED"
    assert "cannot schedule" not in done.stderr


@pytest.mark.nightly
def test_a_run_that_is_resumed_in_another_process_adds_to_its_events(mlflow_store, mlflow):
    """At the end of a process, when MLflow's own way to read a table has no threads any more."""
    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    script = """
import mlflow, numpy as np, sys
import tracker_diag as td
mlflow.set_tracking_uri(sys.argv[1])
run = td.wrap(mlflow.start_run(sys.argv[2]))
new = np.full((8, 100), -1.0)
run.diag.rebaseline("a new tool")
run.diag.observe(logprobs=new, old_logprobs=new - 0.1, model_mask=np.ones((8, 100), bool))
run.diag.log({"loss": 0.5}, 0)
"""
    sizes = []
    for _ in range(2):
        command = [sys.executable, "-W", "ignore", "-c", script, mlflow_store, run_id]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "tracker_errors" not in done.stderr
        sizes.append(len(mlflow.load_table("diag/events.json", run_ids=[run_id])))
    assert sizes[1] == 2 * sizes[0] > 0


@pytest.mark.parametrize("left", ["", '{"columns": ["step", "event"], "data": [[0'])
def test_a_table_whose_upload_broke_off_is_written_anew(mlflow, left):
    """As a killed process leaves it on the server."""
    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    client.log_text(run_id, left, "diag/events.json")
    tracker = MlflowTracker(client, run_id)
    tracker.write(3, [Event("a new tool")], 0.0)
    assert tracker.flush()
    assert mlflow.load_table("diag/events.json", run_ids=[run_id]).to_numpy().tolist() == [[3, "a new tool"]]
    assert "starts over without its earlier rows" in str(tracker.tally.taken()[1])


@pytest.mark.nightly
def test_a_metric_without_a_step_moves_nothing(rng, make_batch, mlflow):
    with mlflow.start_run():
        run = wrap(mlflow)
        run.log_metric("n_params", 1e9)
        for step in range(3):
            run.diag.observe(**make_batch(rng))
            for key in ("reward", "kl"):  # one call a metric, as many loops do
                run.log_metric(key, step, step=step)
            run.log_metric("walltime", 1.0)
        summary = run.diag.close()
    assert (summary.steps, summary.first_step, summary.last_step) == (3, 0, 2)
    assert run.diag.health["late_steps"] == 0


def test_of_a_state_that_stays_a_batch_has_the_first_and_the_last_value(mlflow):
    run_id = mlflow.start_run().info.run_id
    client = mlflow.MlflowClient()
    tracker = MlflowTracker(client, run_id)
    for steps in (range(20), range(20, 24)):
        for step in steps:
            tail, state = Scalar("diag/policy/all/p95", 0.1), Scalar("diag/rule/POL001", 2 if step < 10 else 0)
            tracker.write(step, [tail, state], step)
        tracker.flush()
    states = client.get_metric_history(run_id, "diag/rule/POL001")
    assert [(point.step, point.value) for point in states] == [(0, 2), (9, 2), (10, 0), (19, 0), (23, 0)]
    assert len(client.get_metric_history(run_id, "diag/policy/all/p95")) == 24
