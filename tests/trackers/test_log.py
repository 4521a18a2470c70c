"""What a person reads without looking for it: alerts in the log, a first look, and a verdict at the end."""

import logging
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from tracker_diag import Monitor
from tracker_diag.rules.loader import catalog
from tracker_diag.tensors.store import Merged
from tracker_diag.testing import CapturingTracker, example_batch
from tracker_diag.trackers.files.write import JsonlTracker

pytestmark = pytest.mark.slow


def growing(step):
    return 0.02 * math.exp(max(0, step - 60) * 0.1)


def run(make_batch, *, trackers=(), bad=(), **options):
    rng = np.random.default_rng(0)
    monitor = Monitor(trackers, **options)
    for step in range(110):
        monitor.observe(**make_batch(rng, post=growing(step), pairs=("policy",)))
        monitor.log({"reward": math.nan if step in bad else 0.5}, step)
    return monitor


@pytest.mark.nightly
def test_each_alert_is_one_warning_with_all_that_one_needs(make_batch, tmp_path, caplog):
    monitor = run(make_batch, trackers=[JsonlTracker(tmp_path)])
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    (finding,) = [finding for finding in monitor.close().findings if finding.rule.id == "POL001"]
    (alert,) = [record.message for record in warnings if "POL001" in record.message]
    what_now, broke, todo, *why, see = alert.splitlines()
    assert what_now.startswith("Watch: if reward falls, resume from step ")
    assert broke.strip() == "Token probabilities shift after tool results (POL001 post_tool)"
    assert todo.strip() == "First: Find the tokens with the largest |log-ratio|.", "a whole sentence, not a part"
    assert finding.rule.remedy[0].startswith(todo.strip().removeprefix("First: "))
    assert f"Since step {finding.onset}, detected at {finding.fired}: {finding.summary}"[:60] in why[0]
    assert see.strip() == f"See: tracker-diag diagnose {tmp_path}"
    assert all(record.name == "tracker_diag" for record in warnings)


