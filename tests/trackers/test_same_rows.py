"""Property: whatever you log, in whatever order, stands in the tracker as it would without us."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracker_diag import wrap

pytestmark = pytest.mark.slow

VALUES = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]) | st.integers(-5, 5)
DATA = st.dictionaries(st.sampled_from(["loss", "reward", "train/kl", "eval_score"]), VALUES, min_size=1, max_size=3)
few = settings(max_examples=settings().max_examples // 12, suppress_health_check=list(HealthCheck))


@pytest.fixture
def tensors(make_batch):
    return make_batch(np.random.default_rng(0), size=16)


CALLS = st.lists(
    st.tuples(DATA, st.none() | st.integers(0, 12), st.sampled_from([None, None, True, False]), st.booleans()),
    min_size=1,
    max_size=12,
)


@pytest.mark.nightly  # fixed calls are in test_wandb.py
@few
@given(calls=CALLS)
def test_wandb(calls, tensors, read_wandb):
    import wandb

    def logged(wrapped):
        with tempfile.TemporaryDirectory() as folder:
            options = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, console="off")
            run = wandb.init(project="test", dir=folder, settings=options, reinit="create_new")
            target = wrap(run) if wrapped else run
            for data, step, commit, observed in calls:
                if wrapped and observed:
                    target.diag.observe(**tensors)
                target.log(data, step=step, commit=commit)
            target.finish()
            (file,) = Path(folder).glob(f"wandb/offline-run-*-{run.id}/run-*.wandb")
            records = read_wandb(file)
        rows = [record["history"]["item"] for record in records if record["type"] == "history"]
        mine = [
            {key: value for key, value in row.items() if key in ("loss", "reward", "train/kl", "eval_score", "_step")}
            for row in rows
        ]
        return [row for row in mine if len(row) > 1]

    assert repr(logged(wrapped=True)) == repr(logged(wrapped=False))


@few
@given(calls=st.lists(st.tuples(DATA, st.none() | st.integers(-3, 12), st.booleans()), min_size=1, max_size=12))
def test_mlflow(calls, tensors, mlflow_store):
    import mlflow

    client = mlflow.MlflowClient()

    def logged(wrapped):
        with mlflow.start_run() as run:
            target = wrap(mlflow) if wrapped else mlflow
            for data, step, observed in calls:
                if wrapped and observed:
                    target.diag.observe(**tensors)
                target.log_metrics(data, step=step)
            if wrapped:
                target.diag.close()
        names = [name for name in client.get_run(run.info.run_id).data.metrics if not name.startswith("diag/")]
        return {
            name: [(point.step, repr(point.value)) for point in client.get_metric_history(run.info.run_id, name)]
            for name in sorted(names)
        }

    assert logged(wrapped=True) == logged(wrapped=False)
