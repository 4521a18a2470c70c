"""SwanLab as a tracker, from examples/swanlab. It needs SwanLab, which the project does not install."""

import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

from tracker_diag.testing import check_tracker
from tracker_diag.trackers.tracker import Listener

EXAMPLE = Path(__file__).parents[2] / "examples" / "swanlab" / "tracker_diag_swanlab.py"

pytestmark = [pytest.mark.nightly, pytest.mark.slow]
if find_spec("swanlab") is None:
    pytest.skip("pip install swanlab", allow_module_level=True)


@pytest.fixture
def run(tmp_path, monkeypatch):
    import swanlab

    monkeypatch.chdir(tmp_path)
    yield swanlab.init(project="test", mode="offline", log_dir=str(tmp_path), config={"lr": 0.1})
    swanlab.finish()


def test_it_keeps_the_contract_of_a_tracker(run):
    kind = runpy.run_path(str(EXAMPLE))["SwanLabTracker"]
    assert check_tracker(kind(run)) == []


def test_it_is_found_and_heard_and_the_users_rows_stay(run):
    import swanlab

    kind = runpy.run_path(str(EXAMPLE))["SwanLabTracker"]
    assert kind.find(swanlab).key == kind.find(run).key == kind.find().key
    assert kind.find(object()) is None
    heard, failed = [], []
    tracker = kind.find(run)
    listener = Listener(lambda *given: heard.append(given), print, list, lambda *error: failed.append(error))
    off = tracker.listen(listener)
    run.log({"reward": 0.5}, step=3)
    swanlab.log({"reward": 0.7})
    off()
    run.log({"reward": 0.9}, step=9)
    assert failed == []
    assert [(dict(data), step) for data, step, _ in heard] == [({"reward": 0.5}, 3), ({"reward": 0.7}, None)]
    assert tracker.config["lr"] == 0.1
