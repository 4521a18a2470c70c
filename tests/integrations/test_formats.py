"""Formats of agents whose framework trains nothing itself: what its own objects come to, in the form it documents."""

import json
from types import SimpleNamespace

import numpy as np

import tracker_diag as td
from tests.integrations.conformance import counted
from tracker_diag import Monitor
from tracker_diag.preflight.openenv import AsGymnasium


def node(role, parent, tokens, **message):
    """A message of verifiers 0.4, with the tokens that it adds; those of the assistant are sampled."""
    sampled = [role == "assistant"] * tokens
    own = {"token_ids": [7] * tokens, "mask": sampled, "logprobs": [-0.5] * sum(sampled), "sampled": any(sampled)}
    return {"parent": parent, "message": {"role": role, **message}, **own}


def trace(number, *, failed):
    """A trace of verifiers: it asks the tool twice, the first time on a branch that was given up."""
    call = {"id": "1", "type": "function", "name": "search", "arguments": '{"q": "x"}'}
    nodes = [
        node("user", None, 5, content="find x"),
        node("assistant", 0, 4, content="let me guess"),
        node("assistant", 0, 6, content=None, tool_calls=[call]),
        node("tool", 2, 8, tool_call_id="1", content='{"error": "away"}' if failed else "x is 4"),
        node("assistant", 3, 3, content="4"),
    ]
    rewards = {"solved": {"score": float(not failed), "weight": 2.0}, "form": {"score": 0.5}, "late": None}
    task = {"type": "Search", "data": {}, "key": f"task {number // 2}"}
    calls = [{"node": 4, "finish_reason": "length" if failed else "stop"}]
    return {"version": 1, "id": str(number), "task": task, "nodes": nodes, "rewards": rewards, "calls": calls}


def test_traces_of_verifiers_are_samples_with_their_tool_and_their_parts(tmp_path):
    file = tmp_path / "traces.jsonl"
    file.write_text("".join(json.dumps(trace(number, failed=number == 3)) + "\n" for number in range(4)))
    found = td.read_traces(str(file))
    assert [(row.tool, row.calls, row.failed) for row in found.tools] == [("search", 4, 0.25)]
    first, *_, last = found.records
    assert (first["reward"], first["components"], first["group"]) == (2.5, {"solved": 2.0, "form": 0.5}, "task 0")
    assert (last["reward"], last["truncated"], last["env"]) == (0.5, True, "Search")
    assert "guess" not in json.dumps(found.records)  # a branch that was given up


def test_a_branch_of_verifiers_is_a_sequence_whose_gaps_are_the_tools():
    def spread(nodes, values):
        return [value for one in nodes for value in (values(one) if any(one["mask"]) else [0.0] * len(one["mask"]))]

    nodes = trace(0, failed=False)["nodes"]
    branches = [[nodes[0], nodes[1]], [nodes[0], *nodes[2:]]]
    monitor = Monitor(catalog=False)
    monitor.observe(
        old_logprobs=[spread(one, lambda of: [-0.4] * len(of["mask"])) for one in branches],
        rollout_logprobs=[spread(one, lambda of: of["logprobs"]) for one in branches],
        model_mask=[[flag for of in one for flag in of["mask"]] for one in branches],
    )
    tokens = counted(monitor, "mismatch")
    assert (tokens["all"], tokens["text_only"], tokens["post_tool"]) == (13, 10, 3)


class Echo:
    """An environment of OpenEnv: `reset` and `step` give an observation that has reward and done."""

    def reset(self, seed=None, episode_id=None):
        self.left, self.drawn = 3, np.random.default_rng(seed).integers(9)
        return SimpleNamespace(said=int(self.drawn), reward=None, done=False)

    def step(self, action, timeout_s=None):
        self.left -= 1
        return SimpleNamespace(said=action, reward=float(action == self.drawn), done=self.left == 0)

    def close(self):
        self.closed = True


Echo.__module__ = "openenv.core.env_server.interfaces"


def test_an_environment_of_openenv_is_played():
    report = td.preflight(env=Echo, random_policy=lambda _: 0, policy=lambda seen: seen.said, episodes=40)
    found = {check.name: check for check in report.checks}
    for name in ("env_steps", "env_ends", "expert_beats_random"):
        assert found[name].status == "pass", found[name].reason
    assert found["expert_beats_random"].values["expert"] == 3


def test_a_client_of_openenv_gives_the_observation_within_its_result():
    result = SimpleNamespace(observation={"said": 1}, reward=True, done=True)
    played = AsGymnasium(SimpleNamespace(reset=lambda **_: result, step=lambda _: result))
    assert played.reset(seed=1) == ({"said": 1}, {})
    assert played.step(0) == ({"said": 1}, 1.0, True, False, {})
