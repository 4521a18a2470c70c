"""Columns in, aggregates out: against references that are counted by hand, and with all that can be wrong with them."""

import json
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.errors import BatchError
from tracker_diag.metrics.own import SAMPLED
from tracker_diag.metrics.registry import training
from tracker_diag.samples.aggregates import aggregates
from tracker_diag.samples.samples import Samples


def aggregated(**columns):
    return aggregates(Samples.from_columns(columns))


REWARDS = st.lists(st.sampled_from([-1.0, 0.0, 0.25, 1.0]), min_size=1, max_size=40)


@pytest.mark.slow
@given(REWARDS, st.data())
def test_rewards_and_groups_are_what_a_person_counts(rewards, data):
    groups = data.draw(st.lists(st.integers(0, 5), min_size=len(rewards), max_size=len(rewards)))
    result = aggregated(reward=rewards, group=groups)
    n = len(rewards)
    assert result["reward"] == pytest.approx(sum(rewards) / n)
    assert result["reward_zero_share"] == rewards.count(0.0) / n
    assert (result["reward_min"], result["reward_max"]) == (min(rewards), max(rewards))
    if len(set(rewards)) > 1:
        assert result["reward_max_share"] == rewards.count(max(rewards)) / n
    members = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        members[group].append(reward)
    many = [part for part in members.values() if len(part) > 1]
    if many:
        assert result["zero_std_share"] == pytest.approx(sum(len(set(part)) == 1 for part in many) / len(many))
        assert result["effective_groups"] == sum(len(set(part)) > 1 for part in many)
        assert result["group_reward_std"] == pytest.approx(np.mean([np.std(part) for part in many]), abs=1e-12)
    else:
        assert "zero_std_share" not in result


@pytest.mark.slow
@given(st.lists(st.floats(-5, 5).filter(lambda item: item == 0 or abs(item) > 1e-6), min_size=1, max_size=60))
def test_the_concentration_of_advantages_is_kishs(advantages):
    result, size = aggregated(advantage=advantages), sorted(map(abs, advantages), reverse=True)
    if sum(size):
        expected = sum(size) ** 2 / sum(item * item for item in size) / len(size)
        assert result["advantage_ess"] == pytest.approx(expected)
        top = max(1, round(0.05 * len(size)))
        assert result["advantage_top_share"] == pytest.approx(sum(size[:top]) / sum(size))
    else:
        assert "advantage_ess" not in result


CALL = st.fixed_dictionaries(
    {"name": st.sampled_from("abc"), "arguments": st.integers(0, 2).map(lambda i: {"q": i}),
     "status": st.sampled_from(["ok", "error", "timeout", True, False, None])}
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.lists(CALL, max_size=5), min_size=1, max_size=12))
def test_calls_are_what_a_person_counts(episodes):
    result, calls = aggregated(calls=episodes), [call for episode in episodes for call in episode]
    assert result["tool_calls"] == pytest.approx(len(calls) / len(episodes))
    bad = {"error", "timeout", False}
    repeats = sum(n - 1 for episode in episodes for n in Counter(map(str_of, episode)).values())
    if calls:
        assert result["tool_failure_rate"] == pytest.approx(sum(item["status"] in bad for item in calls) / len(calls))
        assert result["tool_timeouts"] == pytest.approx(sum(item["status"] == "timeout" for item in calls) / len(calls))
        assert result["repeated_call_share"] == pytest.approx(repeats / len(calls))
    for tool, n in Counter(call["name"] for call in calls).items():
        part = [call for call in calls if call["name"] == tool]
        assert result[f"tool_share:{tool}"] == pytest.approx(n / len(calls))
        assert result[f"tool_failure_rate:{tool}"] == pytest.approx(sum(item["status"] in bad for item in part) / n)
    distinct = len({tuple(map(str_of, episode)) for episode in episodes})
    if len(episodes) > 1:
        assert result["diversity"] == pytest.approx((distinct - 1) / (len(episodes) - 1))


def str_of(call):
    return call["name"] + str(call["arguments"])


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(0, 20), st.randoms(use_true_random=False))
def test_micro_batches_add_up_to_the_batch(first, second, random):
    n = first + second
    columns = {
        "reward": [random.choice([0.0, 0.5, 1.0]) for _ in range(n)],
        "group": [random.randrange(4) for _ in range(n)],
        "calls": [[{"name": random.choice("ab"), "arguments": random.randrange(3)}] * random.randrange(3)
                  for _ in range(n)],
    }  # fmt: skip
    parts = [
        {name: part[:first] for name, part in columns.items()},
        {name: part[first:] for name, part in columns.items()},
    ]
    merged = (
        Samples.from_columns(parts[0]).merged(Samples.from_columns(parts[1]))
        if second
        else Samples.from_columns(parts[0])
    )
    again = Samples.from_state(json.loads(json.dumps(merged.state_dict())))
    expected = aggregates(Samples.from_columns(columns))
    assert aggregates(merged) == pytest.approx(expected)
    assert aggregates(again) == pytest.approx(expected)


