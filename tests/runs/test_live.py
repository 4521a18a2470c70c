"""A run that was watched, diagnosed from what it logged: both verdicts, held against each other in every tracker."""

import math

import numpy as np
import pytest
from typer.testing import CliRunner

import tracker_diag as td
from tracker_diag.cli.app import app
from tracker_diag.rules.incidents import incidents
from tracker_diag.rules.logged import LiveFinding, live_findings
from tracker_diag.rules.triage import first_break
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.mlflow.write import MlflowTracker
from tracker_diag.trackers.tensorboard.write import TensorBoardTracker
from tracker_diag.trackers.trackio.write import TrackioTracker
from tracker_diag.trackers.wandb.write import WandbTracker

pytestmark = pytest.mark.slow


def fired(findings):
    """What fired at warn or above, by rule and place, with the step."""
    loud = (item for item in findings if item.fired is not None and item.rule.severity != "info")
    return {(item.rule.id, item.pair, item.slice): item.fired for item in loud}


def test_growth_after_tools_is_found_again_in_the_logged_quantiles(make_batch, tmp_path):
    rng = np.random.default_rng(0)
    monitor = td.Monitor([JsonlTracker(tmp_path)])
    for step in range(130):
        monitor.observe(**make_batch(rng, post=0.02 * math.exp(max(0, step - 75) * 0.1), pairs=("policy",)))
        monitor.log({"reward": 0.3 + step / 400}, step)
    live = monitor.close()
    result = td.diagnose(td.read_run(str(tmp_path / "metrics.jsonl")))
    assert result.summary.first_break.rule.id == live.first_break.rule.id == "POL001"
    unseen = {("POL004", "policy", "post_tool")}  # rests on the largest weight's share here, which is not logged
    assert fired(live.findings).keys() - unseen <= fired(result.summary.findings).keys() <= fired(live.findings).keys()
    assert not [key for key in result.keys.unmapped if key.startswith("diag/")]
    assert not {item.rule.id for item in result.summary.findings} & result.summary.blind.keys()
    (finding,) = [item for item in result.live if item.rule == "POL001"]
    assert (finding.slice, finding.fired) == ("post_tool", live.first_break.fired)
    shown = " ".join(CliRunner().invoke(app, ["diagnose", str(tmp_path)]).output.split())
    assert "said live" in shown
    assert f"POL001 on post_tool: since step {finding.onset}, fired at step {finding.fired}" in shown


def test_what_was_counted_of_samples_is_read_again_where_the_trainer_logs_no_such_metric(tmp_path):
    monitor = td.Monitor([JsonlTracker(tmp_path)])
    monitor.expect(rows=40)
    for step in range(40):
        works = ["error" if step >= 10 else "ok", "ok"]
        calls = [[{"name": "search", "status": status}, {"name": "read", "status": "ok"}] for status in works * 8]
        monitor.samples(reward=[float(status == "ok") for status in works * 8], calls=calls)
        monitor.log({"reward": 0.25}, step)
    live = monitor.close()
    result = td.diagnose(str(tmp_path))
    assert ("ENV001", None, "tool:search") in fired(live.findings)
    assert fired(result.summary.findings) == fired(live.findings)
    assert result.summary.blind.keys() == live.blind.keys()
    assert set(result.series["reward"].values()) == {0.25}  # the trainer's own
    assert result.series["reward_zero_share"][20] == 0.5


def test_tokens_that_were_nan_are_found_again(make_batch, tmp_path):
    rng = np.random.default_rng(0)
    monitor = td.Monitor([JsonlTracker(tmp_path)])
    for step in range(12):
        tensors = make_batch(rng)
        if step == 7:
            tensors["old_logprobs"][0, 20] = np.nan
        monitor.observe(**tensors)
        monitor.log({"reward": 0.5}, step)
    live = monitor.close()
    result = td.diagnose(td.read_run(str(tmp_path / "metrics.jsonl")))
    assert fired(result.summary.findings) == fired(live.findings) == {("NUM004", None, "all"): 7}


