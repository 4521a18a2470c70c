"""A rule of one's own that says no more than it must goes every way that those of the catalogue go."""

import io
import json

import pytest
from rich.console import Console

from tests.rules.texts import write_own
from tracker_diag import Monitor, Rule, wrap
from tracker_diag.errors import RuleError
from tracker_diag.report.html import render_html
from tracker_diag.report.markdown import note_on
from tracker_diag.report.tables import findings_table
from tracker_diag.report.terminal import verdict
from tracker_diag.rules.loader import catalog
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.mlflow import tags as mlflow_tags
from tracker_diag.trackers.tracker import LINKS, PICTURE, Description


@pytest.fixture
def own(tmp_path):
    return write_own(tmp_path / "own")


def watched(**options):
    """A run whose reward falls below the rule's limit, and what arrived of it."""
    seen = CapturingTracker()
    monitor = Monitor([seen], **options)
    for step in range(6):
        monitor.log({"reward": 0.5 if step < 3 else 0.05}, step)
    monitor.close()
    return seen


def test_it_is_looked_for_next_to_the_catalogue(own):
    seen = watched(rules=own)
    assert [finding.rule.id for finding in seen.summary.findings] == ["ACM001"]
    assert len(seen.summary.blind) + len(seen.summary.healthy) == len(catalog())
    assert seen.scalars(3)["diag/rule/ACM001"] == 2
    (notice,) = seen.notices
    assert notice.text.splitlines()[-1] == f"More: tracker-diag rules show ACM001 --rules {own}/ACM001.yaml"


def test_it_survives_the_journal_that_stands_before_every_tracker(own):
    (finding,) = watched(rules=own).summary.findings
    kept = json.loads(json.dumps(finding.rule.model_dump(mode="json", by_alias=True)))
    assert Rule.model_validate(kept) == finding.rule


def test_it_can_be_looked_for_alone_and_so_can_nothing(own):
    alone = watched(rules=str(own), catalog=False).summary
    assert ([finding.rule.id for finding in alone.findings], alone.blind, alone.healthy) == (["ACM001"], {}, ())
    nothing = watched(catalog=False).summary
    assert (nothing.findings, nothing.blind, nothing.healthy) == ((), {}, ())


@pytest.mark.slow
def test_a_platform_names_it_for_every_run(own, monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_RULES", str(own))
    assert [finding.rule.id for finding in watched().summary.findings] == ["ACM001"]
    run = wrap(lambda metrics, step: None)
    assert "ACM001" in run.diag.close().blind
    assert "ACM001" in diagnose(FinishedRun("x", {0: {"kl": 0.1}}, {}, {}, ())).summary.blind


def test_what_cannot_be_used_is_reported_at_set_up(own):
    (own / "ACM001.yaml").write_text((own / "ACM001.yaml").read_text().replace("reward below", "reward bellow"))
    for begin in (lambda: Monitor(rules=own), lambda: wrap(lambda metrics, step: None, rules=own)):
        with pytest.raises(
            RuleError, match=r"ACM001.yaml:6: signals.reward_low: verb: 'bellow' given, .*; did you mean below"
        ):
            begin()


@pytest.mark.slow
def test_what_it_does_not_say_leaves_no_empty_heading(own):
    summary = watched(rules=own).summary
    (finding,) = summary.findings
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(verdict(summary))
    assert "broke first  Reward is low" in (text := console.export_text())
    assert "do first" not in text
    page = render_html(summary, [findings_table(summary.findings)])
    assert "<strong>Reward is low</strong>" in page
    assert "What to do" not in page
    assert "false alarm" not in page
    note = mlflow_tags.with_links(Description(note_on(summary, LINKS, PICTURE), over=True), "0", "run")
    assert note.startswith("**Fix it, then resume from step 2. Reward is low, since step 3.** [Report]")
    assert "What to do" not in note
    assert finding.to_json()["remedy"] == []
    assert findings_table([finding]).rows[0][-1] == ""


@pytest.mark.slow
def test_a_resumed_run_continues_with_it(own):
    first, second = Monitor(rules=own), Monitor(rules=own)
    for step in range(4):
        first.log({"reward": 0.5 if step < 3 else 0.05}, step)
    second.load_state_dict(first.state_dict())
    (finding,) = second.summary().findings
    assert (finding.rule.id, finding.onset, finding.state) == ("ACM001", 3, "firing")
