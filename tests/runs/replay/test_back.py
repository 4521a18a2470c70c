"""What a replay says is written into the finished run, once."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app
from tracker_diag.errors import SourceError
from tracker_diag.runs.replay.back import run_called
from tracker_diag.trackers.open import read_run


@pytest.fixture
def tokens(tmp_path):
    steps = np.repeat(np.arange(12), 40)
    rng = np.random.default_rng(0)
    new = -rng.random(480)
    columns = {
        "step": steps,
        "sequence": np.tile(np.repeat(np.arange(4), 10), 12),
        "position": np.tile(np.arange(10), 48),
    }
    columns |= {"is_model": np.ones(480, bool), "logprob": new, "old_logprob": new - rng.normal(0, 0.01, 480)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


@pytest.mark.slow
def test_a_replay_is_written_into_the_mlflow_run_once(tokens, mlflow_store):
    import mlflow

    with mlflow.start_run() as run:
        mlflow.log_metric("reward", 0.5, step=0)
    target = f"mlflow:{run.info.run_id}"
    for _ in range(2):
        result = CliRunner().invoke(app, ["replay", str(tokens), "--log-to", target, "--workers", "1"])
        assert result.exit_code == 0, result.output
    rows = read_run(target).rows
    assert [*rows] == list(range(12))
    client = mlflow.MlflowClient()
    ours = [key for key in client.get_run(run.info.run_id).data.metrics if key.startswith("diag/policy/")]
    assert ours
    history = client.get_metric_history(run.info.run_id, "diag/policy/text_only/p95")
    assert len({entry.step for entry in history}) == len(history)
    assert client.get_metric_history(run.info.run_id, "reward")[0].value == 0.5
    folder = Path(mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="diag"))
    texts = "".join(file.read_text() for file in folder.rglob("*.json"))
    assert texts.count("replayed from ") == 1


def test_a_tracker_that_does_not_take_runs_back_is_named():
    with pytest.raises(SourceError, match="--log-to: wandb:a/b/c given, expected mlflow:"):
        run_called("wandb:a/b/c", "t.parquet")
