import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tracker_diag.rules.conditions import signals_of
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Origin, Rule

GOOD = next(rule for rule in catalog() if rule.id == "POL002").model_dump(by_alias=True, mode="json")


def changed(**fields):
    return Rule.model_validate(GOOD | fields)


def test_a_rule_survives_the_way_out_and_back():
    assert changed().model_dump(by_alias=True, mode="json") == GOOD


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"severty": "warn"}, "Extra inputs are not permitted"),
        ({"id": "pol2"}, "String should match pattern"),
        ({"name": "Not Kebab"}, "String should match pattern"),
        ({"severity": "error"}, "severity: error given, expected at most warn of an experimental rule"),
        ({"link": "poetry"}, "Input should be 'environment'"),
        ({"title": ""}, "at least 1 character"),
        ({"summary": "{tail_grows.value:.2q}"}, "value:.2q}: Unknown format code 'q'"),
        ({"summary": "{tail_grows.series:.2f}"}, "series:.2f}: Unknown format code 'f'"),
        (
            {"when": [{"all": [{"al": ["x"]}]}]},
            "expected the name of a signal or predicate, or {any: [...]} with such names",
        ),
        ({"description": "Finds things"}, "String should match pattern '^(Detects "),
        ({"when": ["post_tool_tail_matters"]}, "defined and not used"),
        ({"when": [{"all": ["nobody"]}]}, "unknown signals or predicates ['nobody']"),
        ({"when": []}, "at least 1 item"),
        ({"when": [{"needs": ["reward"]}]}, "expected `all`, `unless` or both"),
        ({"when": [{"all": ["x"], "needs": ["rewrd"]}]}, "metric: 'rewrd' given, expected one of"),
        ({"condition": "x"}, "condition: a rule of form 1 given, expected `when` of form 2; see docs/own-rules.md"),
        ({"pairs": []}, "pairs: nothing given, expected the pairs"),
        ({"summary": "{tail_grows.__class__}"}, "expected a signal of this rule and one of"),
        ({"summary": "{tail_grows.value.real}"}, "expected {signal.field}"),
        ({"summary": "{nobody.value}"}, "expected a signal of this rule"),
        ({"summary": "{0}"}, "expected {signal.field}"),
        ({"slices": ["tool"]}, "slice: 'tool' given, expected one of text_only, post_tool, all, "),
    ],
)
def test_what_a_rule_may_not_say(fields, message):
    with pytest.raises(ValidationError) as error:
        changed(**fields)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("signal", "message"),
    [
        ({"kind": "growth", "series": {"stat": "p96"}}, "stat: 'p96' given, expected one of"),
        ({"kind": "growth", "series": {"metric": "rewrd"}}, "metric: 'rewrd' given, expected one of"),
        ({"kind": "growth", "series": {}}, "expected exactly one of stat and metric"),
        ({"kind": "growth", "series": {"stat": "p95", "metric": "kl"}}, "expected exactly one of stat and metric"),
        ({"kind": "growth", "series": {"metric": "kl", "pair": "policy"}}, "slice and pair go with stat"),
        ({"kind": "threshold", "series": {"stat": "p95"}}, "expected exactly one of above and below"),
        ({"kind": "threshold", "series": {"stat": "p95"}, "above": 1, "below": 2}, "expected exactly one of above and"),
        ({"kind": "baseline_ratio", "series": {"stat": "p95"}}, "expected exactly one of above and below"),
        (
            {"kind": "trend", "series": {"stat": "p95"}, "steps": 40, "factor": 2, "change": 1},
            "expected at most one of factor and change",
        ),
        ({"kind": "spike", "series": {"stat": "p95"}}, "expected exactly one of factor and change"),
        (
            {"kind": "threshold", "series": {"stat": "p95"}, "above": {"ppo": 1}},
            "expected a limit for `other` next to those of algorithms",
        ),
        ({"kind": "trend", "series": {"stat": "p95"}, "steps": 3, "factor": 2}, "greater than or equal to 8"),
        (
            {"kind": "grwth", "series": {"stat": "p95"}},
            "Input tag 'grwth' found using 'kind' does not match any of the expected tags",
        ),
    ],
)
def test_what_a_signal_may_not_say(signal, message):
    with pytest.raises(ValidationError) as error:
        changed(signals={"one": signal}, when=["one"], predicates={}, harmless=[], support=[], summary="x")
    assert message in str(error.value)


LEAST = {
    "id": "ACM001",
    "title": "Reward is low: why?",
    "signals": {"low": {"kind": "threshold", "series": {"metric": "reward"}, "below": 0.1}},
    "when": ["low"],
    "summary": "reward is {low.value:.2f}",
}


def test_a_rule_needs_four_things_and_its_signals():
    rule = Rule.model_validate(LEAST)
    assert (rule.name, rule.link, rule.status, rule.severity) == (
        "reward-is-low-why",
        "policy_update",
        "experimental",
        "warn",
    )
    assert (rule.description, rule.rationale, rule.remedy, rule.false_positives) == ("", "", (), ())
    for field in LEAST:
        with pytest.raises(ValidationError, match=f"{field}\n  Field required"):
            Rule.model_validate({name: value for name, value in LEAST.items() if name != field})


def test_a_rule_needs_signals_and_predicates_that_end_in_them():
    with pytest.raises(ValidationError, match="at least 1 item"):
        Rule.model_validate(LEAST | {"signals": {}, "when": [{"unless": []}]})
    circle = {"a": ["b", "low"], "b": ["a"]}
    with pytest.raises(ValidationError, match="predicates: a, b are made of each other, expected no circle"):
        Rule.model_validate(LEAST | {"predicates": circle, "when": ["a"]})


def test_a_title_without_latin_letters_gives_no_name_and_the_id_stands_in():
    assert Rule.model_validate(LEAST | {"title": "奖励过低"}).name == "acm001"
    assert Rule.model_validate(LEAST | {"name": "mine"}).name == "mine"


def test_where_a_rule_was_read_is_no_part_of_it():
    made, read = Rule.model_validate(LEAST), Rule.model_validate(LEAST, context=Origin(Path("a.yaml"), 3))
    assert made == read
    assert made.model_dump() == read.model_dump()
    assert (made.where, read.where) == ("Rule(id='ACM001') in Python", "a.yaml:3")
    assert read.model_copy(update={"severity": "info"}).file == Path("a.yaml")
    assert made.own
    assert read.own
    assert not next(iter(catalog())).own


def test_the_signals_that_decide_through_predicates():
    rule = next(rule for rule in catalog() if rule.id == "POL001")
    deciding = signals_of(rule.when, rule.predicates)
    assert deciding[0] == "post_tool_tail_matters"
    assert "text_only_tail_rises" in deciding


@pytest.mark.parametrize("by_alias", [True, False])
def test_a_rule_survives_being_written_as_json(by_alias):
    """As the journal writes it, and as pydantic does by default."""
    for rule in catalog():
        assert Rule.model_validate(json.loads(json.dumps(rule.model_dump(mode="json", by_alias=by_alias)))) == rule
