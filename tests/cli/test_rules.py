"""`tracker-diag rules`, as a person with rules of one's own uses it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.rules.texts import write_own
from tracker_diag.cli.app import app
from tracker_diag.rules.compiled import CATALOG
from tracker_diag.rules.loader import catalog

ROOT = Path(__file__).parents[2]
LEAST = "id: ACM001\ntitle: x\nsignals: {bad: {kind: non_finite}}\nwhen: [bad]\nsummary: x\n"


def run(*arguments):
    return CliRunner().invoke(app, ["rules", *map(str, arguments)])


@pytest.fixture
def own(tmp_path):
    """A folder with one rule and its cases."""
    return write_own(tmp_path / "own")


def test_all_rules_are_listed():
    text = run("list").stdout
    assert all(rule.id in text and rule.name in text for rule in catalog())


def test_one_rule_is_shown_with_what_to_do():
    text = " ".join(run("show", "pol001").stdout.split())
    assert "POL001 tool-conditioned-variance-amplification" in text
    assert "Find the tokens" in text
    assert run("show", "tool-conditioned-variance-amplification").stdout == run("show", "POL001").stdout


def test_an_unknown_rule_is_reported_in_one_line():
    result = run("show", "POL999")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "tracker-diag: rule: 'POL999' given, expected an id or a name of tracker-diag rules"
    )
    assert len(result.stderr) < 200
    for given, meant in (("POL00X", "POL0"), ("pol00x", "POL0"), ("critic-not-learnin", "critic-not-learning")):
        assert f"; did you mean {meant}" in run("show", given).stderr


@pytest.mark.slow
def test_rules_of_ones_own_are_linted_and_tested(own):
    assert run("lint", own).stdout == "1 rule, sound: ACM001\n"
    assert run("test", own).stdout == "1 rule: as the cases say\n"
    assert run("lint", CATALOG).stdout.startswith(f"{len(catalog())} rules, sound: ADV001, ")
    assert run("test", CATALOG / "NUM004.yaml", "--cases", ROOT / "tests/rules").exit_code == 0


@pytest.mark.slow
def test_own_rules_are_listed_and_shown_next_to_the_catalogue(own, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    alone = run("list").stdout
    assert "file" not in alone.splitlines()[0]
    both = run("list", "--rules", own).stdout
    assert f"{own}/ACM001.yaml" in both
    assert len(both.splitlines()) == len(alone.splitlines()) + 1
    assert run("show", "acm001").stderr.endswith("; your own are found with --rules FOLDER\n")
    shown = run("show", "acm001", "--rules", own).stdout
    headings = [line.split()[0] for line in shown.splitlines()]
    assert headings == ["rule", "says", "severity", "fires", "reads", "file"]
    monkeypatch.setenv("TRACKER_DIAG_RULES", str(own))
    assert run("list").stdout == both
    assert run("show", "ACM001").stdout == shown


def test_a_run_is_diagnosed_with_own_rules(own, tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "reward": 0.5 if step < 30 else 0.05} for step in range(40)]
    metrics.write_text("\n".join(map(json.dumps, rows)))

    def diagnosed(*arguments):
        result = CliRunner().invoke(app, ["diagnose", str(metrics), "--json", *map(str, arguments)])
        assert result.exit_code == 0, result.stderr
        document = json.loads(result.stdout)
        return [finding["rule"] for finding in document["findings"]], len(document["blind"]) + len(document["healthy"])

    assert diagnosed("--rules", own) == (["EXP008", "ACM001", "OUT001"], len(catalog()) - 2)
    assert diagnosed("--rules", f"{own},ACM") == (["ACM001"], 0)
    assert diagnosed("--rules", "NUM004") == ([], 1)
    missing = CliRunner().invoke(app, ["diagnose", str(metrics), "--rules", str(tmp_path / "nope")])
    assert (missing.exit_code, missing.stderr) == (
        2,
        f"tracker-diag: {tmp_path}/nope: no such folder or file, expected one with rules, one YAML file each\n",
    )


def test_a_case_that_fails_is_reported_and_exits_with_1(own):
    file = own / "tests/ACM001.yaml"
    file.write_text("- {name: x, rule: ACM001, series: {reward: 1x2 0x9}, firing: 5}\n")
    result = run("test", own)
    assert result.exit_code == 1
    assert result.stdout == "ACM001: x: firing: 3, expected 5\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id: ACM001\nid: ACM002\n", "ACM001.yaml:2: key 'id' is there twice"),
        ("- 1\n", "ACM001.yaml:1: a list given, expected a rule"),
        ("id: nope\n", "ACM001.yaml:1: id: String should match pattern"),
        (f"{LEAST}inhibits: [POL099]", "ACM001.yaml:1: ACM001 speaks of POL099, which is no rule; did you mean POL0"),
        (f"{LEAST}".replace("ACM", "POL"), "ACM001.yaml:1: id: POL001 is also in "),
    ],
)
def test_a_rule_that_cannot_be_used_is_reported_with_file_and_line(own, text, message):
    (own / "ACM001.yaml").write_text(text)
    result = run("lint", own)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def test_missing_cases_and_an_empty_folder_are_reported(own, tmp_path):
    (own / "tests/ACM001.yaml").unlink()
    assert "tests/ACM001.yaml: cannot be read: " in run("test", own).stderr
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no YAML file, expected one rule a file" in run("lint", empty).stderr


def test_the_schema_is_that_of_a_rule():
    schema = json.loads(run("schema").stdout)
    assert schema["title"] == "Rule"
    assert schema["required"] == ["id", "title", "signals", "when", "summary"]
    assert schema["properties"]["for_steps"]["description"].startswith("Steps that it must hold")
