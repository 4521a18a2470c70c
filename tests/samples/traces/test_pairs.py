"""Preference and SFT data as TRL reads it."""

import json

import pytest

from tracker_diag.samples.traces.pairs import demonstrations, preferences


def sample(said, reward=None, prompt="What is 2+2?", **more):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
    completion = said if isinstance(said, list) else [{"role": "assistant", "content": said}]
    return {"prompt": asked, "completion": completion, "reward": reward, **more}


CALLS = [
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q": "2+2"}'}}]},
    {"role": "tool", "content": "4", "tool_call_id": "a", "status": "ok"},
    {"role": "assistant", "content": "4"},
]  # fmt: skip


def test_the_best_and_the_worst_of_a_prompt_are_a_pair():
    (pair,) = preferences([sample("5", 0.1), sample(CALLS, 0.9), sample("6", 0.5), sample("other", 3.0, "Why?")])
    assert [one["role"] for one in pair["prompt"]] == ["system", "user"]
    assert [one["role"] for one in pair["chosen"]] == ["assistant", "tool", "assistant"]
    assert pair["rejected"] == [{"role": "assistant", "content": "5"}]
    assert pair["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"q": "2+2"}
    assert "status" not in pair["chosen"][1]


def test_there_is_no_pair_of_equal_scores_equal_texts_or_without_scores():
    assert preferences([sample("4", 1.0), sample("5", 1.0)]) == []
    assert preferences([sample("4", 1.0), sample("4", 0.0)]) == []
    assert preferences([sample("4", 1.0), sample("5", float("nan"))]) == []
    assert preferences([sample("4"), sample("5")]) == []
    assert preferences([sample([], 1.0), sample("5", 0.0)]) == []


def test_a_score_that_all_share_gives_way_to_one_that_differs():
    (pair,) = preferences([sample("4", 1.0, human=1), sample("5", 1.0, human=0)])
    assert pair["chosen"][0]["content"] == "4"


def test_what_was_solved_is_worth_imitating_and_nothing_twice():
    found = demonstrations(
        [sample("4", 0.1, success=True), sample("4", 0.1, success=True), sample("5", 0.9, success=0)]
    )
    assert [one["completion"][0]["content"] for one in found] == ["4"]


def test_where_nobody_knows_it_is_the_highest_reward_of_a_prompt():
    found = demonstrations([sample("4", 0.9), sample("5", 0.1), sample("flat", 0.5, "Why?"), sample("a", 0.5, "Why?")])
    assert [one["completion"][0]["content"] for one in found] == ["4"]


@pytest.mark.slow
def test_trl_finds_the_prompt_in_no_completion(tmp_path):
    import datasets
    from trl.data_utils import is_conversational, maybe_extract_prompt

    samples = [sample(CALLS, 0.9, success=1), sample("5", 0.1, success=0), sample("Because.", 1.0, "Why?", success=1),
               sample("No.", 0.0, "Why?", success=0)]  # fmt: skip
    for name, rows, columns in (
        ("pairs", preferences(samples), {"prompt", "chosen", "rejected"}),
        ("sft", demonstrations(samples), {"prompt", "completion"}),
    ):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=str(tmp_path / "cache"))
        assert set(found.column_names) == columns
        assert len(found) == 2
        for row in found:
            assert is_conversational(row)
            assert maybe_extract_prompt(row) == row, "the prompt is a column, and nothing is left to be taken out"
            assert all(not any(one in row[name] for one in row["prompt"]) for name in columns - {"prompt"})
