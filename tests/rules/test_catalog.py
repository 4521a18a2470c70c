"""Every rule of the catalogue does what its test file says, and has a file that says enough."""

from pathlib import Path

import pytest
import yaml

from tracker_diag.rules.cases import RuleCase, check_rule
from tracker_diag.rules.conditions import signals_of
from tracker_diag.rules.loader import catalog

HERE = Path(__file__).parent
CASES = [RuleCase(**case) for file in sorted(HERE.glob("*.yaml")) for case in yaml.safe_load(file.read_text())]
RULES = {rule.id: rule for rule in catalog()}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.name}")
def test_case(case):
    assert check_rule(RULES[case.rule], case) == []


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_every_rule_has_a_firing_a_silent_and_a_blind_case(rule):
    cases = [case for case in CASES if case.rule == rule.id]
    assert any(case.firing != "never" for case in cases)
    assert any(case.firing == "never" and case.state != "unknown" for case in cases)
    assert any(case.state == "unknown" for case in cases)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_file_is_named_after_its_rule_and_inhibits_rules_that_exist(rule):
    assert (HERE.parents[1] / f"tracker_diag/rules/catalog/{rule.id}.yaml").exists()
    assert set(rule.inhibits) <= RULES.keys()
    assert not set(rule.support) & set(signals_of(rule.when, rule.predicates))


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_of_the_catalogue_says_all_that_a_person_needs(rule):
    said = yaml.safe_load(rule.file.read_text())
    needed = {"name", "link", "status", "severity", "description", "rationale", "remedy", "false_positives"}
    assert all(said.get(field) for field in (*needed, "calibration"))


FAMILIES = {
    "ENV": 14, "EVA": 6, "REW": 22, "ADV": 7, "POL": 20, "CRI": 5, "EXP": 8, "FRE": 7, "NUM": 10, "RES": 7, "SFT": 4,
    "OUT": 6,
}  # fmt: skip
"""How many rules each family has; REW leaves out 007 to 009. RES007 and SFT are ours."""


def test_the_catalogue_is_complete():
    expected = {f"{family}{i:03}" for family, count in FAMILIES.items() for i in range(1, count + 1)}
    assert RULES.keys() == expected - {"REW007", "REW008", "REW009"}
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_a_wrong_expectation_is_told():
    case = RuleCase(name="x", rule="NUM004", series={"reward": "1x9"}, non_finite={3: "loss"}, firing=5)
    assert check_rule(RULES["NUM004"], case) == ["firing: 3, expected 5"]
