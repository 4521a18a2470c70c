"""What is reported of completions, with what TRL's own functions take and return."""

from types import SimpleNamespace

import pytest
import torch
from tracker_diag_trl.samples import CompletionSamples, conversation_columns, reward_columns

from tracker_diag.errors import UnknownName

EOS, PAD = 1, 2
NAN = float("nan")


def call(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls, content=""):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def answers(name, content):
    return {"role": "tool", "name": name, "content": content}


def says(content):
    return {"role": "assistant", "content": content}


def test_calls_are_reported_by_tool_with_arguments_and_whether_they_worked():
    messages = [
        asks(call("search", q="a"), call("read", page=2)),
        answers("read", "text"),  # the answers of asynchronous tools come after the others
        answers("search", "{'error': 'timed out'}"),
        asks(call("search", q="a")),  # over the limit: nobody has made it
    ]
    columns = conversation_columns([messages, [says("no")]])
    assert columns["calls"] == [
        [
            {"name": "read", "arguments": {"page": 2}, "status": "ok"},
            {"name": "search", "arguments": {"q": "a"}, "status": "error"},
        ],
        [],
    ]
    assert columns["turns"] == [2, 1]
    assert columns["text"] == ["", "no"]


def test_a_turn_that_neither_calls_nor_answers_is_void():
    columns = conversation_columns([[asks(call("search")), answers("search", ""), says(" "), says(None)], [says("a")]])
    assert columns["void_turns"] == [2, 0]


def test_content_may_be_blocks_and_completions_plain_text():
    blocks = [{"type": "image", "image": object()}, {"type": "text", "text": "a cat"}]
    assert conversation_columns([[says(blocks)]])["text"] == ["a cat"]
    assert conversation_columns(["one", "two"]) == {"text": ["one", "two"]}


def test_rewards_are_summed_as_the_trainer_does_and_what_nobody_scored_has_none():
    columns = reward_columns([[1.0, NAN], [0.5, 2.0], [NAN, NAN]], ["right", "style"], [1.0, 0.5], "right")
    assert columns["reward"] == [1.0, 1.5, None]
    assert columns["components"]["right"][:2] == [1.0, 0.5]
    assert columns["correct"] is columns["components"]["right"]
    assert "components" not in reward_columns([[1.0]], ["right"], [1.0])


class Trainer:
    """Two processes, of which this is the second; two samples a prompt."""

    num_generations = 2
    reward_func_names = ("right", "style")
    reward_weights = torch.tensor([1.0, 0.0])
    processing_class = SimpleNamespace(eos_token_id=EOS, pad_token_id=PAD)
    accelerator = SimpleNamespace(process_index=1)

    def __init__(self):
        self.model = SimpleNamespace(training=True)


class Listening:
    def __init__(self):
        self.batches = []

    def samples(self, **columns):
        self.batches.append(columns)


def generation(samples, ids, masked=(), tool=None):
    n, width = len(ids), max(map(len, ids))
    samples.rewards(
        torch.arange(2.0 * 2 * n).reshape(2 * n, 2),  # of all processes
        {"completions": ["a"] * n, "completion_ids_list": ids},
    )
    mask = torch.tensor([[i < len(item) and row not in masked for i in range(width)] for row, item in enumerate(ids)])
    result = {"advantages": torch.ones(n), "completion_mask": mask.int()}
    samples.generation(result | ({} if tool is None else {"tool_mask": torch.tensor(tool)}), {})


def test_each_process_tells_its_own_share_in_the_groups_of_all():
    listening = Listening()
    samples = CompletionSamples(Trainer(), listening, "style")
    for _ in range(2):
        generation(samples, [[5, 6, EOS], [5, 6, 7], [5, EOS], [PAD]])
    first, second = listening.batches
    assert first["reward"] == [8.0, 10.0, 12.0, 14.0]
    assert first["correct"] == [9.0, 11.0, 13.0, 15.0]
    assert first["truncated"] == [False, True, False, False]
    assert first["length"] == [3, 3, 2, 1]
    assert first["group"] == ["1/2", "1/2", "1/3", "1/3"]
    assert not set(first["group"]) & set(second["group"])


def test_tool_tokens_are_no_part_of_a_length_and_of_what_is_masked_none_is_known():
    listening = Listening()
    samples = CompletionSamples(Trainer(), listening)
    generation(samples, [[5, 6, EOS], [5, 6, 7]], masked=(1,), tool=[[1, 0, 1], [0, 0, 0]])
    assert listening.batches[0]["length"] == [2, None]


def test_an_evaluation_tells_nothing():
    listening, trainer = Listening(), Trainer()
    trainer.model.training = False
    generation(CompletionSamples(trainer, listening), [[5, EOS]])
    assert listening.batches == []


def test_a_reward_function_that_is_not_there_is_reported_at_once():
    with pytest.raises(UnknownName, match=r"rigth.*right, style"):
        CompletionSamples(Trainer(), Listening(), "rigth")
