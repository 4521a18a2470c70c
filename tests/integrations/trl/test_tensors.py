import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tracker_diag_trl.students import IGNORED, GkdTensors, IwOpdTensors
from tracker_diag_trl.tensors import GrpoTensors

from tracker_diag import Monitor
from tracker_diag.errors import MissingExtra

CHECKPOINT = Path(__file__).parent / "checkpoint"

B, T = 4, 10
MARK = 7


class Listening:
    """Replaces the monitor, and keeps what it gets."""

    def __init__(self):
        self.batches = []

    def observe(self, **tensors):
        self.batches.append(tensors)


def made(iterations=1, steps=1, accumulation=1, beta=0.0, **more):
    args = SimpleNamespace(
        steps_per_generation=steps, num_iterations=iterations, gradient_accumulation_steps=accumulation, beta=beta
    )
    words = SimpleNamespace(added_tokens_decoder={MARK: "<|im_end|>"})
    given = {"mask_truncated_completions": False, "use_vllm": False, "rollout_func": None} | more
    state = SimpleNamespace(global_step=0)
    return SimpleNamespace(args=args, state=state, processing_class=words, _step=0, **given)


def inputs(**more):
    response = torch.ones(B, T, dtype=torch.long)
    response[1, 8:] = 0
    tool = torch.ones(B, T, dtype=torch.long)
    tool[:, 3:5] = 0
    ids = torch.arange(B * T).reshape(B, T)
    return {
        "completion_ids": ids, "completion_mask": response, "tool_mask": tool, "advantages": torch.ones(B),
        "prompt_ids": torch.tensor([[0, 5, 6], [5, 6, 5], [9, 5, 6], [6, 5, 6]])[:B],
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]])[:B],
    } | more  # fmt: skip


def step(tensors, trainer, batch, logprobs=None):
    """One micro-step with one update after it."""
    tensors.log_probabilities((torch.zeros(B, T) if logprobs is None else logprobs, None, None), {})
    tensors.loss(None, {"inputs": batch})
    trainer._step += 1
    trainer.state.global_step += 1


@pytest.fixture
def listening():
    return Listening()


def test_masks_are_of_the_completion_alone_and_tool_tokens_are_no_model_tokens(listening):
    trainer = made(beta=0.1)
    step(GrpoTensors(trainer, listening), trainer, inputs(ref_per_token_logps=torch.zeros(B, T)))
    (messages,) = listening.batches
    assert messages["response_mask"].sum() == B * T - 2
    assert messages["model_mask"].sum() == B * T - 2 - 2 * B  # the tool mask is padded with 1
    assert messages["control"].nonzero().tolist() == [[0, 7]]
    prompt = messages["prompt"].tolist()  # padding is no part of one
    assert prompt[0] == prompt[2] == prompt[3] != prompt[1]


def test_without_a_tool_mask_every_token_of_the_completion_is_the_models(listening):
    trainer, batch = made(beta=0.1), inputs(ref_per_token_logps=torch.zeros(B, T))
    del batch["tool_mask"]
    step(GrpoTensors(trainer, listening), trainer, batch)
    assert torch.equal(listening.batches[0]["model_mask"], listening.batches[0]["response_mask"])


def test_the_old_policy_is_reported_after_the_first_update_alone(listening):
    trainer = made(iterations=3)
    tensors = GrpoTensors(trainer, listening)
    for _ in range(6):
        step(tensors, trainer, inputs(old_per_token_logps=torch.zeros(B, T)))
    assert len(listening.batches) == 4
    assert all("old_logprobs" in messages for messages in listening.batches)


def test_a_ratio_that_is_1_by_construction_is_reported_once_so_that_rules_can_say_so(listening):
    trainer = made()
    tensors = GrpoTensors(trainer, listening)
    assert not tensors.ratio_expected
    for _ in range(3):
        step(tensors, trainer, inputs(), torch.full((B, T), -1.0))
    (messages,) = listening.batches
    assert torch.equal(messages["logprobs"], messages["old_logprobs"])


@pytest.mark.parametrize(
    "given",
    [{"iterations": 2}, {"steps": 2}, {"beta": 0.1}, {"use_vllm": True}, {"rollout_func": print}],
    ids=["iterations", "steps", "beta", "vllm", "rollout_func"],
)
def test_settings_with_which_a_ratio_comes(listening, given):
    assert GrpoTensors(made(**given), listening).ratio_expected


def test_steps_that_are_accumulated_leave_the_policy_as_it_was(listening):
    assert not GrpoTensors(made(steps=2, accumulation=2), listening).ratio_expected


