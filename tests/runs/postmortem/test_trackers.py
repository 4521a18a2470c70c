"""What trackers hold of a run that was ended: real processes, MLflow on SQLite and W&B offline."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly

TRAIN = """
import os
import tracker_diag as td
from tracker_diag.testing import example_batch

def train(run):
    for step in range(8):
        run.diag.observe(**example_batch(step))
        log = getattr(run, "log", None) or mlflow.log_metrics
        log({"reward": 0.5}, step=step)
"""
MLFLOW = """
import mlflow
with mlflow.start_run() as run:
    mlflow.log_params({"seed": 4, "evaluation_command": "python evaluate.py", "api_key": os.environ["THE_API_KEY"]})
    run = td.wrap(run)
    train(run)
    print(run.info.run_id, flush=True)
    raise ValueError("with " + os.environ["THE_API_KEY"])
"""
WANDB = """
import wandb
settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, console="off")
run = td.wrap(wandb.init(project="test", settings=settings, config={"seed": 4}))
train(run)
raise ValueError("with " + os.environ["THE_API_KEY"])
"""
SECRET = "notForTheTracker1234"  # noqa: S105
FILES = {"README.md", "report.html", "postmortem.json", "context.json", "traceback.txt", "slices.json"}


@pytest.fixture
def start(tmp_path, new_mlflow_store):
    """Starts a program of a user's."""

    def begin(program):
        known = os.environ | {"THE_API_KEY": SECRET, "MLFLOW_TRACKING_URI": new_mlflow_store(tmp_path)}
        known |= {"WANDB_ERROR_REPORTING": "false", "TRACKER_DIAG_DIR": str(tmp_path / "diag")}
        known.pop("WANDB_SERVICE", None)  # W&B's process of this one, if it has any: it would outlive the program
        out = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", TRAIN + program], cwd=tmp_path, env=known, **out)

    return begin


def test_mlflow_has_it_among_its_artifacts_after_an_exception(start, tmp_path):
    with start(MLFLOW) as process:
        run_id, output = process.communicate()
    assert process.returncode == 1, output
    (artifacts,) = tmp_path.glob(f"mlruns/*/{run_id.strip()}/artifacts/diag")
    there = {file.name: file.read_text() for file in (artifacts / "postmortem").iterdir()}
    assert set(there) >= FILES
    assert "**ValueError: with \\*\\*\\***, after step 7" in there["README.md"]
    assert there == {
        file.name: file.read_text() for file in tmp_path.glob(f"diag/postmortem/mlflow-{run_id.strip()}/*")
    }
    context = json.loads((artifacts / "context.json").read_text())
    assert (context["seed"], context["config"]["api_key"]) == ({"seed": "4"}, "***")
    assert context["evaluation"] == {"evaluation_command": "python evaluate.py"}
    assert all(SECRET not in text for text in there.values())


def test_wandb_has_it_among_its_files_after_an_exception(start, tmp_path, read_wandb):
    with start(WANDB) as process:
        _, output = process.communicate()
    assert process.returncode == 1
    (run,) = tmp_path.glob("wandb/offline-run-*")
    there = {file.name: file.read_text() for file in (run / "files/diag/postmortem").iterdir()}
    assert set(there) >= FILES
    assert "**ValueError: with \\*\\*\\***, after step 7" in there["README.md"]
    assert all(SECRET not in text for text in there.values())
    (file,) = run.glob("run-*.wandb")
    listed = [item["path"] for record in read_wandb(file) for item in record.get("files", {}).get("files", ())]
    assert {f"diag/postmortem/{name}" for name in FILES} | {"diag/context.json"} <= set(listed)
    assert f"wandb-{run.name.rpartition('-')[2]}" in output
