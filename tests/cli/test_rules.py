"""`tracker-diag rules`, as a person with rules of one's own uses it."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app
from tracker_diag.rules.loader import catalog

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(app, ["rules", *map(str, arguments)])


@pytest.fixture
def own(tmp_path):
    """A folder with one rule and its cases, as the README of one's own rules would have it."""
    shutil.copy(ROOT / "tracker_diag/rules/catalog/NUM004.yaml", tmp_path / "NUM004.yaml")
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests/rules/NUM004.yaml", tmp_path / "tests/NUM004.yaml")
    return tmp_path


def test_all_rules_are_listed():
    text = run("list").stdout
    assert all(rule.id in text and rule.name in text for rule in catalog())


def test_one_rule_is_shown_with_what_to_do():
    text = " ".join(run("show", "pol001").stdout.split())
    assert "POL001 tool-conditioned-variance-amplification" in text
    assert "Read ten of the tool results" in text


def test_an_unknown_rule_is_told_in_one_line():
    result = run("show", "POL999")
    assert result.exit_code == 2
    assert result.stderr.startswith("tracker-diag: rule: 'POL999' given, expected one of ADV001")


def test_rules_of_ones_own_are_linted_and_tested(own):
    assert run("lint", own).stdout == "1 rules, all of them sound: NUM004\n"
    assert run("test", own).stdout == "1 rules do what their cases say\n"


def test_a_case_that_fails_is_told_and_exits_with_1(own):
    file = own / "tests/NUM004.yaml"
    file.write_text("- {name: x, rule: NUM004, series: {reward: 1x9}, non_finite: {3: loss}, firing: 5}\n")
    result = run("test", own)
    assert result.exit_code == 1
    assert result.stdout == "NUM004: x: firing: 3, expected 5\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id: NUM004\nid: NUM005\n", "NUM004.yaml:2: key 'id' stands twice"),
        ("- 1\n", "NUM004.yaml:1: list given, expected a rule"),
        ("id: nope\n", "NUM004.yaml:1: id: String should match pattern"),
    ],
)
def test_a_rule_that_cannot_be_used_is_told_with_file_and_line(own, text, message):
    (own / "NUM004.yaml").write_text(text)
    result = run("lint", own)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def test_missing_cases_and_an_empty_folder_are_told(own, tmp_path):
    (own / "tests/NUM004.yaml").unlink()
    assert run("test", own).exit_code == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no YAML file, expected one rule a file" in run("lint", empty).stderr


def test_the_schema_is_that_of_a_rule():
    schema = json.loads(run("schema").stdout)
    assert schema["title"] == "Rule"
    assert {"id", "signals", "condition", "remedy"} <= set(schema["required"])