def test_the_sampler_is_reported_once_a_generation_without_what_it_could_not_score(listening):
    trainer = made(iterations=2, use_vllm=True)
    tensors = GrpoTensors(trainer, listening)
    rollout = torch.zeros(B, T)
    rollout[0, 1] = rollout[2, 6] = rollout[3, 4] = float("nan")  # the last is a tool's token
    for _ in range(2):
        step(tensors, trainer, inputs(old_per_token_logps=torch.zeros(B, T), sampling_per_token_logps=rollout))
    mismatch = [messages for messages in listening.batches if "rollout_logprobs" in messages]
    assert len(mismatch) == 1
    assert not mismatch[0]["rollout_logprobs"][mismatch[0]["model_mask"]].isnan().any()
    assert not mismatch[0]["response_mask"][0, 1]  # a gap in the model's tokens alone would be a tool's
    assert tensors.left_out() == {"unscored_tokens": 2}
    assert tensors.left_out() == {}


def test_weights_of_whole_sequences_are_not_those_of_tokens(listening):
    trainer = made(use_vllm=True)
    tensors = GrpoTensors(trainer, listening)
    given = {"old_per_token_logps": torch.zeros(B, T), "sampling_per_token_logps": torch.zeros(B, T)}
    step(tensors, trainer, inputs(**given, importance_sampling_ratio=torch.ones(B, 1)))
    step(tensors, trainer, inputs(**given, importance_sampling_ratio=torch.ones(B, T)))
    mismatch = [messages for messages in listening.batches if "rollout_logprobs" in messages]
    assert ["applied_weights" in messages for messages in mismatch] == [False, True]


def test_completions_that_the_trainer_masks_are_counted_once_a_generation(listening):
    trainer = made(iterations=2, mask_truncated_completions=True)
    tensors = GrpoTensors(trainer, listening)
    batch = inputs(old_per_token_logps=torch.zeros(B, T))
    batch["completion_mask"][2:] = 0
    for _ in range(2):
        step(tensors, trainer, batch)
    assert tensors.left_out() == {"masked_sequences": 2}
    assert len(listening.batches) == 1
    batch["completion_mask"][:] = 0
    step(tensors, trainer, batch)
    step(tensors, trainer, batch)
    assert tensors.left_out() == {"masked_sequences": 4}
    assert len(listening.batches) == 1  # no empty batch is reported, which would pass for a mask the wrong way round


def test_what_is_scored_without_a_gradient_is_not_the_policy_that_is_trained(listening):
    trainer = made(beta=0.1)
    tensors = GrpoTensors(trainer, listening)
    with torch.no_grad():
        tensors.log_probabilities((torch.zeros(B, T), None), {})
    tensors.loss(None, {"inputs": inputs(ref_per_token_logps=torch.zeros(B, T))})
    assert listening.batches == []


def test_of_a_student_only_what_it_has_sampled_itself_is_compared_with_its_teacher(listening):
    trainer, labels = made(accelerator=SimpleNamespace(unwrap_model=lambda model: model)), inputs()["completion_ids"]
    trainer.teacher_model, student = object(), object()
    tensors, labels[0, 3] = GkdTensors(trainer, listening), IGNORED
    loss = {"student_logits": torch.randn(B, T, 50), "teacher_logits": torch.randn(B, T, 50), "labels": labels}
    (_, generated), (_, diverged) = tensors.hooked.values()
    diverged(None, loss)  # a batch of the dataset
    generated(None, {"model": trainer.teacher_model})
    diverged(None, loss)
    with torch.no_grad():  # an evaluation
        generated(None, {"model": student})
        diverged(None, loss)
    assert listening.batches == []
    generated(None, {"model": student})
    diverged(None, loss)
    (messages,) = listening.batches
    assert messages["model_mask"].sum() == B * T - 1
    both = [loss[name].log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0] for name in [*loss][:2]]
    for ours, theirs in zip((messages["logprobs"], messages["ref_logprobs"]), both, strict=True):
        assert torch.allclose(ours[labels >= 0], theirs[labels >= 0])


def test_of_iw_opd_the_samplers_ratio_is_seen_too(listening):
    tensors = IwOpdTensors(made(temperature=2.0, use_vllm=True), listening)
    ((_, weighted),) = tensors.hooked.values()
    logits, zeros = torch.randn(B, T, 50), torch.zeros(B, T)
    labels = inputs()["completion_ids"]
    weighted(None, {"student_logits": logits, "labels": labels, "teacher_actual_logprobs": zeros,
                    "rollout_logprobs": zeros})  # fmt: skip
    assert ["rollout_logprobs" in messages for messages in listening.batches] == [True, False]
    expected = (logits / 2).log_softmax(-1).gather(2, labels[..., None])[..., 0]
    assert torch.allclose(listening.batches[1]["logprobs"], expected)


def test_nothing_of_the_graph_is_kept(listening):
    trainer = made(beta=0.1)
    tensors = GrpoTensors(trainer, listening)
    given = torch.zeros(B, T, requires_grad=True) * 2
    kept = weakref.ref(given)
    step(tensors, trainer, inputs(ref_per_token_logps=torch.zeros(B, T)), given)
    assert not listening.batches[0]["logprobs"].requires_grad
    del given
    assert kept() is None


def test_without_trl_it_says_what_to_install(monkeypatch):
    import sys

    import tracker_diag_trl

    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(MissingExtra, match=r"tracker-diag\[trl\]"):
        tracker_diag_trl.attach(object())
    with pytest.raises(AttributeError, match="nothing"):
        _ = tracker_diag_trl.nothing


