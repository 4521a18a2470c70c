"""What a replay says is written into the finished run, once."""

import json
import os
import runpy
import subprocess
import sys
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


READ = runpy.run_path(str(Path(__file__).parents[2] / "trackers" / "test_read_wandb.py"))
RUN, STUB = READ["RUN"], READ["Finished"].__base__


class Server(STUB):
    """A server with the finished run `r`, whose summary is kept, and what is begun next to it."""

    def __init__(self):
        super().__init__()
        self.of_run = {}

    def reply(self, name, given):
        asked = given.get("name", given.get("run", given.get("runName")))
        if name == "UpsertBucket" and "summaryMetrics" in given and "name" not in given:
            self.of_run = json.loads(given["summaryMetrics"])
            return {"upsertBucket": {"bucket": {"id": given["id"]}}}
        if name in {"Viewer", "GetDefaultEntity"}:
            return READ["Finished"].reply(self, name, given)
        if name == "Runs":
            nodes = [RUN | {"name": run, "config": '{"diag_of": {"value": "r"}}'} for run in self.runs()]
            runs = {"edges": [{"node": node, "cursor": node["name"]} for node in nodes], "pageInfo": STUB_PAGE}
            return {"project": {"internalId": "1", "runCount": len(nodes), "readOnly": True, "runs": runs}}
        rows = READ["ROWS"] if asked == "r" else self.history(asked)
        if name == "RunResumeStatus" and rows:
            about = {"id": asked, "name": asked, "displayName": asked, "config": "{}", "tags": [], "eventsTail": "[]"}
            about |= {"historyLineCount": len(rows), "eventsLineCount": 0, "logLineCount": 0, "wandbConfig": "{}"}
            about |= {
                "summaryMetrics": json.dumps(self.summary(asked)),
                "historyTail": json.dumps([json.dumps(rows[-1])]),
            }
            return {"model": {"id": "p1", "name": "p", "entity": {"id": "e1", "name": "e"}, "bucket": about}}
        keys = {key: {"typeCounts": [{"type": "number", "count": len(rows)}]} for row in rows for key in row}
        run = {
            "Run": RUN | {"name": asked, "summaryMetrics": json.dumps(self.of_run)},
            "RunHistoryKeys": {"historyKeys": {"lastStep": len(rows), "sets": [], "keys": keys}},
            "RunParquetHistory": {"parquetHistory": {"parquetUrls": [], "liveData": []}},
            "HistoryPage": {"history": [json.dumps(row) for row in rows]},
        }
        return {"project": {"run": run[name]}} if name in run else super().reply(name, given)


STUB_PAGE = {"endCursor": None, "hasNextPage": False}


@pytest.mark.nightly
def test_a_replay_is_written_next_to_the_wandb_run_once(tokens, tmp_path):
    code = (
        "from tracker_diag.cli.app import app\nfrom tracker_diag.trackers.open import read_run\n"
        f"for _ in range(2):\n    app(['replay', {str(tokens)!r}, '--log-to', 'wandb:e/p/r', '--workers', '1', '-q'],\n"
        "        standalone_mode=False)\n"
        "rows = read_run('wandb:e/p/r').rows\n"
        "print([*rows], sum('diag/policy/text_only/count' in row for row in rows.values()))\n"
    )
    with Server() as server:
        environment = os.environ | {
            "WANDB_BASE_URL": server.url, "WANDB_API_KEY": "a" * 40, "WANDB_SILENT": "true", "HOME": str(tmp_path),
            "WANDB_CACHE_DIR": str(tmp_path), "WANDB_ERROR_REPORTING": "false", "no_proxy": "127.0.0.1",
            "TRACKER_DIAG_EXIT_TIMEOUT": "200", "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=800, env=environment, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.splitlines()[-1] == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 20, 30, 40] 12"
        assert server.runs() == ["r-diag-replay"]
        steps = [row["diag/step"] for row in server.history("r-diag-replay")]
        assert sorted(set(steps)) == list(range(12))
        assert len(steps) == len(set(steps))
        assert server.of_run == {}, "yours stays as it is"
        (marked,) = [file for file in server.files.values() if b"replayed from " in file]
        assert str(tokens).encode() in marked
        assert server.sent("NotifyScriptableRunAlert") == []


def test_a_tracker_that_does_not_take_runs_back_is_named():
    with pytest.raises(SourceError, match="--log-to: tensorboard:a given, expected mlflow:"):
        run_called("tensorboard:a", "t.parquet")
