"""The README's quick starts, as they stand, each in an environment with nothing but its tracker's extra."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "build" / "quickstart"
"""`make` puts them there."""

BLOCKS = dict(re.findall(r"\*\*([\w&]+)\*\*\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
EXTRAS = {"MLflow": "mlflow", "W&B": "wandb", "Trackio": "trackio", "TensorBoard": "tensorboard"}


def test_each_tracker_has_one():
    assert BLOCKS.keys() == EXTRAS.keys()
    assert all(len(block.strip().splitlines()) <= 10 for block in BLOCKS.values())


@pytest.mark.nightly
@pytest.mark.by_day("MLflow", "W&B")
@pytest.mark.parametrize("tracker", EXTRAS)
def test_it_runs_as_it_stands(tracker, built_wheel, tmp_path):
    """With the installed wheel: the alert is seen, and the command that the verdict names diagnoses the run alike."""
    environment = ENVIRONMENTS / EXTRAS[tracker]
    assert environment.is_dir(), f"{environment} is missing; `make {environment.relative_to(ROOT)}` makes it"
    python, command = environment / "bin" / "python", environment / "bin" / "tracker-diag"
    install = [sys.executable, "-m", "pip", "--python", environment, "install", "--no-index", "--no-deps"]
    subprocess.run([*install, "--force-reinstall", built_wheel], check=True, capture_output=True, cwd=tmp_path)
    (tmp_path / "quickstart.py").write_text(BLOCKS[tracker])
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "TRACKER_DIAG_EXIT_TIMEOUT": os.environ["TRACKER_DIAG_EXIT_TIMEOUT"],
        "WANDB_MODE": "offline",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
    }
    done = subprocess.run(
        [python, "quickstart.py"], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stderr.split())
    assert "what is seen at step 0" in told
    assert told.count("tracker_diag: POL001 post_tool: Token probabilities diverge after tool calls") == 1
    assert "verdict after 120 steps" in told
    assert "broke first Token probabilities diverge after tool calls, on post_tool" in told

    (again,) = re.findall(r"^all of it +tracker-diag (diagnose .+)$", done.stderr, re.MULTILINE)
    asked = subprocess.run(
        [command, *shlex.split(again)], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    shown = " ".join(asked.stdout.split())
    assert "broke first Token probabilities diverge after tool calls, on post_tool" in shown
    assert "said live" in shown
    assert all("continue? Watch. Token probabilities diverge" in one for one in (told, shown))
