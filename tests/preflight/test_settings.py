"""The evaluation's protocol: complete, saved, and the one that rule EVA001 watches."""

from tracker_diag.preflight import evaluation
from tracker_diag.rules.loader import catalog

EVALUATION = {"eval.temperature": 0, "eval.top_p": 1, "eval.max_tokens": 9, "eval.template": "a", "eval.pass_k": 4}
WHOLE = EVALUATION | {"eval.split": "dev"}


def evaluated(config, saved=None, *, tools=False):
    return {check.name: check for check in evaluation.evaluation_checks(config, saved, tool=tools)}


def test_a_protocol_is_complete_or_says_what_it_lacks():
    assert evaluated(WHOLE)["evaluation_complete"].status == "pass"
    assert evaluated(EVALUATION)["evaluation_complete"].reason == "the evaluation's settings lack split"
    assert (
        evaluated(WHOLE, tools=True)["evaluation_complete"].reason == "the evaluation's settings lack tools, time limit"
    )
    assert evaluated(WHOLE | {"eval.split": None})["evaluation_complete"].status == "fail"
    assert evaluated({})["evaluation_complete"].reason == "the configuration has no setting of an evaluation"


def test_a_protocol_is_saved_as_it_is_or_not_at_all():
    assert evaluated(WHOLE, WHOLE)["evaluation_saved"].status == "pass"
    strings = {name: str(value) for name, value in WHOLE.items()}  # as MLflow keeps them
    assert evaluated(WHOLE, strings)["evaluation_saved"].status == "pass"
    assert "does not have eval.split" in evaluated(WHOLE, EVALUATION)["evaluation_saved"].reason
    other = evaluated(WHOLE, WHOLE | {"eval.temperature": 1})["evaluation_saved"]
    assert other.reason == "eval.temperature is 0 here and 1 in the tracker"
    assert evaluated(WHOLE)["evaluation_saved"].do == "give run=..., what td.wrap returned"
    assert evaluated({}, {})["evaluation_saved"].status == "not checked"


def test_all_settings_that_a_rule_watches_are_asked_for():
    watched = next(rule for rule in catalog() if rule.id == "EVA001").signals["setting_changed"].keys
    asked = {name for item in evaluation.protocol().values() for name in item["names"]}
    assert {key for key in watched if key not in asked} == {"*val_kwargs.*"}  # all of verl's together
