"""Each Python block of README and of the hand-written pages runs, as its reader runs it.

The quick starts of trackers run in an environment with nothing but the tracker's extra, all other blocks in this one. A
block whose framework is missing is reported as skipped, with the word untested.
"""

import importlib.util
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.testing import CapturingTracker, example_batch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "build" / "quickstart"
"""`make` puts them there."""


def blocks(page, language):
    """Those of a page, without the named ones: `**MLflow**` above a block is its name."""
    text = re.sub(NAME, "", page.read_text(), flags=re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


NAME = r"(?:\*\*|### )([\w&-]+)[^`\n]*\n\n```python\n(.*?)```"
NAMED = {
    name: code
    for page in ("start", "trackers")
    for name, code in re.findall(NAME, (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
}
ELSEWHERE = {"integrations", "preflight"}
"""Pages whose blocks have tests of their own: tests/integrations, tests/preflight."""
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.stem not in ELSEWHERE)]
BLOCKS = NAMED | {
    f"{page.stem} {number}": code for page in PAGES for number, code in enumerate(blocks(page, "python"), 1)
}
EXTRAS = {"README 1": "mlflow", "MLflow": "mlflow", "W&B": "wandb", "Trackio": "trackio", "TensorBoard": "tensorboard"}

ON_CPU = (
    "import functools, trl\ntrl.GRPOConfig = functools.partial(trl.GRPOConfig, bf16=False, use_cpu=True, max_steps=4)\n"
)
MODEL = (
    "import torch\nfrom task import CHECKPOINT\nfrom transformers import Qwen2ForCausalLM\n"
    "model = Qwen2ForCausalLM.from_pretrained(CHECKPOINT)\n"
)
TRAINERS = {
    "TRL": ON_CPU + "from task import CHECKPOINT\nfrom datasets import Dataset\n"
    "def reward(completions, **_):\n    return [float(len(text)) for text in completions]\n"
    "model, dataset = str(CHECKPOINT), Dataset.from_dict({'prompt': ['get 42'] * 8})\n",
    "Stable-Baselines3": "",
}
RUN = "import mlflow\nimport tracker_diag as td\nmlflow.start_run()\n"
EXAMPLE = "from tracker_diag.testing import example_batch\n"
ONE_RANK = (
    "import torch.distributed as dist\n"
    "dist.init_process_group('gloo', init_method='file://' + __file__ + '.ranks', rank=0, world_size=1)\n"
)
GOOD_RUN = (
    "from tracker_diag.testing import example_batch\nfrom tracker_diag.trackers.files.write import JsonlTracker\n"
    "run = td.wrap(mlflow, also=[JsonlTracker('runs/good')])\n"
    "for step in range(100):\n    run.diag.observe(**example_batch(min(step, 70)))\n    run.log_metric('a', 1, step)\n"
    "run.diag.close()\ngood = mlflow.active_run().info.run_id\nmlflow.end_run()\nmlflow.start_run()\n"
)
FRAGMENTS = {
    "own-loop 1": RUN.removesuffix("mlflow.start_run()\n") + MODEL + "steps, temperature = 3, 1.0\n"
    "train = lambda *_: None\n"
    "sample = lambda _: (torch.randint(100, (2, 9)), torch.ones(2, 9), torch.ones(2, 9), 0.5)\n",
    "own-loop 2": RUN + "import torch\nrun, model, train, steps = td.wrap(mlflow), None, lambda _: None, 3\n"
    "logprobs_of = logprobs_by_reference = lambda ids: -torch.rand(ids.shape[0], ids.shape[1] - 1)\n"
    "sample = lambda _: (torch.ones(2, 9), torch.ones(2, 9), torch.ones(2, 9), 0.5, -torch.rand(2, 8))\n",
    "own-loop 3": RUN + "import torch\nrun, ids, new = td.wrap(mlflow), torch.ones(2, 9), -torch.rand(2, 8)\n"
    "logprobs_of, masks = lambda ids: -torch.rand(2, 8), {'model_mask': torch.ones(2, 8)}\n",
    "own-loop 4": "import os\nos.environ['WANDB_MODE'] = 'offline'\n"
    "import tracker_diag as td\nimport wandb\nreward, step = 0.5, 1\n",
    "own-loop 5": RUN.removesuffix("mlflow.start_run()\n")
    + "import torch\n"
    + ONE_RANK
    + "model, steps, train = None, 3, lambda *_: None\n"
    "logprobs_of = lambda ids: -torch.rand(ids.shape[0], ids.shape[1] - 1)\n"
    "sample = lambda _: (torch.ones(2, 9), torch.ones(2, 9), torch.ones(2, 9), 0.5)\n",
    "samples 1": RUN + "rewards = formats = solved = [0.0, 1.0]\nprompt_ids = advantages = [1, 2]\n"
    "lengths, cut, completions = [3, 4], [False, True], ['a', 'b']\n",
    "samples 2": RUN + "run, update = td.wrap(mlflow), 1\n",
    "sequences 1": RUN + "from task import CHECKPOINT\nfrom transformers import AutoTokenizer\n"
    "tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)\n",
    "sequences 2": "",
    "ranks 1": RUN + ONE_RANK,
    "canary 2": "",
    "guards 1": RUN + EXAMPLE + "loader = [example_batch(step) for step in range(3)]\n"
    "metrics, lr, kl_coef = {'reward': 1}, 1, 0\nsave = load = update = lambda *_, **__: None\n",
    "guards 2": RUN,
    "guards-frameworks 1": "output_dir = 'out'\ntrain = lambda *_, **__: None\n",
    "guards-frameworks 2": "",
    "own-rules 1": RUN
    + "from pathlib import Path\nfrom tests.rules.texts import write_own\nwrite_own(Path('rules'))\n",
    "own-rules 2": RUN,
    "postmortem 1": RUN,
    "replay 1": "import pyarrow as pa\nimport pyarrow.parquet as pq\n"
    "columns = dict.fromkeys(('step', 'sequence', 'position'), range(9)) | {'is_model': [True] * 9}\n"
    "columns |= {'step': [0] * 9, 'sequence': [0] * 9, 'logprob': [-1.0] * 9, 'old_logprob': [-1.5] * 9}\n"
    "pq.write_table(pa.table(columns), 'tokens.parquet')\n",
    "replay 2": EXAMPLE + "steps = [(step, [example_batch(step)]) for step in range(3)]\n",
    "trackers 1": "import tracker_diag as td\n",
    "baseline 1": RUN + GOOD_RUN,
    "baseline 2": RUN + GOOD_RUN,
}
"""What a page leaves to its reader: the run, the model, the data."""
MISSING = {"canary 1": "vllm", "canary 3": "vllm", "inputs 1": "verifiers"}
"""Blocks that need a framework which the test environment lacks."""


@pytest.fixture
def run_block(tmp_path, new_mlflow_store):
    """Runs code in a process of its own, in which it must end without an error; gives its standard error."""
    paths = [ROOT, ROOT / "integrations", ROOT / "tests" / "integrations" / "trl"]
    settings = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "MLFLOW_TRACKING_URI": new_mlflow_store(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }

    def run(code):
        (tmp_path / "quickstart.py").write_text(code)
        command = [sys.executable, "quickstart.py"]
        done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def shows_the_fault(printed, alert="Token probabilities shift after tool results (POL001 post_tool)"):
    """The alert and the verdict are there, as the pages say."""
    shown = " ".join(printed.split())
    assert "what is seen at step 0" in shown
    assert shown.count(alert) == 1
    assert "detected at 96" in shown
    assert "verdict after 120 steps" in shown
    assert "broke first Token probabilities shift after tool results, on post_tool" in shown
    return shown


def test_each_block_is_run_or_reported_as_untested():
    assert BLOCKS.keys() == {*EXTRAS, *TRAINERS, *FRAGMENTS, *MISSING}
    assert NAMED.keys() == {*EXTRAS, *TRAINERS} - {"README 1"}
    assert all(len(block.strip().splitlines()) <= 10 for block in NAMED.values())


def test_the_block_of_the_readme_shows_the_fault(run_block):
    shows_the_fault(run_block(BLOCKS["README 1"]))


@pytest.mark.parametrize("block", FRAGMENTS)
def test_a_fragment_runs(block, run_block):
    run_block(FRAGMENTS[block] + BLOCKS[block].replace('"mlflow:8f2c4e"', 'f"mlflow:{good}"'))


def test_the_report_can_be_without_texts(tmp_path):
    """With the function of the page; without it, they are there."""
    file = tmp_path / "page.py"
    file.write_text(BLOCKS["sequences 2"])
    without_texts = runpy.run_path(str(file))["without_texts"]
    for before_send, there in ((None, True), (without_texts, False)):
        seen = CapturingTracker()
        monitor = td.Monitor([seen], decode=lambda ids: f"text {ids[0]}", before_send=before_send)
        for step in range(100):
            monitor.observe(**example_batch(step), token_ids=np.arange(64 * 24).reshape(64, 24))
            monitor.log({"reward": 0.5}, step)
        monitor.close()
        assert seen.summary.worst
        assert all(bool(sequence.texts) is there for sequence in seen.summary.worst)


@pytest.mark.parametrize("block", MISSING)
def test_a_fragment_whose_framework_is_missing_is_untested(block):
    compile(BLOCKS[block], block, "exec")
    assert not importlib.util.find_spec(MISSING[block]), "it is installed: run the block"
    pytest.skip(f"untested: {MISSING[block]} is not installed")


def test_the_examples_of_rules_and_guards_are_sound(tmp_path):
    rule, _, signals, _ = blocks(ROOT / "docs" / "own-rules.md", "yaml")
    names = re.findall(r"^  (\w+):", signals, re.MULTILINE)
    every = rule.split("signals:")[0] + signals + f"when: {json.dumps(names)}\nsummary: bad\npairs: [policy]\n"
    (tmp_path / "ACM001.yaml").write_text(rule)
    (tmp_path / "ACM002.yaml").write_text(every.replace("ACM001", "ACM002"))
    assert [rule.id for rule in td.load_rules(tmp_path)] == ["ACM001", "ACM002"]
    (tmp_path / "guards.yaml").write_text(*blocks(ROOT / "docs" / "guards.md", "yaml"))
    td.Monitor(guards=tmp_path / "guards.yaml").close()


@pytest.mark.nightly
@pytest.mark.parametrize("tracker", EXTRAS)
def test_it_runs_unchanged(tracker, built_wheel, tmp_path):
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
    # Trackio prints alerts itself, in a form of its own.
    alert = ["Token probabilities shift after tool results, since step 90."] if tracker == "Trackio" else []
    live = shows_the_fault(done.stdout + done.stderr, *alert)

    (again,) = re.findall(r"^all of it +tracker-diag (diagnose .+)$", done.stderr, re.MULTILINE)
    asked = subprocess.run(
        [command, *shlex.split(again)], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    shown = " ".join(asked.stdout.split())
    assert "broke first Token probabilities shift after tool results, on post_tool" in shown
    assert "said live" in shown
    assert all("continue? Watch. Token probabilities shift" in text for text in (live, shown))


@pytest.mark.nightly
@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_snippet_of_a_trainer_runs_and_ends_with_a_verdict(trainer, run_block):
    assert "tracker_diag: verdict after" in run_block(TRAINERS[trainer] + BLOCKS[trainer])
