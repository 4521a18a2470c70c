"""RES006 on real trainings with steps of over ten seconds, which waiting.py has run: it finds the one that waits."""

import json
from pathlib import Path

import pytest

import tracker_diag as td
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

LOGS = Path(__file__).with_name("waiting")
SCHEMA = json.loads((LOGS / "schema.json").read_text())
ONSET = 10
RULE = next(rule for rule in td.catalog() if rule.id == "RES006")


def rows_of(run):
    return [json.loads(line) for line in (LOGS / f"{run}.jsonl").read_text().splitlines()]


def long_steps(rows):
    return sum(row["step_seconds"] > 10 for row in rows)


def of_rule(findings):
    return [
        (one.rule.id, one.slice, one.onset) for one in findings if one.rule.id == "RES006" and one.fired is not None
    ]


@pytest.mark.parametrize("run", ["slow", "quick", "busy"])
def test_the_logs_hold_what_their_schema_says(run):
    rows = rows_of(run)
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert all(list(row) == SCHEMA["required"] == list(SCHEMA["properties"]) for row in rows)
    assert all(0 <= row["utilisation"] <= 1 and row["tool_wait_seconds"] <= row["step_seconds"] for row in rows)


@pytest.mark.slow
def test_a_training_that_waits_for_its_tools_is_found():
    rows = rows_of("slow")
    assert long_steps(rows[:ONSET]) == 0
    assert long_steps(rows[ONSET:]) == len(rows) - ONSET
    assert sum(row["tool_wait_seconds"] for row in rows[ONSET:]) > 0.9 * sum(
        row["step_seconds"] for row in rows[ONSET:]
    )
    diagnosis = td.diagnose(str(LOGS / "slow.jsonl"))
    assert of_rule(diagnosis.summary.findings) == [("RES006", "all", ONSET)]
    assert "RES006" not in diagnosis.summary.blind


@pytest.mark.slow
@pytest.mark.parametrize("run", ["quick", "busy"])
def test_its_twins_are_not(run):
    """Steps of the one are short; those of the other as long, and the processor works."""
    rows = rows_of(run)
    assert long_steps(rows) == {"quick": 0, "busy": len(rows)}[run]
    diagnosis = td.diagnose(str(LOGS / f"{run}.jsonl"))
    assert of_rule(diagnosis.summary.findings) == []
    assert "RES006" not in diagnosis.summary.blind


@pytest.mark.parametrize(("run", "fires"), [("slow", [ONSET + RULE.for_steps - 1]), ("quick", []), ("busy", [])])
def test_a_run_that_goes_on_is_told_after_fifty_steps(run, fires):
    seen = CapturingTracker()
    monitor = Monitor([seen], rules=[RULE], catalog=False)
    for row in rows_of(run):
        monitor.log(row, row["step"])
    summary = monitor.close()
    assert [step for step, one in seen.findings if one.fired is not None] == fires
    assert summary.blind == {}
    assert not monitor.failures
