"""Against a real MLflow store; the pages are looked at in test_mlflow_pages.py."""

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

from tracker_diag import DiagError, Monitor, wrap
from tracker_diag.trackers.delivery import outbox
from tracker_diag.trackers.mlflow.artifacts import TABLES_TAG
from tracker_diag.trackers.mlflow.view import VIEW_TAG
from tracker_diag.trackers.mlflow.write import NOTE_TAG, MlflowTracker
from tracker_diag.trackers.tracker import File, Refused

pytestmark = pytest.mark.slow


@pytest.fixture
def mlflow(mlflow_store):
    import mlflow

    return mlflow


def metric_names(client, run_id):
    return set(client.get_run(run_id).data.metrics)


def test_metrics_pictures_tables_tags_and_report_stand_in_the_store(rng, make_batch, mlflow):
    client = mlflow.MlflowClient()
    with mlflow.start_run(description="What I tried.") as active:
        run = wrap(mlflow)
        for step in range(140):
            post = 0.02 * math.exp(max(0, step - 80) * 0.05)
            run.diag.observe(**make_batch(rng, post=post, pairs=("policy",)))
            run.log_metrics({"reward": 0.5}, step=step)
        run.diag.close()
    run_id = active.info.run_id

    for name in ("text_only", "post_tool"):
        points = client.get_metric_history(run_id, f"diag/policy/{name}/p95")
        assert [point.step for point in points] == list(range(name == "post_tool", 140))  # 384 tokens at step 0
    assert points[-1].value > 3 * points[0].value
    assert len(client.get_metric_history(run_id, "reward")) == 140

    tags = client.get_run(run_id).data.tags
    assert tags["diag.alert.state"] == "warn"
    assert tags["diag.alert.rules"] == "POL001"
    assert tags["diag.first_break"].startswith("POL001 on post_tool at step ")
    assert tags[NOTE_TAG].startswith("What I tried.")
    assert "**Watch. Token probabilities diverge after tool calls, 18× the usual level, since " in tags[NOTE_TAG]

    artifacts = {artifact.path for artifact in client.list_artifacts(run_id, "diag")}
    assert artifacts == {
        f"diag/{name}"
        for name in (
            "context.json",
            "events.json",
            "findings.json",
            "policy",
            "report.html",
            "slices.json",
            "timeline.png",
            "worst_sequences.json",
        )
    }
    assert [artifact.path for artifact in client.list_artifacts(run_id, "diag/policy")] == ["diag/policy/tail.png"]
    assert {artifact.path for artifact in client.list_artifacts(run_id)} == {"diag"}
    findings = json.loads(mlflow.artifacts.load_text(f"runs:/{run_id}/diag/findings.json"))
    assert findings["first_break"]["rule"] == "POL001"
    table = mlflow.load_table("diag/slices.json", run_ids=[run_id])
    assert {"text_only", "post_tool", "all", "turn:1"} <= set(table["slice"])
    assert VIEW_TAG in client.get_experiment(active.info.experiment_id).tags


def test_the_alert_stands_in_the_tags_while_the_run_goes_on(rng, make_batch, mlflow):
    with mlflow.start_run() as active:
        run = wrap(active)
        run.diag.observe(**make_batch(rng))
        mlflow.log_metrics({"loss": math.nan}, 0)
        mlflow.log_metrics({"loss": 0.1}, 1)
        tags, until = {}, time.monotonic() + 60
        while not ("NUM004" in tags.get(NOTE_TAG, "") and "diag.alert.state" in tags) and time.monotonic() < until:
            time.sleep(0.1)  # whoever reads without a pause keeps SQLite from taking what is written
            tags = mlflow.MlflowClient().get_run(active.info.run_id).data.tags
        assert tags["diag.alert.state"] == "error"
        assert "ERROR at step 0: NUM004 all: NaN or infinity" in tags[NOTE_TAG]
        assert "Continue? No. NaN or infinity since step 0; no earlier step is known to be good" in tags[NOTE_TAG]
        assert "get-artifact?path=diag/timeline.png" in tags[NOTE_TAG]
        while not drawn(mlflow, active.info.run_id) and time.monotonic() < until:
            time.sleep(0.1)
        assert drawn(mlflow, active.info.run_id) == ["diag/timeline.png"]  # and not at the end alone
        run.diag.close()


def drawn(mlflow, run_id):
    paths = [artifact.path for artifact in mlflow.MlflowClient().list_artifacts(run_id, "diag")]
    return [path for path in paths if path.endswith(".png")]


def user_rows(client, run_id):
    return {
        name: [(point.step, repr(point.value)) for point in client.get_metric_history(run_id, name)]
        for name in metric_names(client, run_id)
        if not name.startswith("diag/")
    }


