"""What an agent is answered, by a real MCP client: over stdio once, else in this process."""

import asyncio
import json
import math
import sys
from importlib.resources import files

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from tracker_diag.cli.answers import LARGEST, fitted
from tracker_diag.cli.app import app
from tracker_diag.cli.mcp import make_server

COMMAND = "from tracker_diag.cli.app import app; app(['mcp'])"
TOOLS = {"list_runs", "status", "curve", "compare", "rule", "worst_sequences"}


def asked(server, *calls):
    """Whether each call failed, and its text."""
    from mcp import Client

    async def ask():
        async with Client(server) as client:
            answers = [await client.call_tool(name, arguments) for name, arguments in calls]
        return [(answer.is_error, answer.content[0].text) for answer in answers]

    return asyncio.run(ask())


def one_answer(name, **arguments):
    ((failed, text),) = asked(make_server(), (name, arguments))
    assert not failed, text
    assert len(text.encode()) <= LARGEST
    return json.loads(text)


@pytest.fixture
def runs(tmp_path):
    """A folder with a healthy run, and one whose reward falls from step 60 on; keys as SB3 logs them."""

    for name, slope in (("good", 0), ("bad", -4)):
        rewards = [100 + step + 3 * math.sin(step) + slope * max(step - 60, 0) for step in range(120)]
        rows = [
            {"step": step, "rollout/ep_rew_mean": reward, "train/approx_kl": 0.01 + step % 7 / 1000}
            for step, reward in enumerate(rewards)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


@pytest.mark.slow
def test_a_client_over_stdio_sees_the_tools_and_the_cause(runs):
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=sys.executable, args=["-c", COMMAND])

    async def ask():
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            return tools, await client.call_tool("status", {"run": str(runs / "bad.jsonl")})

    tools, answer = asyncio.run(ask())
    assert {tool.name for tool in tools} == TOOLS
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools)
    assert json.loads(answer.content[0].text)["cause"]["rule"] == "OUT001"


@pytest.mark.slow
def test_status_says_what_broke_since_when_on_what_evidence_and_what_to_do(runs):
    bad = str(runs / "bad.jsonl")
    status = one_answer("status", run=bad)
    assert (status["health"], status["severity"], status["action"]) == ("ill", "warn", "stop")
    assert status["cause"]["rule"] == "OUT001"
    assert 50 <= status["since"] <= status["detected"] <= 119
    assert status["evidence"]
    assert all((row["run"], row["key"]) == (bad, "rollout/ep_rew_mean") for row in status["evidence"])
    assert status["next_command"] == "tracker-diag rules show OUT001"
    assert status["resume_at_or_before"] <= 60


@pytest.mark.slow
def test_status_of_a_healthy_run_and_of_a_short_one(runs):
    (runs / "short.jsonl").write_text('{"step": 0, "reward": 0.1}\n{"step": 1, "reward": 0.2}')
    good, short = (one_answer("status", run=str(runs / f"{name}.jsonl")) for name in ("good", "short"))
    assert (good["health"], good["cause"], good["evidence"]) == ("healthy", None, [])
    assert short["health"] == "too_short"
    assert short["next_command"].startswith("tracker-diag diagnose --blind ")


@pytest.mark.slow
def test_the_other_tools_answer_from_the_same_runs(runs):
    good, bad = str(runs / "good.jsonl"), str(runs / "bad.jsonl")
    assert {run["name"] for run in one_answer("list_runs", project=str(runs))["runs"]} == {"good.jsonl", "bad.jsonl"}
    own, ours = (one_answer("curve", run=bad, key=key) for key in ("rollout/ep_rew_mean", "reward"))
    assert own["parts"] == ours["parts"]
    assert [own["parts"][0][0], own["parts"][-1][1], own["values"]] == [0, 119, 120]
    against = one_answer("compare", reference=good, other=bad)
    assert [series["series"] for series in against["parted"]] == ["reward"]
    assert against["incidents"][0]["rule"] == "OUT001"
    assert one_answer("rule", rule="out001")["do"]


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("status", {"run": "nowhere.jsonl"}, "nowhere.jsonl: no such file or folder"),
        ("rule", {"rule": "OUT901"}, "did you mean OUT001?"),
        ("worst_sequences", {"tokens": "nowhere.parquet"}, "nowhere.parquet"),
    ],
)
def test_what_cannot_be_answered_says_why(name, arguments, says):
    ((failed, text),) = asked(make_server(), (name, arguments))
    assert failed
    assert says in text


@pytest.mark.slow
def test_the_text_of_sequences_is_only_shown_if_the_user_has_opted_in(tmp_path):
    rng = np.random.default_rng(0)
    steps, sequences, width = 12, 40, 20
    step, sequence, position = (part.ravel() for part in np.mgrid[:steps, :sequences, :width])
    new = rng.uniform(-3, -0.1, len(step))
    columns = {
        "step": step,
        "sequence": sequence,
        "position": position,
        "is_model": (position != 10) & (position > 0),
        "logprob": new,
        "old_logprob": new - np.where(position > 10, 1.5, 0.02) * rng.normal(size=len(new)),
        "token": np.full(len(step), "private "),
    }
    file = tmp_path / "tokens.parquet"
    pq.write_table(pa.table(columns), file)
    call = ("worst_sequences", {"tokens": str(file)})
    ((_, ids),), ((_, texts),) = asked(make_server(), call), asked(make_server(texts=True), call)
    assert json.loads(ids)["sequences"][0]["slice"] == "post_tool"
    assert "private" not in ids
    assert "private" in texts


def test_an_answer_is_cut_to_4_kb_and_says_what_it_left_out():
    answer = fitted({"rows": [{"text": "ä" * 1000, "value": math.nan}] * 50, "names": ["a", "b"], "x": 1.23456789})
    assert len(answer.encode()) <= LARGEST
    kept = json.loads(answer)
    assert len(kept["rows"]) + kept["left_out"]["rows"] == 50
    assert kept["rows"][0] == {"text": "ä" * 399 + "…", "value": "nan"}
    assert (kept["names"], kept["x"]) == (["a", "b"], 1.2346)


def test_the_skill_is_written_where_agents_look(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["skill", "install"]).exit_code == 0
    assert CliRunner().invoke(app, ["skill", "install", "--to", "mine"]).exit_code == 0
    text = files("tracker_diag.cli").joinpath("SKILL.md").read_text()
    for folder in (".claude/skills", ".agents/skills", "mine"):
        assert (tmp_path / folder / "tracker-diag" / "SKILL.md").read_text() == text
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["name"] == "tracker-diag"
    assert 100 < len(head["description"]) < 1024
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(app, ["skill", "install", "--to", "file"])
    assert refused.exit_code == 2
    assert "give a folder that you may write to" in refused.stderr


@pytest.mark.slow
def test_the_skill_explains_each_key_of_status(runs):
    text = files("tracker_diag.cli").joinpath("SKILL.md").read_text()
    unexplained = {key for key in one_answer("status", run=str(runs / "bad.jsonl")) if f"`{key}`" not in text}
    assert unexplained == {"steps", "last_step", "severity", "further_causes", "best"}
