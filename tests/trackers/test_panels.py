"""`tracker-diag export panels`: W&B's server is a stub, MLflow's store real."""

import base64
import json
import math
import re
import zlib
from typing import get_args

import pytest
from typer.testing import CliRunner

from tests.trackers.wandb_stub import KEY, Stub
from tracker_diag import DiagError, wrap
from tracker_diag.cli.export import export_app
from tracker_diag.metrics.series import CONTEXT
from tracker_diag.metrics.statistics import Section
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.mlflow.view import VIEW_TAG, chart_view, keys_in
from tracker_diag.trackers.panels import NAME, OUTCOME, RULES, in_order, outcome_keys
from tracker_diag.trackers.wandb.view import save_report, workspace

SECTIONS = ["Verdict", "Tails", "ESS", "Shape", "Rules"]


def run(*arguments):
    return CliRunner().invoke(export_app, list(arguments))


@pytest.fixture
def stub(monkeypatch):
    """A stub server, and the client's settings that lead to it."""
    import wandb

    with Stub() as server:
        for name, value in {"BASE_URL": server.url, "API_KEY": KEY, "SILENT": "true"}.items():
            monkeypatch.setenv(f"WANDB_{name}", value)
        monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
        wandb.teardown()  # settings of an earlier test
        yield server
    wandb.teardown()


def sections(spec):
    return {s["name"]: [p["config"] for p in s["panels"]] for s in spec["section"]["panelBankConfig"]["sections"]}


@pytest.mark.slow
def test_the_view_of_wandb_shows_both_slices_of_each_pair_over_our_own_step():
    model = workspace("someone", "rl")._to_model()  # noqa: SLF001  # what W&B is sent
    results = sections(json.loads(model.model_dump_json(by_alias=True, exclude_none=True))["spec"])
    assert list(results) == SECTIONS
    picture, outcomes = results.pop("Verdict")
    assert picture["mediaKeys"] == ["diag/decision"]
    assert re.search(outcomes["metricRegex"], "train/reward")
    assert not re.search(outcomes["metricRegex"], "diag/policy/text_only/p95")
    plots = [plot for panels in results.values() for plot in panels]
    assert {plot["xAxis"] for plot in plots} == {"diag/step"}
    assert results["Tails"][0]["metrics"] == ["diag/policy/text_only/p95", "diag/policy/post_tool/p95"]
    assert all(plot["yLogScale"] for plot in results["Tails"])
    assert [plot["metrics"][1] for plot in results["ESS"]] == [
        *(f"diag/{pair}/post_tool/ess" for pair in ("policy", "mismatch", "reference")),
        *(f"diag/{pair}/post_tool/ess_sequence" for pair in ("policy", "mismatch")),  # the third has no weights
    ]
    assert [plot["metricRegex"] for plot in results["Rules"]] == ["^diag/rule/", "^diag/health/"]


@pytest.mark.slow
def test_a_view_is_saved_once_and_leaves_yours_alone(stub):
    yours = {"id": "mine", "name": "nw-mine-v", "displayName": "mine", "spec": "{}"}
    stub.views["nw-mine-v"] = dict(yours)

    first, second = run("panels", "wandb:someone/rl"), run("panels", "wandb:someone/rl")
    assert first.stdout == f"saved: {stub.url}/someone/rl?nw=trackerdiag\n"
    assert second.stdout == f"there already: {stub.url}/someone/rl?nw=trackerdiag\n"
    (sent,) = stub.sent("UpsertView2")
    assert (sent["entityName"], sent["projectName"], sent["name"]) == ("someone", "rl", "nw-trackerdiag-v")
    assert (sent["displayName"], sent["type"]) == (NAME, "project-view")
    assert list(sections(json.loads(sent["spec"]))) == SECTIONS
    assert stub.views["nw-mine-v"] == yours
    assert stub.unknown == set()


