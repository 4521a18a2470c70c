"""Every tracker against the same contract, each on the real thing; a third party runs `check_tracker` on its own."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tracker_diag import Monitor
from tracker_diag.records import Drawing, Histogram, Scalar, Table
from tracker_diag.testing import CapturingTracker, check_tracker
from tracker_diag.trackers import discovery as found
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.tracker import Tracker

pytestmark = pytest.mark.slow


def test_jsonl(tmp_path):
    def scalars(name):
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row[name] for row in rows if name in row}

    assert check_tracker(JsonlTracker(tmp_path), scalars) == []


def test_mlflow(mlflow_store):
    import mlflow

    from tracker_diag.trackers.mlflow.write import MlflowTracker

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id

    def scalars(name):
        points = client.get_metric_history(run_id, name)
        assert len({point.step for point in points}) == len(points)
        return {point.step: point.value for point in points}

    assert check_tracker(MlflowTracker(client, run_id), scalars) == []
    assert "diag/timeline.png" in {one.path for one in client.list_artifacts(run_id, "diag")}


@pytest.mark.nightly
def test_wandb(wandb_offline):
    from tracker_diag.trackers.wandb.write import WandbTracker

    run = wandb_offline.start()

    def scalars(name):
        run.finish()
        (records,) = wandb_offline.beside()  # no row is the trainer's
        rows = [record["history"]["item"] for record in records if record["type"] == "history"]
        return {row["diag/step"]: row[name] for row in rows if name in row}

    assert check_tracker(WandbTracker(run), scalars) == []
    assert [*Path(run.dir).rglob("media/images/diag/timeline*.png")]


def test_trackio(trackio_runs):
    from tracker_diag.trackers.trackio.write import TrackioTracker

    run = trackio_runs.start()

    def scalars(name):
        run.finish()
        return {step: row[name] for step, row in trackio_runs.rows() if name in row}

    assert check_tracker(TrackioTracker(run), scalars) == []
    assert any("diag/timeline" in row for _, row in trackio_runs.rows())


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tracker_diag.trackers.tensorboard.write import TensorBoardTracker

    def scalars(name):
        events = EventAccumulator(str(tmp_path / "diag")).Reload()
        return {event.step: event.value for event in events.Scalars(name)}

    assert check_tracker(TensorBoardTracker(str(tmp_path)), scalars) == []
    assert [one.step for one in EventAccumulator(str(tmp_path / "diag")).Reload().Images("diag/timeline")] == [10, 19]


class Forgetful(Tracker):
    """A tracker with a fault of each kind."""

    def write(self, step, entries, at):
        if step == 4:
            raise TypeError("an int is no step")

    def flush(self, *, last=False):
        return "perhaps"


def test_faults_are_told_one_by_one():
    wrong = check_tracker(Forgetful(), lambda name: {})
    assert wrong[0] == "name: 'tracker', expected one of its own"
    assert "flush: expected True or False" in wrong
    assert "step 4: write: TypeError: an int is no step" in wrong
    assert any(told.startswith("diag/policy/all/p95: {} arrived") for told in wrong)


class Numbers(Tracker):
    """It takes every record for one with a name and counts or a value."""

    name = "numbers"

    def write(self, step, entries, at):
        for entry in entries:
            if not isinstance(entry, Histogram):
                float(entry.value)


def test_tables_and_the_picture_of_an_alert_come_too():
    kinds = {}
    tracker = CapturingTracker()
    assert check_tracker(tracker) == []
    for step, records in tracker.records.items():
        for record in records:
            kinds.setdefault(type(record), set()).add(step)
    assert kinds.keys() == {Scalar, Histogram, Table, Drawing}
    assert (kinds[Drawing], kinds[Table]) == ({10, 19}, {10})
    assert check_tracker(Numbers()) == [
        "step 10: write: AttributeError: 'Table' object has no attribute 'value'",
        "step 19: write: Drawing: AttributeError: 'Drawing' object has no attribute 'value'",
    ]


class Own:
    """A tracker that nobody here has heard of."""

    def send(self, what):
        pass


class OwnTracker(CapturingTracker):
    @classmethod
    def find(cls, target=None):
        return cls() if isinstance(target, Own) else None


def test_a_tracker_of_another_package_is_found_by_its_entry_point(monkeypatch):
    from importlib.metadata import EntryPoint

    import tracker_diag as td

    with pytest.raises(td.DiagError, match=r"Own given, expected"):
        td.wrap(Own())
    entry = EntryPoint("own", f"{__name__}:OwnTracker", found.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: OwnTracker)
    monkeypatch.setattr(found, "entry_points", lambda group: [entry])
    wrapped = td.wrap(Own())
    wrapped.diag.log({"loss": 0.5}, 0)
    wrapped.diag.close()
    assert wrapped.diag.summary().steps == 1


def test_ten_thousand_names_of_tools_fold_and_every_one_is_taken(rng, make_batch, mlflow_store):
    import mlflow

    from tracker_diag.trackers.mlflow.write import MlflowTracker

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    monitor = Monitor([MlflowTracker(client, run_id)])
    batch = make_batch(rng, size=400, width=25)
    odd = [f"tool={i}<%>\N{SNOWMAN} '\"\n" for i in range(10_000)]
    batch["tool"] = np.array(odd, dtype=object).reshape(400, 25)
    for step in range(3):
        monitor.observe(**batch)
        monitor.log({}, step)
    monitor.close()
    assert monitor.failures == []
    names = client.get_run(run_id).data.metrics
    assert "diag/policy/post_tool/p95" in names
    assert len(names) < 100


def test_a_name_that_the_tracker_refuses_costs_itself_alone(mlflow_store):
    import mlflow

    from tracker_diag.records import Scalar
    from tracker_diag.trackers.mlflow.write import MlflowTracker

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    monitor = Monitor([MlflowTracker(client, run_id)])
    (outbox,) = monitor.trackers
    for step in range(3):
        outbox.write(step, [Scalar("diag/a=b", 1.0), Scalar("diag/fine", float(step))], time.time())
    monitor.close()
    assert [point.value for point in client.get_metric_history(run_id, "diag/fine")] == [0.0, 1.0, 2.0]
    assert monitor.health["tracker_errors"] >= 1
    assert "a=b" in monitor.failures[0]
