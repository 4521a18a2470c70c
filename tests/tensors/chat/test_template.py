"""What is read off the templates of current models, and what cannot be read."""

import re

import numpy as np
import pytest

from tracker_diag.tensors.chat import ChatError, ChatFormat

USER, REPLY = "<|im_start|>user\n", "<|im_start|>assistant\n"
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
FROM_TRL = {  # what each writes around calls and results differs from those above
    "qwen3": USER + "<tool_response>\nvalue\n</tool_response><|im_end|>\n" + REPLY,
    "qwen3_5_think": USER + "<tool_response>\nvalue\n</tool_response><|im_end|>\n" + REPLY + "<think>\n",
    "llama3_1": HEADER.format("ipython") + '"value"<|eot_id|>' + HEADER.format("assistant"),
    "gptoss": '<|start|>functions.search to=assistant<|channel|>commentary<|message|>"value"<|end|><|start|>assistant',
    "gemma4": 'response:search{value:<|"|>value<|"|>}<tool_response|>',
    "glm4moe": "<|observation|>\n<tool_response>\nvalue\n</tool_response><|assistant|>",
    "lfm2": "<|im_start|>tool\n<|tool_response_start|>value<|tool_response_end|><|im_end|>\n<|im_start|>assistant\n",
    "nemotron_3_nano": USER + "<tool_response>\nvalue\n</tool_response>\n<|im_end|>\n" + REPLY + "<think>\n",
}


@pytest.mark.by_day("qwen3", "llama3_1")
@pytest.mark.slow
@pytest.mark.parametrize("family", FROM_TRL)
def test_templates_of_current_models(family, made):
    """The templates themselves, as TRL ships them, rendered with a call and its result."""
    from trl import chat_template_utils

    template = getattr(chat_template_utils, f"{family}_chat_template")
    marks = r"<\|[^|'\" {}]+\|>|</?[a-z_]+>|<\|[a-z_]+>|<[a-z_]+\|>|<\|\"\|>"
    tokenizer = made.train(template)
    tokenizer.add_tokens(sorted(set(re.findall(marks, template))), special_tokens=True)
    chat = ChatFormat.of(tokenizer)
    function = {"name": "search", "arguments": {"city": "two"}}
    said = [
        {"role": "user", "content": "find two"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "a", "function": function}]},
        {"role": "tool", "name": "search", "tool_call_id": "a", "content": "value"},
    ]
    prompt = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    answer = "the answer is 7"
    ids = np.array(tokenizer.encode(prompt + answer, add_special_tokens=False))
    found = chat.label(ids)
    after = "".join(tokenizer.decode(ids[found.after_tool]))
    assert after == answer
    between = tokenizer.decode(ids[found.response_mask & ~found.model_mask])
    assert between.strip() == FROM_TRL[family].strip()
    if chat.delimiters.call or family in {"gptoss", "gemma4"}:
        assert found.tool_names == ("search",)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no') }}", "chat template: TemplateError: no"),
        ("{% for m in messages %}{{ m.content[0].text }}{% endfor %}", "chat template: leaves out the user's text"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "chat template: nothing between user and assistant"),
        (
            "{% for m in messages %}{{ m.content + ('<|a|>' if m.role == 'user' else '') }}{% endfor %}",
            "chat template: nothing between assistant and user",
        ),
    ],
)
def test_a_template_that_cannot_be_read_is_told(template, message, made):
    with pytest.raises(ChatError, match=re.escape(message)):
        ChatFormat.of(made.train(template + "{# <|a|> #}"))


def test_a_tokenizer_without_a_template_is_told(made):
    tokenizer = made.train(made.chatml)
    tokenizer.chat_template = None
    with pytest.raises(ChatError, match="chat template: ValueError"):
        ChatFormat.of(tokenizer)
