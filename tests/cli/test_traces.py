"""`tracker-diag traces` as it is typed."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from tracker_diag import read_traces
from tracker_diag.cli.app import app

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "samples" / "traces" / "made.py")))


def run(*arguments):
    return CliRunner().invoke(app, ["traces", *map(str, arguments)], env={"COLUMNS": "100"})


@pytest.fixture
def chats(tmp_path):
    def write(rows, name="chats.jsonl"):
        file = tmp_path / name
        file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return file

    return write


def test_a_table_of_tools_and_what_is_odd(chats):
    rows = [
        {"messages": made.OPENAI, "reward": 1.0},
        "{broken",
        {"messages": made.ANTHROPIC, "reward": "much"},
        {"x": 1},
    ]
    result = run(chats(rows))
    assert result.exit_code == 0, result.output
    assert "2 traces, of no training step" in result.stdout
    assert [line.split()[:3] for line in result.stdout.splitlines() if line.startswith(("search ", "read "))] == [
        ["search", "2", "0"], ["read", "2", "100"]
    ]  # fmt: skip
    for text in ("name the run with --run", "lines that cannot be read, left out: 1, first line 2", "values of reward",
                 "objects that are no trace, left out: 1, first line 4, with x"):  # fmt: skip
        assert text in " ".join(result.stdout.split())


@pytest.mark.slow
def test_what_it_writes_is_read_again_and_is_the_same(chats, tmp_path):
    source = chats(
        [{"messages": made.OPENAI, "reward": r, "step": s, "components": {"a": r}} for s in (1, 2) for r in (0.0, 1.0)]
    )
    out = tmp_path / "samples.jsonl"
    first = run(source, "--samples", out, "--json")
    assert first.exit_code == 0, first.output
    results, again = json.loads(first.stdout), json.loads(run(out, "--json").stdout)
    assert (results["traces"], results["traces_with_step"]) == (4, 4)
    assert results["tools"] == again["tools"]
    assert results["totals"] == again["totals"]
    record = json.loads(out.read_text().splitlines()[0])
    assert record["text"] == made.ANSWER
    assert record["components"] == {"a": 0.0}


@pytest.mark.slow
def test_texts_are_kept_for_files_alone_and_what_is_reported_is_the_same(chats, tmp_path):
    source = chats([{"messages": made.OPENAI, "reward": 1.0, "step": step} for step in (1, 2)])
    messages = run(source, "--json")
    assert messages.stdout == run(source, "--json", "--samples", tmp_path / "samples.jsonl").stdout
    assert "prompt" in (tmp_path / "samples.jsonl").read_text()
    whole, less = read_traces(str(source)), read_traces(str(source), texts=False)
    assert whole.to_json() == less.to_json()
    for item, bare in zip(whole.records, less.records, strict=True):
        assert bare == {key: value for key, value in item.items() if key not in {"prompt", "completion"}}


@pytest.mark.slow
def test_a_tool_that_begins_to_fail_is_named_by_a_rule(chats):
    rng = np.random.default_rng(0)
    rows = []
    for step in range(150):
        for _ in range(16):
            fails = rng.random() < (0.02 if step < 90 else 0.6)
            result = {"role": "tool", "tool_call_id": "a", "content": '{"error": "down"}' if fails else "4"}
            rows.append({"messages": [*made.OPENAI[:3], result, *made.OPENAI[3:4], made.OPENAI[5]], "step": step})
    results = json.loads(run(chats(rows), "--json").stdout)
    fired = {(item["rule"], item["slice"]) for item in results["rules"]["findings"] if item["fired"] is not None}
    assert ("ENV001", "tool:search") in fired


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["none.jsonl"], "no such file; runs of trackers begin with mlflow:, trackio:"),
     (["trackio:none/run"], "no project 'none'")],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1