def test_a_part_of_the_reward_that_was_not_asked_is_no_error():
    nan = math.nan
    result = aggregated(
        reward=[1.0, 2.0], components={"format": [nan, 0.5], "asked of nobody": [nan, nan], "solved": [1, 1]}
    )
    assert result["reward_component:format"] == 0.5
    assert "reward_component_std:format" not in result  # of one value
    assert "reward_component:asked of nobody" not in result
    assert result["reward_component_std:solved"] == 0.0
    assert result["format_reward"] == 0.5


def test_the_highest_reward_that_there_is_is_not_known_of_zeros_alone():
    assert "reward_max_share" not in aggregated(reward=[0.0, 0.0])
    assert "reward_max_share" not in aggregated(reward=[-1.0, -1.0])
    assert aggregated(reward=[1.0, 1.0])["reward_max_share"] == 1.0
    assert aggregates(Samples.from_columns({"reward": [0.0, 0.0]}), lowest=0.0, highest=1.0)["reward_max_share"] == 0.0


def test_right_and_wrong_answers_have_lengths_of_their_own():
    result = aggregated(length=[10, 20, 90, 100], correct=[True, True, False, None])
    assert (result["response_length_right"], result["response_length_wrong"]) == (15, 90)
    assert result["response_length"] == 55
    assert result["success_rate"] == pytest.approx(2 / 3)


def test_the_reward_after_a_failed_call_is_that_of_episodes_whose_last_call_failed():
    bad, good = {"name": "a", "status": "error"}, {"name": "a"}
    result = aggregated(reward=[1.0, 0.0, 0.4, 0.6, 9.0], calls=[[good, bad], [bad], [bad, good], [good], []])
    assert result["reward_after_tool_failure"] == 0.5
    assert result["reward_after_tool_success"] == 0.5


def test_versions_that_are_not_known_and_those_that_a_sequence_spans():
    result = aggregated(policy_version=[3, None, (2, 5), 4])
    assert result["unversioned_share"] == 0.25
    assert result["version_span"] == 1.0
    assert "version_span" not in aggregated(policy_version=[3, 4])


def test_a_judge_that_likes_length_is_reported():
    rng = np.random.default_rng(0)
    length = rng.integers(10, 500, 64)
    assert aggregated(judge=length / 500, length=length)["judge_style_correlation"] == pytest.approx(1)
    assert aggregated(judge=rng.random(64), length=length)["judge_style_correlation"] < 0.4
    assert "judge_style_correlation" not in aggregated(judge=length[:15] / 500, length=length[:15])


@dataclass(frozen=True)
class Id:
    name: str


def test_each_environment_has_a_reward_and_ids_that_differ_are_counted():
    result = aggregated(
        reward=[1, 0, None, 0.5], env=["web", "code", "web", None], retokenised=[True, False, False, None]
    )
    assert (result["env_reward:web"], result["env_reward:code"]) == (1, 0)
    assert result["env_reward_best"] == 1
    assert "env_reward_best" not in aggregated(reward=[1, 0], env=["web", "web"])
    assert result["retokenised_share"] == pytest.approx(1 / 3)


def test_groups_go_by_any_hashable_id_across_calls():
    item, two = Id("a"), UUID(int=1)
    ids = [item, two, ("x", 1), ("x", 1), np.int64(7), 7, "7", Id("a")]
    first, second = (
        Samples.from_columns({"group": ids[:4], "reward": [0.0] * 4}),
        Samples.from_columns({"group": ids[4:], "reward": [0.0] * 4}),
    )
    groups = first.merged(second)["group"].tolist()
    assert groups[0] == groups[7]
    assert groups[2] == groups[3]
    assert groups[4] == groups[5]
    assert len(set(groups)) == 5
    tensor = Samples.from_columns({"group": torch.tensor([7, 7]), "reward": torch.zeros(2, dtype=torch.bfloat16)})
    assert tensor["group"].tolist() == [groups[4]] * 2


