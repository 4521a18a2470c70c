"""The quick starts of docs/start.md, as they are there.

Those of trackers run in an environment with nothing but the tracker's extra, those of trainers in this one.
"""

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

PAGE = (ROOT / "docs" / "start.md").read_text()
BLOCKS = dict(re.findall(r"\*\*([\w&-]+)\*\*[^`]*\n\n```python\n(.*?)```", PAGE, re.DOTALL))
EXTRAS = {"MLflow": "mlflow", "W&B": "wandb", "Trackio": "trackio", "TensorBoard": "tensorboard"}
ON_CPU = (
    "import functools, trl\ntrl.GRPOConfig = functools.partial(trl.GRPOConfig, bf16=False, use_cpu=True, max_steps=4)\n"
)
TRAINERS = {
    "TRL": ON_CPU + "from task import CHECKPOINT\nfrom datasets import Dataset\n"
    "def reward(completions, **_):\n    return [float(len(text)) for text in completions]\n"
    "model, dataset = str(CHECKPOINT), Dataset.from_dict({'prompt': ['get 42'] * 8})\n",
    "Stable-Baselines3": "",
    "Transformers": "import torch\nfrom task import CHECKPOINT\nfrom transformers import Qwen2ForCausalLM\n"
    "model = Qwen2ForCausalLM.from_pretrained(CHECKPOINT)\n"
    "dataset = [{'input_ids': torch.arange(8), 'labels': torch.arange(8)}] * 8\n",
}
"""What stands in for the GPU, the model and the data that the page leaves to its reader."""


def test_each_tracker_has_one():
    assert BLOCKS.keys() == {*EXTRAS, *TRAINERS}
    assert all(len(block.strip().splitlines()) <= 10 for block in BLOCKS.values())


@pytest.mark.nightly
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
    assert told.count("Token probabilities diverge after tool calls (POL001 post_tool)") == 1
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


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_snippet_of_a_trainer_runs_and_ends_with_a_verdict(trainer, tmp_path):
    (tmp_path / "quickstart.py").write_text(TRAINERS[trainer] + BLOCKS[trainer])
    paths = [ROOT, ROOT / "integrations", ROOT / "tests" / "integrations" / "trl"]
    settings = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, "quickstart.py"], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tracker_diag: verdict after" in done.stderr, done.stderr
