"""A few programs of the chaos suite; `make nightly` plays a thousand for each tracker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

SUITE = Path(__file__).with_name("chaos.py")


@pytest.mark.parametrize(("tracker", "programs"), [("mlflow", 3), ("wandb", 3), ("tensorboard", 8), ("trackio", 8)])
def test_no_row_of_yours_changes_and_none_of_ours_is_lost(tracker, programs, tmp_path, migrated_mlflow):
    command = [sys.executable, "-W", "ignore", SUITE, "--trackers", tracker, "--programs", str(programs)]
    command += ["--workers", "1", "--out", tmp_path / "figures.json"]
    environment = os.environ | {"MIGRATED_MLFLOW": str(migrated_mlflow)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    figures = json.loads((tmp_path / "figures.json").read_text())[tracker]
    assert (figures["programs"], figures["wrong"]) == (programs, 0)
    assert figures["steps"] > programs
    assert figures["lost"] <= figures["counted"]


def test_what_is_lost_is_seen(tmp_path):
    """The suite is no good if it cannot fail: a tracker that loses every third row of ours."""
    lossy = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(SUITE.parent)!r})
import chaos
from tracker_diag.trackers.tensorboard.write import TensorBoardTracker
write = TensorBoardTracker.write
TensorBoardTracker.write = lambda self, step, entries, at: write(self, step, entries if step % 3 else [], at)
chaos.work("tensorboard", range(6), Path(sys.argv[1]), None)
"""
    out = tmp_path / "lines.jsonl"
    subprocess.run([sys.executable, "-W", "ignore", "-c", lossy, out], check=True, capture_output=True)
    wrong = [text for line in out.read_text().splitlines() for text in json.loads(line)["wrong"]]
    assert any("are not in the tracker" in text for text in wrong)