def test_arguments_and_names_as_frameworks_have_them():
    result = aggregated(
        calls=[
            [{"function": {"name": "search", "arguments": '{"q": 1}'}}, {"function": "read", "arguments": "{q: 1"}],
            [{"name": "agent"}, {"name": "search", "status": "timeout", "seconds": 3, "truncated": True}],
            None,
        ]
    )
    assert result["tool_calls"] == pytest.approx(4 / 3)
    assert result["malformed_call_rate"] == 0.25
    assert result["tool_failure_rate:read"] == 1.0
    assert result["tool_timeouts:search"] == 0.5
    assert result["tool_seconds"] == 3
    assert result["tool_truncated_share:search"] == 1
    assert result["tool_entropy"] == pytest.approx(1.5 * math.log(2))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "samples: no column given"),
        ({"rewards": [1.0]}, "rewards: it is given, expected one of reward, components"),
        ({"reward": [1.0, 2.0], "success": [1]}, "success: 1 values given, expected 2, as reward has"),
        ({"reward": [1.0], "components": {"a": [1, 2]}}, r"components\['a'\]: 2 values given, expected 1"),
        ({"components": [1.0]}, "components: list given, expected a mapping"),
        ({"reward": ["high"]}, "reward: list .* given, expected one number for each sequence"),
        ({"reward": [[1.0]]}, r"reward: shape \(1, 1\) given"),
        ({"reward": 1.0}, "reward: float given, expected a list"),
        ({"group": [[1]]}, "group: an id that cannot be hashed"),
        ({"calls": ["search"]}, "calls: str for a sequence given"),
        ({"calls": [["search"]]}, "calls: str as a call given"),
        ({"calls": [[{"arguments": "{}"}]]}, "calls: a call with arguments given, expected a call with a name"),
        ({"calls": [[{"name": "a", "seconds": "long"}]]}, "calls: seconds 'long' given"),
        ({"text": [3]}, "text: int for a sequence given"),
        ({"text": "one"}, "text: str given"),
        ({"tokens": [["a"]]}, "tokens: <U1 .* given, expected a list of token ids"),
        ({"policy_version": ["new"]}, "policy_version: .* given"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_of_its_column(columns, message):
    with pytest.raises(BatchError, match=message):
        Samples.from_columns(columns)


@pytest.mark.parametrize("n", [0, 1])
def test_no_sequence_and_one_alone_are_counted(n):
    columns = {"reward": [1.0], "group": ["a"], "advantage": [0.0], "calls": [[]], "text": ["yes"], "length": [3],
               "success": [True], "judge": [0.5], "policy_version": [1], "scorer_error": [""]}  # fmt: skip
    result = aggregated(**{name: part[:n] for name, part in columns.items()})
    assert all(math.isfinite(value) for value in result.values())
    assert ("reward" in result) == (n == 1)


def test_every_aggregate_is_in_the_registry_and_says_what_it_is_taken_of():
    rng = np.random.default_rng(0)
    n = 128
    result = aggregated(
        reward=rng.random(n), components={"format": rng.random(n), "solved": rng.random(n)}, group=np.arange(n) // 8,
        advantage=rng.normal(size=n), success=rng.integers(0, 2, n), verifier=rng.random(n), judge=rng.random(n),
        human=rng.random(n), length=rng.integers(1, 99, n), truncated=[False] * n, turns=[1] * n, void_turns=[0] * n,
        logprob=-rng.random(n), policy_version=[(1, 2)] * n, scorer_error=[None] * n, text=["done"] * n,
        retokenised=[False] * n, env=["web", "code"] * (n // 2),
        calls=[[{"name": "a", "seconds": 1, "tokens": 3, "truncated": False, "status": "error" if i % 2 else "ok"},
                {"name": "b", "status": "error" if i % 2 else "ok"}] for i in range(n)],
    )  # fmt: skip
    names = {name.partition(":")[0] for name in result} | {"essential_tool_share"}
    assert names == set(SAMPLED)
    assert all(training(name) for name in result)


def test_recovery_after_a_failed_call_and_the_cost_of_a_success():
    def calls(*worked):
        return [{"name": "search", "status": item} for item in worked]

    result = aggregated(
        calls=[calls(False, True), calls(True, False), calls(False, False, True), calls(True), []],
        success=[1, 0, 1, 0, None],
        length=[100, 50, 200, 50, 999],
    )
    assert result["recovery_rate"] == 3 / 4
    assert result["tokens_per_success"] == 200
    never = aggregated(calls=[calls(False), calls(True)], success=[0, 0], length=[1, 1])
    assert never["recovery_rate"] == 0
    assert "tokens_per_success" not in never