@pytest.mark.nightly
def test_a_view_of_an_older_version_is_brought_up_to_date_in_its_place(stub):
    run("panels", "wandb:someone/rl")
    ours = stub.views["nw-trackerdiag-v"]
    spec = json.loads(ours["spec"])
    spec["section"]["panelBankConfig"]["sections"] = []
    spec["section"]["settings"]["maxRuns"] = 7  # set by you
    ours |= {"displayName": "Agent RL diagnostics, version 0", "spec": json.dumps(spec)}

    assert run("panels", "wandb:someone/rl").stdout.startswith("saved: ")
    assert list(stub.views) == ["nw-trackerdiag-v"]
    assert stub.sent("UpsertView2")[-1]["id"] == ours["id"]
    now = json.loads(stub.views["nw-trackerdiag-v"]["spec"])
    assert list(sections(now)) == SECTIONS
    assert now["section"]["settings"]["maxRuns"] == 7


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["View", "UpsertView2"])
def test_what_wandb_refuses_is_reported_in_one_line(stub, operation):
    stub.status[operation] = 403
    result = run("panels", "wandb:someone/rl")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "tracker-diag: wandb:someone/rl: no view saved: out of order"


@pytest.mark.parametrize("project", ["wandb:rl", "wandb:a/b/c", "wandb:/rl", "wandb:someone/"])
def test_a_project_is_given_with_its_entity(project):
    result = run("panels", project)
    assert (result.exit_code, result.stderr) == (2, f"tracker-diag: {project!r} given, expected wandb:ENTITY/PROJECT\n")


@pytest.mark.parametrize("project", ["someone/rl", "trackio:rl", "mlflow:"])
def test_a_tracker_without_views_is_refused(project):
    result = run("panels", project)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"tracker-diag: {project!r} given, expected wandb:<entity>/<project> or mlflow:<")


FELL = {
    step: {"train/reward": step / 60 if step < 60 else max(0.0, 2 - step / 60), "diag/policy/post_tool/p95": 0.1}
    for step in range(120)
}


@pytest.mark.slow
def test_a_finished_run_has_a_report_with_the_verdict_and_its_own_curves(stub):
    results = diagnose(FinishedRun("wandb:someone/rl/abc", FELL, {}, {}, ())).summary
    url = save_report("someone", "rl", "abc", results, FELL[0])
    assert url.startswith(f"{stub.url}/someone/rl/reports/abc")
    (sent,) = stub.sent("upsertView")
    assert (sent["entityName"], sent["projectName"], sent["type"]) == ("someone", "rl", "runs")
    assert sent["displayName"] == "abc: Reward has lost what it had gained"
    blocks = {load["type"]: load for load in json.loads(sent["spec"])["blocks"]}
    verdict, grid = blocks["markdown-block"]["content"], blocks["panel-grid"]
    assert verdict.startswith(
        "**Stop. Reward has lost what it had gained (reward 0.975 → 0.0417), since about step 70.**"
    )
    assert "tracker-diag diagnose wandb:someone/rl/abc" in verdict
    shown = [panel["config"]["metrics"] for panel in grid["metadata"]["panelBankSectionConfig"]["panels"]]
    assert shown == [["train/reward"], ["diag/policy/text_only/p95", "diag/policy/post_tool/p95"]]
    (runs,) = grid["metadata"]["runSets"]
    assert '"abc"' in json.dumps(runs["filters"])
    assert stub.unknown == set()


@pytest.mark.slow
def test_a_report_that_wandb_refuses_and_a_run_that_is_none_are_reported_in_one_line(stub):
    stub.status["upsertView"] = 403
    results = diagnose(FinishedRun("wandb:someone/rl/abc", FELL, {}, {}, ())).summary
    with pytest.raises(DiagError, match="wandb:someone/rl: no report saved: "):
        save_report("someone", "rl", "abc", results, FELL[0])
    result = run("report", "wandb:someone/rl")
    assert result.exit_code == 2
    assert result.stderr == "tracker-diag: 'wandb:someone/rl' given, expected wandb:ENTITY/PROJECT/RUN\n"


# MLflow.


def charts(tag):
    state = json.loads(tag)["state"].removeprefix("deflate;")
    return json.loads(zlib.decompress(base64.b64decode(state)))


