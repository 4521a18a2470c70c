"""What a person knows of stays listed and is quiet."""

import pytest

import tracker_diag as td
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import UnknownName
from tracker_diag.rules.acknowledged import Acknowledged, in_settings
from tracker_diag.rules.judge import Judge, StepInputs
from tracker_diag.rules.model import Rule

LOW = Rule.model_validate(
    {
        "id": "ZZZ001", "title": "Low", "link": "reward", "signals": {"low": "reward below 0.5"}, "when": ["low"],
        "summary": "reward is low", "for_steps": 1, "keep_firing_steps": 0, "cooldown_steps": 0,
    }
)  # fmt: skip
NAN = [{"step": step, "loss": float("nan") if step > 30 else 1.0, "reward": 0.5} for step in range(40)]


def notices(judge, steps, reward):
    return [n.title for step in steps for n in judge.step(step, StepInputs({"reward": reward})).notices]


def test_an_acknowledged_rule_gives_no_notice_until_its_time_is_over():
    judge = Judge([LOW], GrowthSettings())
    assert len(notices(judge, range(3), 0.1)) == 1
    judge.acknowledge("ZZZ001", "a tool is down", steps=10)
    assert len(notices(judge, range(3, 9), 0.9)) == 1, "the end is still reported"
    assert notices(judge, range(9, 13), 0.1) == []
    assert [(incident.acknowledged, incident.severity) for incident in judge.incidents][-1] == (
        "a tool is down",
        "warn",
    )
    again = Judge([LOW], GrowthSettings())
    again.load_state_dict(judge.state_dict(), StepInputs())
    for judged in (judge, again):
        assert len(notices(judged, range(13, 16), 0.1)) == 1, "ten steps after step 2 the time is over"


def test_what_gets_worse_is_no_longer_quiet():
    known = Acknowledged("NUM004", "seen", severity="warn")
    assert not any(map(known.covers, td.diagnose(NAN).summary.incidents))


def test_the_advice_leaves_it_out_and_the_verdict_does_not():
    before, after = td.diagnose(NAN), td.diagnose(NAN, acknowledged={"NUM004": "the last batch is empty"})
    assert (before.summary.recommendation.action, after.summary.recommendation.action) == ("stop", "continue")
    assert (before.summary.level, after.summary.level) == ("error", "info")
    assert after.summary.first_break.rule.id == "NUM004"
    assert after.to_json()["incidents"][0]["acknowledged"] == "the last batch is empty"
    assert "acknowledged: the last batch is empty" in str(after.summary.incidents[0])


def test_a_tag_of_the_run_acknowledges_too():
    tags = {"lr": 1, "diag.acknowledged.POL001": "until 500: a known outage", "diag.acknowledged.ENV001": "wanted"}
    assert in_settings(tags) == [Acknowledged("POL001", "a known outage", 500), Acknowledged("ENV001", "wanted")]


def test_a_rule_that_is_not_there_cannot_be_acknowledged():
    with pytest.raises(UnknownName, match="POL000"):
        td.diagnose(NAN, acknowledged={"POL000": "?"})
