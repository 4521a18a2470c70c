"""Runs that begin in code that one does not own: found, heard, given the tensors, and let go of."""

import logging
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracker_diag as td

pytestmark = pytest.mark.slow


@pytest.fixture
def watcher():
    made = td.watch()
    yield made
    made.close()


def points(client, run_id, name):
    return [point.step for point in client.get_metric_history(run_id, name)]


@pytest.mark.nightly
def test_runs_of_mlflow_that_begin_end_and_nest(mlflow_store, watcher, make_batch):
    import mlflow

    rng, ids = np.random.default_rng(0), []
    for number in range(2):
        with mlflow.start_run() as run:
            ids.append(run.info.run_id)
            for step in range(3):
                watcher.observe(**make_batch(rng))
                mlflow.log_metrics({"loss": math.nan if (number, step) == (1, 2) else 1.0}, step=step)
            with mlflow.start_run(nested=True) as inner:
                ids.append(inner.info.run_id)
                mlflow.log_metric("other", 1.0, step=7)
        assert watcher.diag is None
    client = mlflow.MlflowClient()
    for outer in ids[::2]:
        assert points(client, outer, "diag/policy/text_only/p95") == [0, 1, 2]
    states = [client.get_run(item).data.tags["diag.alert.state"] for item in ids]
    assert states == ["ok", "ok", "error", "ok"]


@pytest.mark.nightly
def test_a_run_that_only_its_client_knows(mlflow_store, watcher):
    import mlflow

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    client.log_metric(run_id, "loss", math.nan, step=4)
    assert watcher.diag.step == 4
    client.set_terminated(run_id)
    assert client.get_run(run_id).data.tags["diag.alert.state"] == "error"


def test_after_close_nothing_is_watched(mlflow_store):
    import mlflow

    log_batch = mlflow.MlflowClient.log_batch
    watcher = td.watch()
    assert mlflow.MlflowClient.log_batch is not log_batch
    with mlflow.start_run():
        mlflow.log_metrics({"loss": 1.0}, step=0)
        monitor = watcher.diag
        watcher.close()
        mlflow.log_metrics({"loss": 1.0}, step=1)
    assert monitor.step == 0
    assert mlflow.MlflowClient.log_batch is log_batch


@pytest.mark.nightly
def test_a_run_that_is_wrapped_has_one_monitor(mlflow_store, make_batch, rng):
    import mlflow

    with mlflow.start_run():
        run = td.wrap(mlflow)
        watcher = td.watch(window=4)
        watcher.observe(**make_batch(rng))
        assert watcher.diag is run.diag
        watcher.close()


def test_tensors_without_a_run_are_reported_once(watcher, make_batch, rng, caplog):
    with caplog.at_level(logging.WARNING, "tracker_diag"):
        for _ in range(3):
            watcher.observe(**make_batch(rng))
    (messages,) = (record.message for record in caplog.records)
    assert messages.startswith("tensors were observed while no run of mlflow or trackio or wandb is underway")


def test_a_tracker_that_is_imported_later(tmp_path, journals):
    """`watch` first, as in a module that is imported before everything else."""
    script = """
import math, sys
import numpy as np
import tracker_diag as td

watcher = td.watch()
assert "wandb" not in sys.modules
import wandb
run = wandb.init(mode="offline", settings=wandb.Settings(silent=True, x_disable_stats=True))
rng = np.random.default_rng(0)
for step in range(3):
    new = rng.normal(-1, 0.3, (8, 20))
    old = new - rng.normal(0, 0.1, new.shape)
    watcher.observe(logprobs=new, old_logprobs=old, response_mask=np.ones((8, 20), bool))
    wandb.log({"loss": math.nan if step == 2 else 1.0})
monitor = watcher.diag
run.finish()
print(monitor.summary().steps, [finding.fired for finding in monitor.summary().findings if finding.fired is not None])
"""
    root = Path(td.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root), "HOME": str(tmp_path), "WANDB_SILENT": "true"},
    )  # fmt: skip
    assert done.stdout.split("\n")[0] == "3 [2]"
    assert "NaN or infinity (NUM004)" in done.stderr