def line_charts(tag):
    """Keys of each line chart, by section."""
    state = charts(tag)
    named = {section["uuid"]: section["name"] for section in state["compareRunSections"]}
    lines = {}
    for chart in state["compareRunCharts"]:
        lines.setdefault(named[chart["metricSectionId"]], []).append(chart["selectedMetricKeys"])
    return lines


@pytest.mark.slow
def test_the_view_of_mlflow_is_what_the_run_made_and_can_be_made_anew(rng, make_batch, mlflow_store):
    import mlflow

    client = mlflow.MlflowClient()
    client.set_experiment_tag("0", "mlflow.sharedViewState.mine", "{}")
    with wrap(mlflow.start_run()) as watched:
        for step in range(3):
            watched.diag.observe(**make_batch(rng))
            mlflow.log_metrics({"reward": 0.5 if step else math.nan}, step=step)
    by_the_run = client.get_experiment("0").tags[VIEW_TAG]
    assert run("panels", "mlflow:Default").stdout.startswith("there already: ")

    client.set_experiment_tag("0", VIEW_TAG, by_the_run.replace(NAME, "Tail diagnostics"))
    for which, text in (("Default", "saved"), ("0", "there already")):
        result = run("panels", f"mlflow:{which}@{mlflow_store}")
        assert result.stdout == (
            f"{text}: <address of the MLflow server>"
            "/#/experiments/0/runs?compareRunsMode=CHART&viewStateShareKey=tracker-diag\n"
        )
    tags = client.get_experiment("0").tags
    assert json.loads(tags[VIEW_TAG])["name"] == NAME
    assert charts(tags[VIEW_TAG]) == charts(by_the_run)
    assert tags["mlflow.sharedViewState.mine"] == "{}"
    assert len(by_the_run) < 20_000  # MLflow takes no more
    lines = line_charts(by_the_run)
    assert [*lines] == [OUTCOME, *get_args(Section), RULES]
    assert (lines[OUTCOME], lines[RULES]) == ([["reward"]], [["diag/rule/NUM004"]])
    assert lines["Tails"][:2] == [[f"diag/{pair}/{name}/p95" for name in CONTEXT] for pair in ("policy", "reference")]
    titles = [chart["displayName"] for chart in charts(by_the_run)["compareRunCharts"]]
    assert titles[:2] == ["reward", "post_tool, text_only: p95, policy"]


@pytest.mark.parametrize(
    "view", ["", "{}", "[]", "x", '{"state": 1}', '{"state": "deflate;AAAA"}', '{"state": "e30="}']
)
def test_a_view_that_is_none_of_ours_shows_no_rules(view):
    assert keys_in(view) == set()


def test_rules_are_shown_by_family():
    keys = {"diag/rule/POL001", "diag/rule/ACM002", "diag/rule/POL010", "diag/rule/AC001"}
    view = chart_view(keys)
    assert line_charts(view)[RULES] == [
        ["diag/rule/AC001"], ["diag/rule/ACM002"], ["diag/rule/POL001", "diag/rule/POL010"],
    ]  # fmt: skip
    assert keys_in(view) == keys
    assert RULES not in line_charts(chart_view({"diag/policy/text_only/p95"}))


def test_outcomes_come_first_by_what_they_are_whatever_the_trainers_call_them():
    keys = ["train/kl", "train/reward", "train/loss", "diag/policy/all/p95", "eval/reward"]
    assert outcome_keys(keys) == ["train/reward", "eval/reward", "train/kl"]
    of_verl = outcome_keys(["actor/kl_loss", "actor/pg_loss", "critic/rewards/mean", "actor/ppo_kl"])
    assert "critic/rewards/mean" in of_verl
    shown = {*outcome_keys(keys), "critic/rewards/mean", "diag/rule/POL001"}
    view = chart_view(shown)
    assert keys_in(view) == shown
    (first, *_), *_ = line_charts(view)[OUTCOME]
    assert first in ("train/reward", "critic/rewards/mean")
    assert in_order(["train/kl", "train/reward"]) == ["train/reward", "train/kl"]


@pytest.mark.slow
def test_an_experiment_that_is_not_there_is_reported(mlflow_store):
    result = run("panels", "mlflow:none-such")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("tracker-diag: mlflow: experiment none-such: no view saved: ")
