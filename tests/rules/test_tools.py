"""Rules over metrics of one tool each: what is met at run time is looked at, named, and reported once."""

import json

import pytest
from pydantic import ValidationError

from tracker_diag.records import Scalar
from tracker_diag.rules.engine import MOST_CELLS, Engine
from tracker_diag.rules.incidents import incidents
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed

FAILS = {"kind": "threshold", "series": {"metric": "tool_failure_rate"}, "above": 0.2}
CALLED = {"kind": "threshold", "series": {"metric": "tool_calls", "slice": "all"}, "above": 1}


def rule(**fields):
    base = {"id": "ZZZ001", "title": "A tool fails", "slices": ["all", "tool:*"], "signals": {"fails": FAILS},
            "when": ["fails"], "summary": "{fails.value:.1f} of {slice}", "remedy": ["Look."]}  # fmt: skip
    return Rule.model_validate(base | fields)


def watched(engine, *steps):
    for step, series in enumerate(steps):
        engine.evaluate(Observed(step, {name: Scalar(name, value) for name, value in series.items()}))
    return {finding.slice: finding for finding in engine.findings}


RATES = {"tool_failure_rate": 0.3, "tool_failure_rate:search": 0.6, "tool_failure_rate:read": 0.0}


def test_the_one_tool_is_named_and_explains_the_total():
    result = watched(Engine([rule()]), RATES)
    assert set(result) == {"all", "tool:search"}
    assert result["tool:search"].summary == "0.6 of tool:search"
    assert result["tool:search"].inhibited_by is None
    assert result["all"].inhibited_by == "ZZZ001"
    (incident,) = incidents(result.values())
    assert incident.cause.slice == incident.cell == "tool:search"


def test_a_tool_does_not_explain_another_nor_itself():
    result = watched(Engine([rule()]), RATES | {"tool_failure_rate:read": 0.5})
    assert result["tool:read"].inhibited_by is result["tool:search"].inhibited_by is None


def test_a_metric_of_all_tools_is_read_next_to_those_of_one():
    both = rule(signals={"fails": FAILS, "called": CALLED}, when=[{"all": ["fails", "called"]}])
    few = RATES | {"tool_calls": 0.5, "tool_calls:search": 3.0}
    assert not watched(Engine([both]), few)
    assert "tool:search" in watched(Engine([both]), few | {"tool_calls": 2.0})


def test_another_slice_of_a_metric_is_refused():
    with pytest.raises(ValidationError, match="with metric, slice may be all"):
        rule(signals={"fails": {**FAILS, "series": {"metric": "tool_failure_rate", "slice": "post_tool"}}})


def test_a_tool_that_lacks_the_metric_blinds_nothing():
    engine = Engine([rule()])
    watched(engine, RATES | {"tool_seconds:python": 1.0})
    assert engine.blind() == {}
    alone = Engine([rule()])
    watched(alone, {"tool_seconds:python": 1.0})
    assert "no series tool_failure_rate" in map(str, alone.blind()["ZZZ001"])


@pytest.mark.slow
def test_a_thousand_tools_cost_what_a_few_do():
    engine = Engine([rule()])
    watched(engine, {f"tool_failure_rate:{i}": 0.5 for i in range(1000)})
    assert len(engine.findings) == MOST_CELLS


def test_tools_that_were_met_are_known_after_a_resume():
    steps = [RATES | {"tool_failure_rate:search": 0.1}, RATES, RATES]
    waits = rule(for_steps=3)
    first, second = Engine([waits]), Engine([waits])
    watched(first, *[RATES] * 2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step, series in enumerate(steps[1:], 2):
        second.evaluate(Observed(step, {name: Scalar(name, value) for name, value in series.items()}))
    assert {finding.slice: finding.fired for finding in second.findings} == {"all": 2, "tool:search": 2}
