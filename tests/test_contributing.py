"""The worked examples of CONTRIBUTING, followed to the letter."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from tracker_diag import load_rules
from tracker_diag.cli.app import app

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def blocks(section, language):
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def rules(tmp_path):
    """A folder with the rule and its cases."""
    taken = [int(file.stem[3:]) for file in (ROOT / "tracker_diag/rules/catalog").glob("ENV*.yaml")]
    free = f"ENV{max(taken) + 1:03}"
    rule, cases = (text.replace("ENV015", free) for text in blocks("A rule", "yaml"))
    (tmp_path / "tests").mkdir()
    (tmp_path / f"{free}.yaml").write_text(rule)
    (tmp_path / "tests" / f"{free}.yaml").write_text(cases)
    return tmp_path


def test_the_rule_is_sound_and_does_what_its_cases_say(rules):
    for command in ("lint", "test"):
        result = CliRunner().invoke(app, ["rules", command, str(rules)])
        assert result.exit_code == 0, result.output


def test_the_rule_says_all_that_the_catalogue_asks_for(rules):
    (rule,) = load_rules(rules)
    given = yaml.safe_load((rules / f"{rule.id}.yaml").read_text())
    example = yaml.safe_load((ROOT / "tracker_diag/rules/catalog/RES005.yaml").read_text())
    assert example.keys() - {"support", "inhibits", "leads_to"} <= given.keys()
    states = [case.get("state") for case in yaml.safe_load((rules / "tests" / f"{rule.id}.yaml").read_text())]
    assert states == [None, "healthy", "unknown"]


@pytest.fixture
def loopy(tmp_path, monkeypatch):
    """The integration's package, on the path."""
    folder = tmp_path / "tracker_diag_loopy"
    folder.mkdir()
    (code,) = blocks("An integration", "python")
    (about,) = blocks("An integration", "yaml")
    (folder / "__init__.py").write_text(code)
    (folder / "about.yaml").write_text(about)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path / "journals"))
    import tracker_diag_loopy

    yield tracker_diag_loopy
    del sys.modules["tracker_diag_loopy"]


@pytest.mark.slow
def test_the_integration_watches_a_trainer(loopy):
    trainer = SimpleNamespace(on_step=[], on_end=[])
    monitor = loopy.attach(trainer)
    logprobs = -np.ones((4, 6))
    batch = {"logprobs": logprobs, "old_logprobs": logprobs - 0.1, "mask": np.ones((4, 6), bool)}
    for step in range(5):
        for call in trainer.on_step:
            call(step, batch if step else {}, {"reward": float("nan") if step == 3 else 0.5})  # the first one is broken
    summary = monitor.summary()
    assert [finding.rule.id for finding in summary.findings] == ["NUM004"]
    assert summary.steps == 5
    assert ["KeyError" in failure for failure in monitor.failures] == [True]
    for call in trainer.on_end:
        call()


def test_the_integration_says_what_its_page_needs(loopy):
    pages = [yaml.safe_load(file.read_text()).keys() for file in ROOT.glob("integrations/*/about.yaml")]
    assert len(pages) == len([*ROOT.glob("integrations/*/__init__.py")])
    about = yaml.safe_load((Path(loopy.__file__).parent / "about.yaml").read_text())
    assert all(about.keys() == page for page in pages)
    assert loopy.TESTED
    assert "not" in loopy.SEES
