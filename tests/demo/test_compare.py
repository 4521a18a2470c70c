"""The demo's arms held against each other: the tool that gets wider is found, and two seeds of one arm are alike."""

import pytest

from tracker_diag.monitor.monitor import Monitor
from tracker_diag.runs.compare import compare
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.open import read_run

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1000)]

STEPS = 230
"""The tool widens from step 80 on; by then the tails after it have parted for good."""


@pytest.fixture(scope="module")
def arms(tmp_path_factory, trained_arm):
    """Two seeds of the calm arm and of the one whose tool widens; until it does they are one run."""

    def watched(arm, seed):
        folder = tmp_path_factory.mktemp(arm)
        with Monitor([JsonlTracker(folder)]) as monitor:
            for step in trained_arm(arm, STEPS, seed):
                monitor.observe(**step.tensors)
                monitor.log(step.metrics, step.step)
        return diagnose(read_run(str(folder / "metrics.jsonl")))

    return {arm: [watched(arm, seed) for seed in (0, 1)] for arm in ("healthy", "widen")}


@pytest.mark.parametrize("seeds", [(0,), (1,), (0, 1)])
def test_the_widening_tool_parts_after_tool_calls_first(arms, seeds):
    (other,) = compare([arms["healthy"][seed] for seed in seeds], [arms["widen"][seed] for seed in seeds]).others
    first = other.parted[0]
    assert first.series.split("/")[1] == "post_tool"
    assert 80 <= first.onset <= 150
    assert first.by > 3
    result = {series.series: series for series in other.parted}
    assert result["policy/post_tool/p95"].other > 0.03
    assert not any("text_only" in series for series in result)
    assert ("B", "POL001", "post_tool") in {(other.arm, other.rule, other.slice) for other in other.incidents}


def test_two_seeds_of_one_arm_are_alike(arms):
    for runs in arms.values():
        (other,) = compare(*runs).others
        assert other.parted == ()
        assert len(other.alike) > 25
