import json

import pytest
from typer.testing import CliRunner

from tracker_diag.cli.app import app


@pytest.fixture
def run():
    return lambda *args: CliRunner().invoke(app, args)


@pytest.fixture
def metrics(tmp_path):
    file = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "loss": 0.5, "config": {"seed": 3, "hf_token": "hf_ofNobody"}} for step in range(30)]
    file.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"step": 30, "loss": float("nan")})))
    return file


@pytest.mark.slow
def test_a_finished_run_gets_its_postmortem(run, metrics, journals, tmp_path):
    output = run("export", "postmortem", str(metrics))
    assert output.exit_code == 0, output.output
    page = journals / "postmortem" / "metrics_jsonl" / "README.md"
    assert output.stdout.strip().endswith(str(page.relative_to(journals)))
    text = page.read_text()
    assert "**What ended the run is not recorded**, after step 30." in text
    assert "- then NaN or infinity: loss is NaN or infinite" in text
    assert "| seed | seed=3 |" in text
    assert all("hf_ofNobody" not in file.read_text() for file in page.parent.iterdir())
    assert run("export", "postmortem", str(metrics), "--out", str(tmp_path / "mine")).exit_code == 0
    assert (tmp_path / "mine" / "postmortem.json").exists()


@pytest.mark.slow
def test_a_postmortem_is_named_after_the_run_and_not_after_its_store(run, journals, mlflow_store):
    import mlflow

    with mlflow.start_run() as active:
        for step in range(8):
            mlflow.log_metric("loss", 0.5, step)
    output = run("export", "postmortem", f"mlflow:{active.info.run_id}@{mlflow.get_tracking_uri()}")
    assert output.exit_code == 0, output.output
    assert [folder.name for folder in (journals / "postmortem").iterdir()] == [f"mlflow_{active.info.run_id}"]


@pytest.mark.slow
def test_the_context_record_next_to_a_run_is_read(run, metrics, tmp_path):
    kept = {"config": {"a": 1}, "seed": {}, "data": {}, "evaluation": {}, "versions": {"torch": "2"}, "code": None}
    (metrics.parent / "context.json").write_text(json.dumps(kept))
    run("export", "postmortem", str(metrics), "--out", str(tmp_path / "mine"))
    output = json.loads((tmp_path / "mine" / "context.json").read_text())
    assert output["versions"] == {"torch": "2"}
    assert output["config"] == {"a": 1, "seed": 3, "hf_token": "***"}


@pytest.mark.slow
def test_the_checklist_is_markdown_or_json(run, metrics):
    output = run("export", "checklist", "during", str(metrics))
    assert output.stdout.startswith("## Checklist during training: ")
    assert "**Are loss, gradients and log-probabilities finite, without spikes?** No." in output.stdout
    assert json.loads(run("export", "checklist", "during", str(metrics), "--json").stdout)["when"] == "during"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("export", "checklist", "whenever", "x.jsonl"), "x.jsonl: no such file"),
        (("export", "checklist", "whenever", "{}"), "expected one of before, during, after"),
        (("export", "postmortem", "x.jsonl"), "x.jsonl: no such file"),
        (("export", "postmortem", "{}", "--out", "{}/deeper"), "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(run, metrics, args, message):
    result = run(*(arg.format(metrics) for arg in args))
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