def test_what_is_over_is_no_warning_and_quiet_leaves_the_alerts(make_batch, capsys, caplog, monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_QUIET", "1")
    with caplog.at_level(logging.INFO, "tracker_diag"):
        run(make_batch, bad=[70]).close()
    alerts = [(record.levelno, record.message) for record in caplog.records]
    begun, over = [alert for alert in alerts if "NUM004" in alert[1]]
    assert begun[0] == logging.WARNING
    assert begun[1].splitlines()[:2] == ["Stop: fix it, resume from step 69", "  NaN or infinity (NUM004)"]
    assert (over[0], over[1].splitlines()[0]) == (logging.INFO, "Over: NaN or infinity (NUM004)")
    assert any("POL001" in text for _, text in alerts)
    assert capsys.readouterr().err == ""


def test_the_verdict_fits_on_a_screen(make_batch, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run(make_batch, bad=[40, 50]).close()
    shown = capsys.readouterr().err
    verdict = shown[shown.index("tracker_diag: verdict") :].splitlines()
    assert len(verdict) <= 25
    assert all(len(line) <= 80 for line in verdict)
    text = " ".join(" ".join(verdict).split())
    assert "verdict after 110 steps" in text
    assert "broke first NaN or infinity since step 40, detected at step 40 by rule NUM004" in text
    assert "POL001 Token probabilities shift after" in text
    assert "run.diag.explain() says what" in text


@pytest.mark.nightly
def test_one_rank_of_several_and_a_replay_keep_still(make_batch, tmp_path, capsys, caplog):
    class Alone:
        from tracker_diag.tensors.slices import Names

        names = Names()

        def merge(self, step, observed, names, seconds=None):
            return Merged(dict(observed))

        def received(self):
            return ()

        def errors(self):
            return ()

        def close(self):
            return Merged({})

    run(make_batch, ranks=Alone()).close()
    run(make_batch, source="tokens.parquet").close()
    assert capsys.readouterr().err == ""
    assert not [record for record in caplog.records if "POL001" in record.message]
    first = Monitor(ranks=Alone())
    first.add_tracker(JsonlTracker(tmp_path))  # rank 0, whose run the framework has started meanwhile
    first.log({"loss": math.nan}, 0)
    first.close()
    assert "broke first" in capsys.readouterr().err
    assert [record for record in caplog.records if "NUM004" in record.message]


def test_what_is_seen_is_said_once_and_at_any_time(make_batch, rng, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monitor = Monitor()
    for step in range(3):
        monitor.observe(**make_batch(rng, pairs=("policy",)))
        monitor.log({"reward": 0.5}, step)
    shown = capsys.readouterr().err
    assert shown.count("what is seen at step") == 1
    monitor.explain()
    asked = " ".join(capsys.readouterr().out.split())
    for part in (
        "what is seen at step 2",
        "policy 1,152 tokens after a tool result, 2,688 before any",
        "reference no ref_logprobs observed",
        "post_tool what follows a gap of model_mask within response_mask",
        f"of {len(catalog())} active, ",
        " waiting for more steps, ",
        "log eval_score: ",
    ):
        assert part in asked
    with_more = Monitor()
    with_more.observe(**make_batch(rng))
    with_more.log({"reward": 0.5, "eval_score": 1.0}, 0)
    capsys.readouterr()
    with_more.explain()
    assert "log eval_score" not in capsys.readouterr().out


SCRIPT = """
import logging, math, sys
{setup}
from tracker_diag import Monitor
monitor = Monitor()
monitor.log({{"loss": math.nan}}, 3)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("setup", "lines"),
    [
        ("", ["tracker_diag: Stop: fix it, resume from step 2", "  NaN or infinity (NUM004)"]),
        ("logging.basicConfig(format='%(levelname)s %(name)s %(message)s')",
         ["WARNING tracker_diag Stop: fix it, resume from step 2", "  NaN or infinity (NUM004)"]),
        ("logging.getLogger('tracker_diag').addHandler(logging.NullHandler())", []),
    ],
    ids=["nobody has set up logging", "somebody has", "it was silenced"],
)  # fmt: skip
def test_an_alert_is_shown_once_who_set_up_logging(setup, lines, tmp_path):
    """In a process of its own: pytest's has handlers."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(setup=setup)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    shown = done.stderr.splitlines()
    assert [line for line in shown if "(NUM004)" in line or "Stop: " in line] == lines
    assert sum("tracker_diag: verdict after 1 step" in line for line in shown) == 1
    assert done.stdout == ""


def test_where_a_run_is_seen_tells_no_password(tmp_path, monkeypatch, mlflow_store):
    import mlflow

    from tracker_diag.trackers.mlflow.write import MlflowTracker

    client = mlflow.MlflowClient()
    tracker = MlflowTracker(client, client.create_run("0").info.run_id)
    assert tracker.page == f"mlflow ui --backend-store-uri sqlite:///mlflow.db  # run {tracker.run_id}"
    for uri, shown in (
        ("http://me:secret@tracking.example:5000/", "http://***@tracking.example:5000/#/experiments/0/runs/"),
        (
            "postgresql://me:secret@db.example/mlflow",
            "mlflow ui --backend-store-uri postgresql://***@db.example/mlflow  #",
        ),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(type(client), "tracking_uri", uri)
            assert tracker.page.startswith(shown)


@pytest.mark.parametrize(
    ("given", "caveat"),
    [
        ({}, "but no tensors were observed, so no rule has seen a tail: call run.diag.observe(...) in each step"),
        (
            {"logprobs", "old_logprobs", "response_mask"},
            (
                "but it was too early to judge how tails grow: 12 of 65 steps; if it is meant to be so short, say so "
                "before its first step: run.diag.expect(rows=12) no token came after a tool"
            ),
        ),
    ],
    ids=["no tensors", "no tool"],
)
def test_a_quiet_verdict_says_what_was_not_seen(given, caveat, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monitor = Monitor()
    for step in range(12):
        if given:
            monitor.observe(**{name: value for name, value in example_batch(0).items() if name in given})
        monitor.log({"reward": 0.5}, step)
    monitor.close()
    shown = " ".join(capsys.readouterr().err.split())
    assert "found too short to judge: 12 rows; these rules need more" in shown
    assert caveat in shown


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("how", "caveats"),
    [
        ("none", ()),
        ("shapes", ("79 batches were rejected; the first warning says why", "no tensors came after step 10")),
        ("ends", ("no tensors came after step 79",)),
        ("backwards", ("1 calls went back to an earlier step, and their metrics were left out",)),
    ],
)
def test_the_verdict_remembers_when_it_could_not_see(how, caveats, make_batch, rng):
    monitor = Monitor([CapturingTracker()])
    for step in range(90):
        batch = make_batch(rng, pairs=("policy",))
        if how == "shapes" and step > 10:
            batch["old_logprobs"] = batch["old_logprobs"][:, 1:]
        if how != "ends" or step < 80:
            monitor.observe(**batch)
        monitor.log({"reward": 0.5}, 3 if how == "backwards" and step == 50 else step)
    assert monitor.close().caveats[: len(caveats)] == caveats


def test_a_verdict_before_the_baseline_is_no_all_clear(make_batch, rng, capsys):
    monitor = Monitor([CapturingTracker()])
    for step in range(40):
        monitor.observe(**make_batch(rng, post=0.02 * 1.1**step, pairs=("policy",)))
        monitor.log({"reward": 0.5}, step)
    monitor.close()
    shown = " ".join(capsys.readouterr().err.split())
    assert "it was too early to judge how tails grow: 40 of 65 steps" in shown
    assert re.search(
        r"tails now policy p95 \|log-ratio\| of recent steps: after a tool result [1-9]\.\d+, before any 0", shown
    )
