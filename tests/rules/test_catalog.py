"""Every rule of the catalogue does what its test file says, and has a file that says enough."""

from pathlib import Path

import pytest

from tests.rules.texts import data
from tracker_diag.rules.cases import RuleCase, check_rule
from tracker_diag.rules.conditions import signals_of
from tracker_diag.rules.loader import catalog

HERE = Path(__file__).parent
CASES = [RuleCase(**case) for file in sorted(HERE.glob("*.yaml")) for case in data(file)]
RULES = {rule.id: rule for rule in catalog()}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.name}")
def test_case(case):
    assert check_rule(RULES[case.rule], case) == []


def test_every_rule_has_a_firing_a_silent_and_a_blind_case():
    assert {case.rule for case in CASES if case.firing != "never"} == RULES.keys()
    assert {case.rule for case in CASES if case.firing == "never" and case.state != "unknown"} == RULES.keys()
    assert {case.rule for case in CASES if case.state == "unknown"} == RULES.keys()


def test_a_rule_file_is_named_after_its_rule_and_inhibits_rules_that_exist():
    for rule in RULES.values():
        assert (HERE.parents[1] / f"tracker_diag/rules/catalog/{rule.id}.yaml").exists(), rule.id
        assert set(rule.inhibits) <= RULES.keys(), rule.id
        assert not set(rule.support) & set(signals_of(rule.when, rule.predicates)), rule.id


def test_a_rule_of_the_catalogue_says_all_that_a_person_needs():
    needed = ("name", "link", "status", "severity", "description", "rationale", "remedy", "false_positives",
              "calibration")  # fmt: skip
    missing = [(rule.id, field) for rule in RULES.values() for field in needed if not data(rule.file).get(field)]
    assert missing == []


FAMILIES = {
    "ENV": 14, "EVA": 6, "REW": 22, "ADV": 7, "POL": 20, "CRI": 5, "EXP": 8, "FRE": 7, "NUM": 10, "RES": 7, "SFT": 4,
    "OUT": 7,
}  # fmt: skip
"""How many rules each family has; REW leaves out 007 to 009. RES007 and SFT are ours."""


def test_the_catalogue_is_complete():
    expected = {f"{family}{i:03}" for family, count in FAMILIES.items() for i in range(1, count + 1)}
    assert RULES.keys() == expected - {"REW007", "REW008", "REW009"}
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_a_wrong_expectation_is_told():
    case = RuleCase(name="x", rule="NUM004", series={"reward": "1x9"}, non_finite={3: "loss"}, firing=5)
    assert check_rule(RULES["NUM004"], case) == ["firing: 3, expected 5"]