def log_by_module(target, mlflow, run_id):
    for step in (0, 1, 2, 2, 7, 5):
        target.log_metrics({"a": step, "b/c": -step}, step=step)
        target.log_metric("d", step / 2, step=step)
    target.log_metric("no step", 1.0)
    target.log_metrics({"nan": math.nan, "inf": math.inf}, step=8)
    target.log_metrics({"late": 1.0}, step=9, synchronous=True)


def log_by_client(target, mlflow, run_id):
    now = int(time.time() * 1000)
    for step in (0, 1, 2, 7, 5):
        target.log_metric(run_id, "a", step, now, step)
        target.log_metric(run_id, "b", step, step=step)
        target.log_batch(run_id, metrics=[mlflow.entities.Metric(key, step, now, step) for key in "cd"])


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["module", "client"])
def test_your_metrics_are_the_same_with_and_without_us(kind, rng, make_batch, mlflow):
    client = mlflow.MlflowClient()
    log = log_by_module if kind == "module" else log_by_client
    with mlflow.start_run() as plain:
        log(mlflow if kind == "module" else client, mlflow, plain.info.run_id)
    with mlflow.start_run() as active:
        run_id = active.info.run_id
        target = wrap(mlflow) if kind == "module" else wrap(client, run_id=run_id)
        target.diag.observe(**make_batch(rng))
        log(target, mlflow, run_id)
        target.diag.close()
    assert any(name.startswith("diag/") for name in metric_names(client, run_id))
    assert user_rows(client, run_id) == user_rows(client, plain.info.run_id)


def test_metrics_of_another_run_are_none_of_ours(rng, make_batch, mlflow):
    client = mlflow.MlflowClient()
    other = client.create_run("0").info.run_id
    with mlflow.start_run():
        run = wrap(mlflow)
        run.diag.observe(**make_batch(rng))
        run.log_metrics({"reward": 1.0}, step=0, run_id=other)
        assert run.diag.summary().steps == 0
        run.diag.close()


@pytest.mark.nightly
def test_ending_the_run_writes_what_is_left(rng, make_batch, mlflow):
    client = mlflow.MlflowClient()
    active = mlflow.start_run()
    run = wrap(mlflow)
    run.diag.observe(**make_batch(rng))
    run.log_metric("reward", 1.0, step=0)
    run.end_run()
    assert client.get_run(active.info.run_id).info.status == "FINISHED"
    assert client.list_artifacts(active.info.run_id, "diag")

    created = client.create_run("0").info.run_id
    wrapped = wrap(client, run_id=created)
    wrapped.diag.observe(**make_batch(rng))
    wrapped.log_metric(created, "reward", 1.0, step=0)
    wrapped.set_terminated(created)
    assert client.get_run(created).info.status == "FINISHED"
    assert client.list_artifacts(created, "diag")

    with wrap(mlflow.start_run()) as third:
        third.diag.observe(**make_batch(rng))
        mlflow.log_metric("reward", 1.0, step=0)
    assert client.list_artifacts(third.info.run_id, "diag")


def test_a_run_that_does_not_exist_is_told_at_set_up(mlflow):
    with pytest.raises(mlflow.MlflowException, match="not found"):
        MlflowTracker(mlflow.MlflowClient(), "0" * 32)
    with pytest.raises(DiagError, match=r"no active run, expected one; call mlflow\.start_run"):
        wrap(mlflow)
    with pytest.raises(DiagError, match="run_id: nothing given"):
        wrap(mlflow.MlflowClient())


def test_a_store_that_fails_is_counted_and_training_goes_on(rng, make_batch, mlflow, monkeypatch):
    client = mlflow.MlflowClient()
    with mlflow.start_run() as active:
        monitor = Monitor([MlflowTracker(client, active.info.run_id)])

        def refuse(*args, **kwargs):
            raise mlflow.MlflowException("the server is down")

        monkeypatch.setattr(client, "log_batch", refuse)
        monkeypatch.setattr(outbox, "CLOSE_WITHIN", 3.0)
        for step in range(5):
            monitor.observe(**make_batch(rng))
            monitor.log({"reward": 1.0}, step)
        monitor.close()
    assert monitor.health["tracker_errors"] >= 1
    assert "the server is down" in monitor.failures[0]


