"""What a report says, in a terminal, as JSON and in a tracker; and how preflight is called wrongly."""

import json
import math
import re
import runpy
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tracker_diag as td
from tracker_diag.cli.app import app
from tracker_diag.errors import DiagError, UnknownName
from tracker_diag.preflight.check import Report, failed, passed, unchecked
from tracker_diag.preflight.memory import Plan
from tracker_diag.report.console import plain
from tracker_diag.trackers.files.write import JsonlTracker

NAMES = [check.name for check in td.preflight().checks]
ILL = {"rewards": np.zeros(30), "memory": {"device_gib": 80, "actor": 1e9}}


def test_nothing_given_is_nothing_checked_with_what_to_give():
    report = td.preflight()
    assert {check.status for check in report.checks} == {"not checked"}
    assert len({check.name for check in report.checks}) == len(report.checks) == 26
    assert all(check.do.startswith("give ") and check.reason for check in report.checks)
    assert report.exit_code == 0


def test_everything_is_seen_in_seconds():
    begun = time.process_time()
    td.preflight(**ILL, tool=lambda: None, calls=200)
    assert time.process_time() - begun < 10


def test_a_report_says_what_failed_first_and_fits_a_terminal():
    report = td.preflight(**ILL)
    assert report.exit_code == 1
    lines = plain(report).splitlines()
    assert lines[0] == "tracker_diag: preflight: 1 failed, 1 passed, 24 not checked"
    assert lines[1].split() == ["failed", "reward_histogram"]
    assert lines[2].strip() == "all 30 rewards are 0"
    assert lines[3].strip() == "do: see whether the scorer runs at all, and on what"
    assert lines[4].startswith("passed       memory: ")
    assert lines[5].startswith("not checked  ")
    assert max(map(len, lines)) <= 100
    assert repr(report) == str(report)


def test_what_a_check_quotes_does_not_steer_the_terminal():
    def tool():
        raise ValueError("\x1b[31m[bold]red[/]\x1b[0m")

    shown = str(td.preflight(tool=tool))
    assert "\x1b" not in shown
    assert "[bold]red[/]" in shown


def test_json_is_json_whatever_the_numbers_are():
    report = Report((passed("a", "b", n=np.int64(3), bad=math.nan), failed("c", "d", "e"), unchecked("f", "g", "h")))
    assert json.loads(json.dumps(report.to_json(), allow_nan=False)) == {
        "passed": False,
        "checks": [
            {"check": "a", "status": "pass", "reason": "b", "do": "", "values": {"n": 3.0, "bad": None}},
            {"check": "c", "status": "fail", "reason": "d", "do": "e", "values": {}},
            {"check": "f", "status": "not checked", "reason": "g", "do": "h", "values": {}},
        ],
    }


def test_a_call_that_cannot_be_meant_is_refused():
    with pytest.raises(UnknownName, match=r"preflight: 'reward' given, expected one of .*; did you mean rewards"):
        td.preflight(reward=[1.0])
    with pytest.raises(DiagError, match=r"run: dict given, expected what td.wrap returned, or a Monitor"):
        td.preflight(run={})


EVALUATION = {"eval.temperature": 0, "eval.top_p": 1, "eval.max_tokens": 9, "eval.template": "a", "eval.pass_k": 4}


@pytest.mark.slow
def test_mlflow_shows_the_result_and_its_parameters_are_read(mlflow_store):
    import mlflow

    with mlflow.start_run() as active:
        mlflow.log_params(EVALUATION)
        run = td.wrap(mlflow)
        report = td.preflight(run=run, **ILL, config=EVALUATION)
        mlflow.log_metrics({"reward": 0.5}, step=0)
        run.diag.close()
    saved = next(check for check in report.checks if check.name == "evaluation_saved")
    assert saved.reason == "the tracker has all 5 of its settings"
    table = mlflow.load_table("diag/preflight.json", run_ids=[active.info.run_id])
    assert table["check"].tolist() == [check.name for check in report.checks]
    assert table["status"].value_counts()["fail"] == 2
    events = mlflow.load_table("diag/events.json", run_ids=[active.info.run_id])["event"].tolist()
    assert events[0] == "preflight: 2 failed, 2 passed, 22 not checked: evaluation_complete, reward_histogram"
    client = mlflow.MlflowClient()
    assert [point.step for point in client.get_metric_history(active.info.run_id, "reward")] == [0]


def test_a_file_gets_the_event(tmp_path):
    backend = JsonlTracker(tmp_path)
    with td.Monitor([backend]) as monitor:
        monitor.log({"reward": 0.5}, 7)
        td.preflight(run=monitor, **ILL)
    lines = [json.loads(line) for line in (tmp_path / "findings.jsonl").read_text().splitlines()]
    assert {"step": 7, "event": "preflight: 1 failed, 1 passed, 24 not checked: reward_histogram"} in lines


def test_a_tracker_that_fails_is_counted_and_no_matter():
    class Broken(td.Tracker):
        local = True

        def write(self, step, entries, at):
            raise OSError("no space")

    with td.Monitor([Broken()]) as monitor:
        assert td.preflight(run=monitor, **ILL).exit_code == 1
        assert monitor.health["tracker_errors"] == 1


PAGE = (Path(__file__).parents[2] / "docs" / "preflight.md").read_text()


def test_the_page_names_every_check_every_field_of_a_plan_and_every_option():
    assert {name for name in NAMES if f"`{name}`" not in PAGE} == set()
    assert {name for name in Plan.model_fields if f"`{name}`" not in PAGE} == set()
    shown = CliRunner().invoke(app, ["preflight", "--help"], env={"COLUMNS": "200"}).stdout
    assert {option for option in re.findall(r"`(--[a-z-]+)`", PAGE) if option not in shown} == set()


@pytest.mark.nightly
def test_the_page_s_example_runs_and_finds_its_mistakes(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    ran = runpy.run_path(str(tmp_path / "example.py"))
    assert {check.name for check in ran["report"].with_status("fail")} == {
        "memory",
        "evaluation_complete",
    }


def test_the_page_counts_the_planted_mistakes():
    mistakes = runpy.run_path(str(Path(__file__).with_name("mistakes.py")))["MISTAKES"]
    assert f"plants {len(mistakes)} mistakes" in PAGE
