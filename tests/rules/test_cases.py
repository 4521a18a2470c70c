"""Files of cases: what is wrong with one is reported with file and line."""

import pytest

from tracker_diag import testing
from tracker_diag.errors import RuleError
from tracker_diag.rules import cases
from tracker_diag.rules.cases import load_cases, series
from tracker_diag.rules.loader import catalog

RULE = next(rule for rule in catalog() if rule.id == "NUM004")
GOOD = """\
- name: one
  rule: NUM004
  series: {reward: "0.5x9"}
  firing: never
- name: two
  rule: NUM004
  series: {policy/post_tool/p95: "1 nan 1+0.5x2"}
  firing: never
"""


def load(tmp_path, text):
    file = tmp_path / "NUM004.yaml"
    file.write_text(text)
    return load_cases(file, RULE)


def test_cases_are_read(tmp_path):
    assert [case.name for case in load(tmp_path, GOOD)] == ["one", "two"]
    assert series("1 0.5x2 1+0.5x2") == [1, 0.5, 0.5, 0.5, 1, 1.5, 2]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "  firing: never\n- name: two",
            "  fireing: 1\n- name: two",
            ":4: 0.fireing: no such field; did you mean firing?",
        ),
        ("0.5x9", "0.5y9", ":3: 0.series: series: '0.5y9' given, expected a, axn or a+bxn"),
        ("{reward:", "{rewrd:", ":3: 0.series: metric: 'rewrd' given, expected one of reward, kl"),
        ("tool/p95", "tool/p96", ":7: 1.series: stat: 'p96' given, expected one of count, p50"),
        ('"0.5x9"', "0.5", ":3: 0.series.reward: Input should be a valid string"),
        (
            "two\n  rule: NUM004",
            "two\n  rule: NUM005",
            ":6: 1.rule: 'NUM005' given, expected NUM004, as the file is nam",
        ),
        ("- name: one", "- name: one\n  name: two", ":2: key 'name' is there twice"),
        (GOOD, "", ":1: NoneType given, expected a list of cases, at least one"),
        (GOOD, "[]", ":1: list given, expected a list of cases, at least one"),
        (GOOD, "a: b", ":1: dict given, expected a list of cases"),
    ],
)
def test_what_is_wrong_is_reported_with_file_and_line(tmp_path, old, new, message):
    with pytest.raises(RuleError) as error:
        load(tmp_path, GOOD.replace(old, new))
    assert f"NUM004.yaml{message}" in str(error.value)


def test_a_file_that_is_not_there_is_reported(tmp_path):
    with pytest.raises(RuleError, match=r"NUM004.yaml: cannot be read: No such file"):
        load_cases(tmp_path / "NUM004.yaml", RULE)


def test_they_are_a_part_of_what_is_offered_for_tests():
    for name in ("RuleCase", "check_rule", "load_cases", "series"):
        assert getattr(testing, name) is getattr(cases, name)
