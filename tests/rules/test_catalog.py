"""Every rule of the catalogue does what its test file says, and has a file that says enough."""

import collections
import re
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


def test_each_part_of_a_summary_is_a_sentence_of_its_own():
    """If a number is not known, its part is left out; what comes after it must not need it."""
    parts = [(rule.id, part) for rule in RULES.values() for part in rule.summary.split("; ")]
    assert [at for at in parts if at[1].count("(") != at[1].count(")")] == []
    assert [at for at in parts if re.match(r"(it|that|those|they|this)\b", at[1])] == []


def test_the_numbers_of_a_family_have_no_gap():
    families = collections.defaultdict(set)
    for rule in [*RULES, "REW007", "REW008", "REW009"]:  # these three are no rules
        families[rule[:3]].add(int(rule[3:]))
    assert len(families) == 12
    assert all(numbers == set(range(1, len(numbers) + 1)) for numbers in families.values())
    assert len({rule.name for rule in RULES.values()}) == len(RULES)


def test_a_wrong_expectation_is_reported():
    case = RuleCase(name="x", rule="NUM004", series={"reward": "1x9"}, non_finite={3: "loss"}, firing=5)
    assert check_rule(RULES["NUM004"], case) == ["firing: 3, expected 5"]