@pytest.mark.nightly
def test_one_failure_near_the_end_costs_nothing_else(rng, make_batch, mlflow, monkeypatch):
    client = mlflow.MlflowClient()
    with mlflow.start_run() as active:
        monitor = Monitor([MlflowTracker(client, active.info.run_id)])
        monitor.observe(**make_batch(rng))
        monitor.log({"loss": math.nan}, 0)
        monkeypatch.setattr(client, "log_batch", lambda *args, **kwargs: 1 / 0)
        monitor.close()
    assert monitor.health["tracker_errors"] == 1
    assert {artifact.path for artifact in client.list_artifacts(active.info.run_id, "diag")} == {
        "diag/events.json",
        "diag/findings.json",
        "diag/policy",
        "diag/reference",
        "diag/report.html",
        "diag/slices.json",
        "diag/timeline.png",
    }
    assert client.get_run(active.info.run_id).data.tags["diag.alert.state"] == "error"


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
    assert all("no answer" in told for told in monitor.failures)

    for name in metric_names(client, run_id):
        steps = [point.step for point in client.get_metric_history(run_id, name)]
        assert steps == sorted(set(steps))
    assert mlflow.load_table("diag/events.json", run_ids=[run_id])["step"].tolist() == [0, 0, 1, 2]
    slices = mlflow.load_table("diag/slices.json", run_ids=[run_id])
    assert len(slices) == len(slices[["pair", "slice"]].drop_duplicates())
    assert len(files) > len(set(files))
    tags = client.get_run(run_id).data.tags
    assert tags["diag.first_break"] == "NUM004 on all at step 1"
    assert tags[NOTE_TAG].startswith("What I tried.")
    assert tags[NOTE_TAG].count("**NaN or infinity, from step 1**") == 1
    tables = [table["path"] for table in json.loads(tags[TABLES_TAG])]
    assert sorted(tables) == ["diag/events.json", "diag/slices.json", "mine.json"]
    assert {artifact.path for artifact in client.list_artifacts(run_id, "diag")} == {
        "diag/events.json",
        "diag/findings.json",
        "diag/policy",
        "diag/reference",
        "diag/report.html",
        "diag/slices.json",
        "diag/timeline.png",
    }


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
    assert tags["diag.first_break"] == "NUM004 on all at step 0"
    assert "NUM004" in tags[NOTE_TAG]
    assert client.list_artifacts(run_id) == []


@pytest.mark.parametrize(("status", "temporary"), [(403, True), (404, True), (413, False), (429, True), (500, True)])
def test_what_an_artifact_store_answers_says_whether_to_try_again(status, temporary, mlflow, monkeypatch):
    client = mlflow.MlflowClient()
    tracker = MlflowTracker(client, client.create_run("0").info.run_id)

    def refuse(*args, **kwargs):
        raise of_status(status)

    monkeypatch.setattr(client, "log_artifact", refuse)
    tracker.write(0, [File("context.json", "{}")], 0.0)
    with pytest.raises(OSError if temporary else Refused):
        tracker.flush()


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
    assert client.get_run(run_id).data.tags["diag.first_break"] == "NUM004 on all at step 2"
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


def test_a_nested_run_is_none_of_ours(rng, make_batch, mlflow):
    client = mlflow.MlflowClient()
    with mlflow.start_run() as parent:
        run = wrap(mlflow)
        for step in range(4):
            run.diag.observe(**make_batch(rng))
            run.log_metrics({"reward": 1.0}, step=step)
            run.start_run(nested=True)
            run.log_metrics({"reward": -100.0}, step=1000)
            run.end_run()
        run.diag.close()
    assert run.diag.health["late_steps"] == 0
    assert run.diag.summary().last_step == 3
    points = client.get_metric_history(parent.info.run_id, "diag/policy/text_only/p95")
    assert [point.step for point in points] == [0, 1, 2, 3]


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


@pytest.mark.nightly
def test_your_own_chart_views_are_left_alone(rng, make_batch, mlflow):
    client = mlflow.MlflowClient()
    client.set_experiment_tag("0", "mlflow.sharedViewState.mine", "{}")
    with mlflow.start_run(experiment_id="0") as active:
        run = wrap(active)
        run.diag.observe(**make_batch(rng))
        mlflow.log_metrics({"reward": 1.0}, 0)
        run.diag.close()
    tags = client.get_experiment("0").tags
    assert tags["mlflow.sharedViewState.mine"] == "{}"
    assert len(tags[VIEW_TAG]) < 20_000


@pytest.mark.nightly
def test_a_new_baseline_stands_in_a_table_of_events(rng, make_batch, mlflow):
    with wrap(mlflow.start_run()) as run:
        for step in range(4):
            if step in (1, 3):
                run.diag.rebaseline(f"tools changed at {step}")
            run.diag.observe(**make_batch(rng))
            mlflow.log_metrics({"reward": 0.5}, step=step)
    table = mlflow.load_table("diag/events.json", run_ids=[run.info.run_id])
    assert table["step"].tolist() == [0, 1, 3]
    assert "what is seen at step 0" in table["event"][0]
    assert table["event"].tolist()[1:] == ["new baseline: tools changed at 1", "new baseline: tools changed at 3"]