def test_without_a_list_the_states_of_the_rules_tell():
    states = [1, 2, 2, 0, 1, 2]
    rows = {step: {"diag/rule/POL001": state, "loss": 0.1} for step, state in enumerate(states)}
    result = live_findings(rows, ())
    assert result == [LiveFinding("POL001", 1, resolved=3), LiveFinding("POL001", 5)]
    assert [str(item) for item in result] == ["POL001: fired at step 1, resolved at 3", "POL001: fired at step 5"]
    assert td.diagnose(FinishedRun("a run", rows, {}, {}, ())).live == tuple(result)


ARMS = {
    "healthy": (140, set()),
    "constrained": (140, set()),
    "widen": (160, set()),  # benign to the averages: only the tensors show it
    "collapse": (200, {"POL010"}),
    "stale-narrow": (235, {"POL010"}),
}
"""For each arm of the demo how many steps tell it, and what its averages tell without the tensors."""


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arm", ARMS)
def test_both_verdicts_on_the_demos_arms(  # noqa: PLR0917  # fixtures
    arm, tmp_path, trained_arm, mlflow_store, wandb_offline, trackio_runs
):
    """Watched in all trackers at a time, and read back out of each."""
    import mlflow
    from mlflow.entities import Metric

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    wandb_run, trackio_run = wandb_offline.start(), trackio_runs.start()
    (tmp_path / "tb").mkdir()
    trackers = [
        JsonlTracker(tmp_path / "jsonl"),
        MlflowTracker(client, run_id),
        WandbTracker(wandb_run),
        TrackioTracker(trackio_run),
        TensorBoardTracker(tmp_path / "tb"),
    ]
    monitor, rows = td.Monitor(trackers), {}
    steps, named = ARMS[arm]
    for step in trained_arm(arm, steps):
        monitor.observe(**step.tensors)
        rows[step.step] = dict(step.metrics)
        trackio_run.log(step.metrics, step=step.step)
        monitor.log(step.metrics, step.step)
        wandb_run.log(step.metrics, step=step.step)
    metrics = [Metric(name, value, 0, step) for step, row in rows.items() for name, value in row.items()]
    for at in range(0, len(metrics), 1000):
        client.log_batch(run_id, metrics[at : at + 1000])
    live = monitor.close()
    wandb_run.finish()
    trackio_run.finish()
    wandb_offline.records()  # waits until W&B has written all of it

    averages = td.diagnose(FinishedRun("averages", rows, {}, {}, ()))
    loud = {
        item.rule.id: item.onset for item in averages.summary.findings if item.fired and item.rule.severity != "info"
    }
    assert named <= loud.keys()
    assert named or not loud
    assert all(onset > 80 for onset in loud.values())  # nothing goes wrong before

    (folder,) = (tmp_path / "run").glob("wandb/offline-run-*")
    sources = {
        "jsonl": str(tmp_path / "jsonl" / "metrics.jsonl"),
        "mlflow": f"mlflow:{run_id}@{mlflow_store}",
        "wandb": str(folder),
        "trackio": f"trackio:{trackio_runs.project}/run",
        "tensorboard": str(tmp_path / "tb"),
    }
    for name, source in sources.items():
        result = td.diagnose(td.read_run(source))
        again = result.summary.first_break
        # What needs more than is logged is reported as blind, not left out: POL005 reads χ², which no tracker has.
        first = first_break(incidents([item for item in live.findings if item.rule.id not in result.summary.blind]))
        assert (again and (again.rule.id, again.slice)) == (first and (first.rule.id, first.slice)), name
        assert first is None or abs(again.onset - first.onset) <= 3, name
        assert fired(result.summary.findings).keys() <= fired(live.findings).keys(), name
        told_live = {item.rule for item in result.live}
        assert told_live >= {rule for rule, *_ in fired(live.findings)}, name
