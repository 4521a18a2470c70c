"""RES006 on three real trainings with measured steps: it finds the one that waits for its tools, live and finished.

In `slow` the tools answer, from step 10 on, at most fifty times a second; in `quick` they have no such limit. In `busy`
the batch is so large that a step takes as long, and the processor works.
"""

import json
from pathlib import Path

import pytest

import tracker_diag as td
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow

LOGS = Path(__file__).with_name("waiting")
SCHEMA = json.loads((LOGS / "schema.json").read_text())
ONSET = 10
RULE = next(rule for rule in td.catalog() if rule.id == "RES006")


@pytest.mark.parametrize("run", ["slow", "quick", "busy"])
def test_a_training_that_waits_for_its_tools_is_found_and_its_twins_are_not(run):
    rows = [json.loads(line) for line in (LOGS / f"{run}.jsonl").read_text().splitlines()]
    assert all(list(row) == SCHEMA["required"] == list(SCHEMA["properties"]) for row in rows)
    long = [row["step"] for row in rows if row["step_seconds"] > 10]
    assert long == {"slow": list(range(ONSET, len(rows))), "quick": [], "busy": list(range(len(rows)))}[run]

    summary = td.diagnose(str(LOGS / f"{run}.jsonl")).summary
    result = [finding for finding in summary.findings if finding.rule.id == "RES006" and finding.fired is not None]
    assert [(finding.slice, finding.onset) for finding in result] == [("all", ONSET)] * (run == "slow")
    assert "RES006" not in summary.blind

    seen = CapturingTracker()
    monitor = Monitor([seen], rules=[RULE], catalog=False)
    for row in rows:
        monitor.log(row, row["step"])
    assert monitor.close().blind == {}
    fired = [step for step, finding in seen.findings if finding.fired is not None]
    assert fired == [ONSET + RULE.for_steps - 1] * (run == "slow")
    assert not monitor.failures
