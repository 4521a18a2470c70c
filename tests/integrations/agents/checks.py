"""Traces by the graph of verifiers and episodes of OpenEnv; `test_agents.py` runs this where both can be imported."""

import json
from pathlib import Path

import numpy as np
import verifiers.v1 as vf
from openenv.core.client_types import StepResult
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from verifiers.v1 import graph

import tracker_diag as td
from tests.integrations.conformance import counted
from tracker_diag import Monitor
from tracker_diag.preflight.environment import AsGymnasium
from tracker_diag.samples.traces.chats import as_chat

KEPT = Path(__file__).with_name("verifiers.jsonl")


class Turns:
    """A trace of verifiers, a turn at a time; the model's tokens and its words are given."""

    def __init__(self, number):
        task = vf.TraceTask(type="Search", data=vf.TaskData(idx=number), key=f"task {number // 2}")
        self.trace = vf.Trace(id=str(number), task=task, agent=vf.AgentInfo(config=vf.AgentConfig()))

    def put(self, prompt, spans, message, tokens, finish="stop"):
        """The turn's answer, after the messages `prompt` with `spans` of tokens; its tokens are all sampled."""
        before = max(span[1] for span in spans if span)
        ids = vf.TurnTokens(
            prompt_ids=list(range(before)), completion_ids=list(range(before, before + tokens)),
            completion_logprobs=[-0.5] * tokens, message_spans=spans,
        )  # fmt: skip
        answer = vf.Response(id="", created=0, model="m", message=message, finish_reason=finish, tokens=ids)
        node = graph.prepare_turn(self.trace, prompt).commit(answer)
        self.trace.calls.append(vf.ModelCall(node=node, finish_reason=finish))


def made(number, *, failed):
    """It asks the tool, after an answer on a branch that it gave up."""
    turns = Turns(number)
    asked, guess = vf.UserMessage(content="find x"), vf.AssistantMessage(content="let me guess")
    call = vf.AssistantMessage(tool_calls=[vf.ToolCall(id="1", name="search", arguments='{"q": "x"}')])
    answer = vf.ToolMessage(tool_call_id="1", content='{"error": "away"}' if failed else "x is 4")
    turns.put([asked], [(0, 5)], guess, 4)
    turns.put([asked], [(0, 5)], call, 6, "tool_calls")
    end = vf.AssistantMessage(content="4")
    turns.put([asked, call, answer], [(0, 5), None, (11, 19)], end, 3, "length" if failed else "stop")
    turns.trace.record_reward("solved", float(not failed), weight=2.0)
    turns.trace.record_reward("form", 0.5)
    turns.trace.rewards["late"] = None
    return turns.trace


def write():
    """`verifiers.jsonl`, for the test that needs none of the frameworks."""
    records = [made(number, failed=number == 3).to_record() for number in range(4)]
    KEPT.write_text("".join(json.dumps(record) + "\n" for record in records))


def shaped(value):
    """Names and types, without what differs from run to run."""
    if isinstance(value, dict):
        return {name: shaped(inner) for name, inner in value.items() if name != "verifiers"}
    return [shaped(inner) for inner in value] if isinstance(value, list) else type(value)


def test_what_is_kept_is_what_verifiers_writes():
    kept = [json.loads(line) for line in KEPT.read_text().splitlines()]
    assert shaped(kept) == [shaped(made(number, failed=number == 3).to_record()) for number in range(4)]


def test_reward_and_cut_are_what_verifiers_says_itself():
    stopped = made(0, failed=False)
    stopped.stop("max_turns")
    for trace in (made(0, failed=False), made(1, failed=True), stopped):
        chat = as_chat(trace.to_record())
        assert (chat["reward"], chat["truncated"]) == (trace.reward, trace.is_truncated)


def test_a_branch_of_verifiers_is_a_sequence_whose_gaps_are_the_tools():
    branches = made(0, failed=False).branches
    assert [len(branch.token_ids) for branch in branches] == [9, 22]
    monitor = Monitor(catalog=False)
    monitor.observe(
        old_logprobs=[[0.8 * value for value in branch.logprobs] for branch in branches],
        rollout_logprobs=[branch.logprobs for branch in branches],
        model_mask=[branch.sampled_mask for branch in branches],
    )
    tokens = counted(monitor, "mismatch")
    assert (tokens["all"], tokens["text_only"], tokens["post_tool"]) == (13, 10, 3)


class Guess(Action):
    number: int


class Seen(Observation):
    number: int


class Echo(Environment):
    """Three steps; the reward is 1 for what was seen first."""

    def reset(self, seed=None, episode_id=None, **_):
        self.left, self.drawn = 3, int(np.random.default_rng(seed).integers(9))
        return Seen(number=self.drawn)

    def step(self, action, timeout_s=None, **_):
        self.left -= 1
        return Seen(number=action.number, reward=float(action.number == self.drawn), done=self.left == 0)

    @property
    def state(self):
        return State(step_count=3 - self.left)


def test_an_environment_of_openenv_is_played():
    policy = {"random_policy": lambda _: Guess(number=0), "policy": lambda seen: Guess(number=seen.number)}
    checks = {check.name: check for check in td.preflight(env=Echo, episodes=40, **policy).checks}
    for name in ("env_steps", "env_ends", "expert_beats_random"):
        assert checks[name].status == "pass", checks[name].reason
    assert checks["expert_beats_random"].values["expert"] == 3


def test_the_result_of_a_client_of_openenv_has_the_observation_in_it():
    class Client:
        def step(self, action):
            return StepResult(Seen(number=action.number), reward=1.0, done=True)

    assert AsGymnasium(Client()).step(Guess(number=2)) == (Seen(number=2), 1.0, True, False, {})
