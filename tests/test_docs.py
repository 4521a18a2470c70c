"""The generated pages are up to date, what README, CONTRIBUTING and the pages name is there, and the site is built."""

import json
import re
import runpy
from pathlib import Path

import jsonschema
import pytest
import typer.main

from tracker_diag import Monitor, diagnose
from tracker_diag.cli.app import app
from tracker_diag.demo.grpo import ARMS
from tracker_diag.rules.loader import catalog
from tracker_diag.samples.columns import Columns

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.slow
def test_the_metrics_page_is_up_to_date():
    pages = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]
    for name, page in pages.items():
        assert (ROOT / "docs" / name).read_text() == page(), "run `make docs`"


EVIDENCE = runpy.run_path(str(ROOT / "docs" / "make_evidence.py"))
SIMULATED = json.loads((ROOT / "docs" / "simulated.json").read_text())


def test_the_evidence_page_is_made_from_its_results():
    runs = json.loads((ROOT / "docs" / "evidence.json").read_text())
    assert (ROOT / "docs" / "evidence.md").read_text() == EVIDENCE["page"](runs, SIMULATED), "run `make evidence`"
    assert {(run["arm"], run["seed"]) for run in runs} == {(arm, seed) for arm in ARMS for seed in range(4)}


def test_the_study_of_guards_has_each_run_once():
    runs = json.loads((ROOT / "docs" / "guards.json").read_text())
    messages = {(run["case"], run["guard"], run["seed"]) for run in runs}
    assert len(messages) == len(runs) == 8 * 20


@pytest.mark.parametrize("row", SIMULATED["healthy"], ids=lambda row: row["algorithm"])
def test_at_most_one_in_a_hundred_healthy_simulated_runs_raises_anything(row):
    assert row["runs"] >= 1000
    assert row["warned"] == len(row["alarms"])
    assert row["warned"] <= 0.01 * row["runs"]
    assert row["errors"] == 0


@pytest.mark.parametrize("link", EVIDENCE["by_link"](SIMULATED["failures"]))
def test_simulated_failures_of_each_link_are_named_rightly(link):
    rows = EVIDENCE["by_link"](SIMULATED["failures"])[link]
    assert len(rows) >= 2
    assert all(row["runs"] >= 100 for row in rows)
    runs = sum(row["runs"] for row in rows)
    assert sum(row["named"] for row in rows) >= 0.95 * runs
    assert sum(row["first"] for row in rows) >= 0.9 * runs


def test_the_simulated_failures_are_those_that_the_page_tells():
    failures = runpy.run_path(str(ROOT / "tests" / "rules" / "failures.py"))["FAILURES"]
    messages = {row["name"]: (row["link"], row["names"], row["first_names"]) for row in SIMULATED["failures"]}
    assert messages == {name: (part.link, sorted(part.named), sorted(part.first)) for name, part in failures.items()}
    for row in SIMULATED["failures"]:
        assert len(row["misses"]) <= (row["runs"] - row["named"]) + (row["runs"] - row["first"])


@pytest.fixture
def runs():
    return json.loads((ROOT / "docs" / "evidence.json").read_text())


def fired(run, *rules):
    return [f for f in run["findings"] if f["rule"] in rules]


def test_the_committed_evidence_shows_what_is_claimed(runs):
    for run in runs:
        rules = {finding["rule"] for finding in run["findings"]}
        first = min((finding["alerted"] for finding in run["findings"]), default=None)
        match run["arm"]:
            case "healthy" | "constrained":
                assert rules == set()
            case "drift-aware":
                assert rules <= {"POL002", "OUT001"}
                assert run["blind"]["POL001"].startswith("policy: no signal")
            case "widen":
                assert "POL002" in rules <= {"POL001", "POL002", "POL010", "OUT001"}  # KL and reward, much later
                assert first in {finding["alerted"] for finding in fired(run, "POL001", "POL002")}
            case "collapse":
                assert any(finding["slice"] == "post_tool" for finding in run["findings"])
                assert rules & {"POL001", "POL003"}
            case "stale-narrow":
                assert "POL003" in rules


def test_the_page_of_samples_has_each_column():
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "samples.md").read_text(), re.MULTILINE)
    assert Columns.__annotations__.keys() <= {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def test_every_file_that_the_readme_links_to_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_page_of_panels_names_rules_rightly():
    listed = set(re.findall(r"^\| ([A-Z]+\d+) ([a-z-]+) \|", (ROOT / "docs" / "panels.md").read_text(), re.MULTILINE))
    assert listed
    assert listed <= {(rule.id, rule.name) for rule in catalog()}


def test_no_page_counts_the_rules_by_hand():
    written = [README, CONTRIBUTING, *(file.read_text() for file in (ROOT / "docs").glob("*.md"))]
    assert not any(re.search(rf"\b{len(catalog())} (rules|of the catalogue)", text) for text in written)


def test_no_page_is_left_of_a_rule_that_is_gone():
    pages = {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")} - {"README"}
    assert pages == {rule.id for rule in catalog()}


def test_the_drawing_of_the_house_names_every_room():
    rooms = {path.name for path in (ROOT / "tracker_diag").iterdir() if path.is_dir() and path.name != "__pycache__"}
    listed = set(re.findall(r"^  (\w+)/ ", CONTRIBUTING, re.MULTILINE))
    assert listed == rooms


def test_every_command_that_a_page_names_exists():
    group = typer.main.get_command(app)
    known = {name: set(getattr(command, "commands", {})) for name, command in group.commands.items()}
    for page in (README, CONTRIBUTING, *(file.read_text() for file in (ROOT / "docs").rglob("*.md"))):
        for name, after in re.findall(r"(?:^|`)tracker-diag ([a-z]+)\b(?: ([a-z]+)\b)?", page, re.MULTILINE):
            assert name in known, name
            assert not known[name] or not after or after in known[name], f"{name} {after}"


def schema(name):
    return json.loads((ROOT / "docs" / "schemas" / f"{name}.schema.json").read_text())


@pytest.mark.slow
def test_the_json_of_a_diagnosis_is_as_its_schema_says():
    fallen = [{"step": step, "reward": 0.5 if step < 60 else 0.5 - step / 400, "loss": 0.1} for step in range(160)]
    broken, short = (diagnose(rows).to_json() for rows in (fallen, fallen[:3]))
    assert broken["incidents"]
    assert not short["judged"]
    for document in (broken, short):
        jsonschema.validate(json.loads(json.dumps(document)), schema("diagnosis"))


def test_every_schema_has_a_version():
    files = [*(ROOT / "docs" / "schemas").glob("*.json"), ROOT / "tracker_diag" / "rules" / "rule.schema.json"]
    assert len(files) == 4
    assert all(json.loads(file.read_text())["version"] >= 1 for file in files)


@pytest.mark.slow
def test_a_row_of_a_token_table_and_saved_state_are_as_their_schemas_say():
    row = {"step": 3, "sequence": 0, "position": 7, "is_model": True, "logprob": -0.3, "tool": None}
    jsonschema.validate(row, schema("token"))
    for wrong in (row | {"step": 0.5}, row | {"tool": 3}, {"step": 3, "logprob": -0.3}, {**row, "logprob": "-0.3"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema("token"))
    jsonschema.validate(Monitor().state_dict(), schema("state"))