def generation(prompts, completions):
    """Of texts with their marks, what `_generate_and_score_completions` gives; padded as TRL pads."""
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen2_5_chat_template

    words = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT)
    words.chat_template = qwen2_5_chat_template
    given, text = (
        words(texts, return_tensors="pt", padding=True, padding_side=side, add_special_tokens=False)
        for texts, side in ((prompts, "left"), (completions, "right"))
    )
    return words, {
        "prompt_ids": given["input_ids"], "prompt_mask": given["attention_mask"],
        "completion_ids": text["input_ids"], "completion_mask": text["attention_mask"],
        "advantages": torch.ones(len(prompts)), "ref_per_token_logps": torch.zeros(text["input_ids"].shape),
    }  # fmt: skip


ASK = "<|im_start|>user\nget 4<|im_end|>\n<|im_start|>assistant\n"
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": "4"}}\n</tool_call><|im_end|>'
RESULT = "\n<|im_start|>user\n<tool_response>\nvalue 42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
ANSWER = "42<|im_end|>"


def counted(words, batch, inputs, order, **more):
    """Tokens by slice, of the rows in `order`, as TRL shuffles them."""
    trainer = made(beta=0.1, num_generations=2, **more)
    trainer.processing_class = words
    monitor = Monitor()
    tensors = GrpoTensors(trainer, monitor)
    tensors.rows.generated(batch, {"inputs": inputs})
    shuffled = {name: values[order] for name, values in batch.items()}
    step(tensors, trainer, shuffled, torch.zeros(batch["completion_ids"].shape))
    monitor.log({}, 0)
    assert monitor.failures == []
    table = monitor.slices_table()
    result = {row[1]: row[table.columns.index("count")] for row in table.rows if row[0] == "reference"}
    return [result.get(name, 0) for name in ("all", "text_only", "post_tool")]


ROLL = {"rollout_func": lambda prompts, trainer: None}


@pytest.mark.slow
@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1]])
def test_rows_with_several_prompts_a_task_are_of_unknown_context_unless_a_mask_is_given(order, caplog):
    """A rollout function that gives one row a message: nobody has said whether a tool answered before the row."""
    prompts = [ASK, ASK + CALL + RESULT, ASK + "other", ASK + CALL + RESULT + "other"]
    words, batch = generation(prompts, [CALL, ANSWER, CALL, ANSWER])
    n = int(batch["completion_mask"].sum())
    assert counted(words, batch, [{}] * 4, order, **ROLL) == [n, 0, 0]
    assert "nobody has said whether a tool result comes before them" in caplog.text
    marked = batch | {"tool_mask": torch.ones_like(batch["completion_ids"])}  # what the user says counts
    assert counted(words, marked, [{}] * 4, order, **ROLL) == [n, n, 0]


@pytest.mark.slow
def test_two_prompts_for_two_tasks_are_those_of_the_tasks():
    words, batch = generation([ASK, ASK, ASK + "other", ASK + "other"], [CALL, ANSWER, CALL, ANSWER])
    n = int(batch["completion_mask"].sum())
    assert counted(words, batch, [{}] * 4, [0, 1, 2, 3], **ROLL) == [n, n, 0]


@pytest.mark.slow
def test_of_a_dataset_the_messages_say_whether_a_tool_has_answered():
    words, batch = generation([ASK, ASK + CALL + RESULT], [ANSWER, ANSWER])
    plain, under_way = [{"role": "user", "content": "get 4"}], [{"role": "tool", "content": "value 42"}]
    n = len(words(ANSWER)["input_ids"])
    assert counted(words, batch, [{"prompt": plain}, {"prompt": under_way}], [1, 0]) == [2 * n, n, n]
    assert counted(words, batch, [{"prompt": "text"}, {"prompt": "more text"}], [1, 0]) == [2 * n, 2 * n, 0]


@pytest.mark.slow
def test_several_turns_in_a_completion_without_a_mask_are_of_unknown_context_and_it_is_said_once(caplog):
    words, batch = generation([ASK, ASK], [CALL + RESULT + ANSWER, ANSWER])
    n = int(batch["completion_mask"].sum())
    alone = len(words(ANSWER)["input_ids"])
    assert counted(words, batch, [{}] * 2, [1, 0], **ROLL) == [n, alone, 0]
    (warned,) = [message for message in caplog.messages if "env_mask" in message]
    assert warned.startswith("1 of 2 completions of rollout_func have an end token before their last token")
    marked = batch | {"tool_mask": torch.ones_like(batch["completion_ids"])}
    assert counted(words, marked, [{}] * 2, [1, 0], **ROLL) == [n, n, 0]
    ended, batch = generation([ASK, ASK], [CALL, ANSWER])  # each ends with its end token
    n = int(batch["completion_mask"].sum())
    assert counted(ended, batch, [{}] * 2, [1, 0], **ROLL) == [n, n, 0]
