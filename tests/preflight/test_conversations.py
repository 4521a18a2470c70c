"""Who wrote a token, by the template's own generation marks: on templates that TRL trains, and where there are none."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.errors import BatchError, DiagError
from tracker_diag.preflight.conversations import model_tokens, training_template

CHECKPOINT = Path(__file__).parents[1] / "integrations" / "trl" / "checkpoint"
CALL = {"type": "function", "function": {"name": "lookup", "arguments": {"key": "4"}}}
MESSAGES = [
    {"role": "user", "content": "get 4"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "lookup", "content": "value 42"},
    {"role": "assistant", "content": "42"},
]
LOOKUP = {"type": "function", "function": {"name": "lookup", "description": "a value", "parameters": {}}}
WRITTEN = '\n<tool_call>\n{"name": "lookup", "arguments": {"key": "4"}}\n</tool_call><|im_end|>\n\n42<|im_end|>\n'
"""TRL counts the line break after a header and after an end as the model's, as it trains on them."""

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {% if m.role == 'assistant' %}"
    "{%- generation -%}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}"
)


@pytest.fixture
def tokenizer():
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen2_5_chat_template

    words = PreTrainedTokenizerFast.from_pretrained(CHECKPOINT)
    words.chat_template = qwen2_5_chat_template
    return words


def rendered(tokenizer, messages, **more):
    return np.array(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, **more))


def test_a_template_that_trl_trains_says_what_the_model_wrote(tokenizer):
    ids = rendered(tokenizer, MESSAGES)
    assert tokenizer.decode(ids[model_tokens(tokenizer, [MESSAGES], [ids])]) == WRITTEN
    with_tools = rendered(tokenizer, MESSAGES, tools=[LOOKUP])
    written = model_tokens(tokenizer, [{"messages": MESSAGES, "tools": [LOOKUP]}], [with_tools])
    assert tokenizer.decode(with_tools[written]) == WRITTEN


def test_a_template_with_marks_of_its_own_needs_no_trl(tokenizer, monkeypatch):
    tokenizer.chat_template = MARKED
    monkeypatch.setitem(sys.modules, "trl", None)
    assert training_template(tokenizer) == MARKED
    messages = [{"role": "user", "content": "get 4"}, {"role": "assistant", "content": "42"}]
    ids = rendered(tokenizer, messages)
    assert tokenizer.decode(ids[model_tokens(tokenizer, [messages], [ids])]) == "42<|im_end|>"
    assert model_tokens(tokenizer, [messages], [ids[:-1]]).sum() == 2  # a sequence that was cut off


def test_the_mask_audit_takes_it_where_the_batch_has_no_masks(tokenizer):
    long, short = rendered(tokenizer, MESSAGES), rendered(tokenizer, MESSAGES[:2])
    ids = np.zeros((2, len(long)), int)
    ids[0], ids[1, : len(short)] = long, short
    attended = np.zeros(ids.shape, int)
    attended[0], attended[1, : len(short)] = 1, 1
    model = np.zeros(ids.shape, int)
    model[attended == 1] = model_tokens(tokenizer, [MESSAGES, MESSAGES[:2]], [long, short])

    def statuses(loss):
        batch = {"token_ids": ids, "attention_mask": attended, "loss_mask": loss}
        report = td.preflight(batch=batch, tokenizer=tokenizer, messages=[MESSAGES, MESSAGES[:2]])
        return [check.status for check in report.checks if check.name in {"mask_prompt", "mask_tools", "mask_coverage"}]

    assert statuses(model) == ["pass", "pass", "pass"]
    assert statuses(attended) == ["fail", "fail", "pass"]


def test_what_cannot_be_known_is_refused_with_what_to_do(tokenizer, monkeypatch):
    ids = rendered(tokenizer, MESSAGES)
    changed = ids.copy()
    changed[5] += 1
    with pytest.raises(BatchError, match=r"token_ids: sequence 0 with other ids from token 5 given.*response_mask"):
        model_tokens(tokenizer, [MESSAGES], [changed])
    longer = np.append(ids, 7)
    with pytest.raises(BatchError, match=rf"other ids from token {len(ids)} given"):
        model_tokens(tokenizer, [MESSAGES], [longer])
    with pytest.raises(BatchError, match="messages: 1 conversations given, expected 2"):
        model_tokens(tokenizer, [MESSAGES], [ids, ids])
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.setitem(sys.modules, "trl.chat_template_utils", None)
    with pytest.raises(DiagError, match=re.escape("without {% generation %} marks given") + ".*install trl"):
        training_template(tokenizer)
    monkeypatch.undo()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(DiagError, match="TRL has no training form of it: put the marks in, or give response_mask"):
        training_template(tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(DiagError, match=r"tokenizer: [A-Za-z]+ without a chat template given"):
        training_template(tokenizer)
