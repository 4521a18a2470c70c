"""TRL as people start it on several processes: torchrun, two ranks, real GRPO on the CPU, and every tracker."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RANKS = 2


@pytest.mark.nightly
@pytest.mark.matrix("trl", "run for real", "2 processes of torchrun")
def test_a_tool_that_is_broken_on_the_second_rank_alone_is_told_in_every_tracker(tmp_path, new_mlflow_store, alerted):
    """Fresh processes: of forks the first one to end removes the folder in which W&B keeps media for all of them."""
    environment = {
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "integrations", ROOT))), "PROJECT": alerted.project,
        "MLFLOW_TRACKING_URI": new_mlflow_store(tmp_path), "TENSORBOARD_LOGGING_DIR": str(tmp_path / "curves"),
    }  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, HERE / "train.py", "broken_tool_ranks", tmp_path],
        env=os.environ | environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-8000:]
    first, second = (json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in range(RANKS))
    for run in (first, second):
        assert run["failures"] == []
        assert not any(run["health"].values())
    fired = {(one["rule"], one["slice"]) for one in first["findings"] if one["fired"] is not None}
    assert ("ENV001", "all") in fired
    failed = [row["tools/failure_frequency"] for row in first["own"] if "loss" in row]
    assert 0.2 < statistics.median(failed) < 0.8  # of the calls of both: its own do not fail
    # So do our own counts of samples, though each process has texts and calls of its share alone.
    counted = [of for of in first["scalars"].values() if "diag/samples/tool_failure_rate" in of]
    assert 0.2 < statistics.median(of["diag/samples/tool_failure_rate"] for of in counted) < 0.8
    assert alerted("ENV001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    # By one process. Which tool it is stands in the samples, a log later or two: it may be told before the end.
    told = [one["title"] for one in alerted.told if "ENV001" in one["title"]]
    assert told in (
        ["ENV001 all: Tool calls fail"],
        ["ENV001 all: Tool calls fail", "ENV001 tool:lookup: Tool calls fail"],
    )
