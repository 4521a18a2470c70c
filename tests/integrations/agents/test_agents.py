"""Formats of agents whose framework trains nothing itself, verifiers and OpenEnv.

`checks.py` makes them by the frameworks' own code. It has written `verifiers.jsonl` too:
`STAND_INS=... python -c "import checks; checks.write()"`, with the path and the libraries of the test below.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import tracker_diag as td
from tracker_diag.preflight.environment import AsGymnasium

STAND_INS = (
    "openai", "anthropic", "mcp", "fastmcp", "prime_sandboxes", "prime_tunnel", "prime_runs", "gepa", "math_verify",
    "msgpack", "httpx2", "h11", "tenacity",
)  # fmt: skip
"""Clients of models, sandboxes and servers, which no check calls."""


def test_traces_of_verifiers_are_samples_with_their_tool_and_their_parts():
    report = td.read_traces(str(Path(__file__).with_name("verifiers.jsonl")))
    assert [(row.tool, row.calls, row.failed) for row in report.tools] == [("search", 4, 0.25)]
    first, *_, last = report.records
    assert (first["reward"], first["components"], first["group"]) == (2.5, {"solved": 2.0, "form": 0.5}, "task 0")
    assert (last["reward"], last["truncated"], last["env"]) == (0.5, True, "Search")
    assert "guess" not in json.dumps(report.records)  # a branch that was given up


def test_a_client_of_openenv_gives_the_observation_within_its_result():
    result = SimpleNamespace(observation={"seen": 1}, reward=True, done=True)
    played = AsGymnasium(SimpleNamespace(reset=lambda **_: result, step=lambda _: result))
    assert played.reset(seed=1) == ({"seen": 1}, {})
    assert played.step(0) == ({"seen": 1}, 1.0, True, False, {})


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_by_the_frameworks_own_classes(run_checks):
    run_checks("agents", stand_ins=STAND_INS)
