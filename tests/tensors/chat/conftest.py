"""Families of chat templates: how each writes a conversation, piece by piece, and a tokenizer trained for it."""

import json
import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tracker_diag.tensors.chat import ChatFormat

WORDS = "find the answer of step two, look up k42 and tell: value is 7\n\nok {} [] \" ' <x> name arguments city"


@dataclass
class Piece:
    text: str
    author: str  # user, model or tool
    control: bool = False
    name: str = ""  # of the tool that answers


def chatml(turns):
    open_user = False
    for turn in turns:
        if open_user and turn[0] != "tool":
            yield Piece("<|im_end|>\n", "tool")
            open_user = False
        if turn[0] == "user":
            yield Piece("<|im_start|>user\n", "user", True)
            yield Piece(turn[1], "user")
            yield Piece("<|im_end|>\n", "user", True)
        elif turn[0] == "tool":
            yield Piece("<|im_start|>user" if not open_user else "", "tool", True)
            yield Piece("\n<tool_response>\n", "tool", True)
            yield Piece(turn[2], "tool", name=turn[1])
            yield Piece("\n</tool_response>", "tool", True)
            open_user = True
        else:
            yield Piece("<|im_start|>assistant\n", "user", True)
            yield Piece(turn[1], "model")
            for i, (name, arguments) in enumerate(turn[2]):
                yield Piece("\n" if i or turn[1] else "", "model", bool(i))
                yield Piece('<tool_call>\n{"name": "', "model", True)
                yield Piece(name, "model")
                yield Piece('", "arguments": ', "model", True)
                yield Piece(json.dumps(arguments), "model")
                yield Piece("}\n</tool_call>", "model", True)
            yield Piece("<|im_end|>", "model", True)
            yield Piece("\n", "user")


CHATML = """{% for m in messages %}{% if m.role == 'tool' -%}
{% if not loop.previtem or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif -%}
{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif -%}
{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for c in m.tool_calls or [] -%}
{% if m.content or not loop.first %}{{ '\n' }}{% endif -%}
{{ '<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}
{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor -%}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def llama(turns):
    yield Piece("<|begin_of_text|>", "user", True)
    for turn in turns:
        role = {"user": "user", "tool": "ipython", "model": "assistant"}[turn[0]]
        author = "tool" if turn[0] == "tool" else "user"
        yield Piece(f"<|start_header_id|>{role}<|end_header_id|>\n\n", author, True)
        if turn[0] == "model" and turn[2]:
            ((name, arguments),) = turn[2]
            yield Piece('{"name": "', "model", True)
            yield Piece(name, "model")
            yield Piece('", "parameters": ', "model", True)
            yield Piece(json.dumps(arguments), "model")
            yield Piece("}", "model", True)
        else:
            yield Piece(turn[1] if turn[0] != "tool" else turn[2], turn[0], name=turn[1] if turn[0] == "tool" else "")
        yield Piece("<|eot_id|>", turn[0], True)


LLAMA = """{{ '<|begin_of_text|>' }}{% for m in messages -%}
{% set role = 'ipython' if m.role == 'tool' else m.role -%}
{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}{% if m.tool_calls -%}
{% set f = m.tool_calls[0].function -%}
{{ '{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}' -}}
{% else %}{{ m.content }}{% endif %}{{ '<|eot_id|>' }}{% endfor -%}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""


def mistral(turns):
    yield Piece("<s>", "user", True)
    for turn in turns:
        if turn[0] == "user":
            yield Piece("[INST] ", "user", True)
            yield Piece(turn[1], "user")
            yield Piece("[/INST]", "user", True)
        elif turn[0] == "tool":
            yield Piece('[TOOL_RESULTS]{"content": ', "tool", True)
            yield Piece(json.dumps(turn[2], ensure_ascii=False), "tool", name=turn[1])
            yield Piece("}[/TOOL_RESULTS]", "tool", True)
        else:
            for i, (name, arguments) in enumerate(turn[2]):
                yield Piece('[TOOL_CALLS][{"name": "' if i == 0 else ', {"name": "', "model", True)
                yield Piece(name, "model")
                yield Piece('", "arguments": ', "model", True)
                yield Piece(json.dumps(arguments), "model")
                yield Piece(f', "id": "a{i}b2c3d4e"}}', "model", True)
            yield Piece("]" if turn[2] else turn[1], "model", bool(turn[2]))
            yield Piece("</s>", "model", True)


MISTRAL = """{{ '<s>' }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' -}}
{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]{"content": ' + m.content | tojson + '}[/TOOL_RESULTS]' -}}
{% elif m.tool_calls %}{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls -%}
{{ '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson -}}
{{ ', "id": "' + c.id + '"}' }}{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}{{ ']</s>' -}}
{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"""


def gemma(turns):
    yield Piece("<bos>", "user", True)
    for turn in turns:
        role = "model" if turn[0] == "model" else "user"
        yield Piece(f"<start_of_turn>{role}\n", "user", True)
        yield Piece(turn[1], turn[0])
        yield Piece("<end_of_turn>", turn[0], True)
        yield Piece("\n", "user")


GEMMA = """{{ '<bos>' }}{% for m in messages -%}
{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif -%}
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) -}}
{{ '\n' + m.content + '<end_of_turn>\n' }}{% endfor -%}
{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

CALLS, CALL, SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n"
CALL_END, CALLS_END = "\n```<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"


def deepseek(turns):
    yield Piece("<｜begin▁of▁sentence｜>", "user", True)
    before = None
    for turn, after in zip(turns, [*turns[1:], (None,)], strict=True):
        if turn[0] == "user":
            yield Piece("<｜User｜>", "user", True)
            yield Piece(turn[1], "user")
            yield Piece("<｜Assistant｜>", "user", True)
        elif turn[0] == "tool":
            yield Piece("<｜tool▁outputs▁begin｜>" if before != "tool" else "", "tool", True)
            yield Piece("<｜tool▁output▁begin｜>", "tool", True)
            yield Piece(turn[2], "tool", name=turn[1])
            yield Piece("<｜tool▁output▁end｜>", "tool", True)
            yield Piece("<｜tool▁outputs▁end｜>" if after[0] != "tool" else "", "tool", True)
        else:
            yield Piece(turn[1], "model")
            for i, (name, arguments) in enumerate(turn[2]):
                yield Piece(("" if i else CALLS) + CALL, "model", True)
                yield Piece(name, "model")
                yield Piece(SEP, "model", True)
                yield Piece(json.dumps(arguments), "model")
                yield Piece(CALL_END, "model", True)
            yield Piece((CALLS_END if turn[2] else "") + "<｜end▁of▁sentence｜>", "model", True)
        before = turn[0]


DEEPSEEK = """{{ '<｜begin▁of▁sentence｜>' }}{% for m in messages %}{% if m.role == 'user' -%}
{{ '<｜User｜>' + m.content + '<｜Assistant｜>' }}{% elif m.role == 'tool' -%}
{% if loop.previtem.role != 'tool' %}{{ '<｜tool▁outputs▁begin｜>' }}{% endif -%}
{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' -}}
{% if loop.last or loop.nextitem.role != 'tool' %}{{ '<｜tool▁outputs▁end｜>' }}{% endif -%}
{% else %}{{ m.content }}{% for c in m.tool_calls or [] %}{% if loop.first %}{{ '<｜tool▁calls▁begin｜>' }}{% endif -%}
{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\n```json\n' + c.function.arguments -}}
{{ '\n```<｜tool▁call▁end｜>' }}{% if loop.last %}{{ '<｜tool▁calls▁end｜>' }}{% endif %}{% endfor -%}
{{ '<｜end▁of▁sentence｜>' }}{% endif %}{% endfor %}"""


def harmony(turns):
    """As the model writes it: thoughts in a message of their own, and another order of the call's header."""
    for turn, after in zip(turns, [*turns[1:], None], strict=True):
        if turn[0] == "user":
            yield Piece("<|start|>user<|message|>", "user", True)
            yield Piece(turn[1], "user")
            yield Piece("<|end|>", "user", True)
        elif turn[0] == "tool":
            yield Piece(f"<|start|>functions.{turn[1]} to=assistant<|channel|>commentary<|message|>", "tool", True)
            yield Piece(turn[2], "tool", name=turn[1])
            yield Piece("<|end|>", "tool", True)
        else:
            yield Piece("<|start|>assistant", "user", True)
            yield from (
                Piece("<|channel|>", "model", True),
                Piece("analysis", "model"),
                Piece("<|message|>", "model", True),
                Piece(turn[1], "model"),
                Piece("<|end|><|start|>assistant", "model", True),
                Piece("<|channel|>", "model", True),
            )
            for name, arguments in turn[2]:
                yield Piece("commentary", "model")
                yield Piece(" to=functions.", "model", True)
                yield Piece(f"{name} ", "model")
                yield Piece("<|constrain|>", "model", True)
                yield Piece("json", "model")
                yield Piece("<|message|>", "model", True)
                yield Piece(json.dumps(arguments), "model")
                yield Piece("<|call|>", "model", True)
            if not turn[2]:
                yield Piece("final", "model")
                yield Piece("<|message|>", "model", True)
                yield Piece(turn[1], "model")
                yield Piece("<|end|>" if after else "<|return|>", "model", True)


HARMONY = """{# <|constrain|> #}{% for m in messages %}{% if m.role == 'tool' -%}
{{ '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' -}}
{% elif m.tool_calls %}{% set f = m.tool_calls[0].function -%}
{{ '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' -}}
{{ f.arguments | tojson + '<|call|>' }}{% elif m.role == 'assistant' -%}
{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') -}}
{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor -%}
{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

# The generator of pieces, the template, and how many tools a turn may call.
FAMILIES = {
    "chatml": (chatml, CHATML, 2),
    "llama": (llama, LLAMA, 1),
    "mistral": (mistral, MISTRAL, 2),
    "gemma": (gemma, GEMMA, 0),
    "deepseek": (deepseek, DEEPSEEK, 2),
    "harmony": (harmony, HARMONY, 1),
}
MARK = re.compile(
    r"<\|[^|]+\|>|<｜[^｜]+｜>|</?(?:s|bos|start_of_turn|end_of_turn|tool_call|tool_response)>|\[/?[A-Z_]+\]"
)


def train(template, *, spaces=False):
    """A small tokenizer with the template's delimiters as added tokens; bytes, or spaces as Mistral's and Gemma's."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=spaces, unk_token="<unk>" if spaces else None))
    split = pre_tokenizers.Split(Regex(r"\n|\d"), "isolated")
    spaced = pre_tokenizers.Metaspace(prepend_scheme="first")
    kind = spaced if spaces else pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, kind])
    tokenizer.decoder = (
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first"), decoders.Fuse()])
        if spaces
        else decoders.ByteLevel()
    )
    alphabet = [f"<0x{i:02X}>" for i in range(256)] + ["<unk>"] if spaces else []
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=alphabet,
        initial_alphabet=[] if spaces else pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_tokens(sorted(set(MARK.findall(template))), special_tokens=True)
    fast.chat_template = template
    return fast


def plain(tokenizer, text):
    """Ids of `text` without any added token, though it may spell one."""
    tokenizer.backend_tokenizer.encode_special_tokens = True
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    tokenizer.backend_tokenizer.encode_special_tokens = False
    return ids


def truth(pieces, tokenizer):
    """Ids, and the labels that follow from who wrote each piece."""
    rows, pending, turn, answered, tool = [], [], 0, False, ""
    wrote = False
    for piece in pieces:
        if not piece.text:
            continue
        ids = tokenizer.encode(piece.text, add_special_tokens=False) if piece.control else plain(tokenizer, piece.text)
        if piece.author == "model":
            result = any(author == "tool" for _, author, _ in pending)
            rows += [(one, result, False, False, -1, "", control) for one, _, control in pending]
            pending, wrote = [], True
            rows += [(one, True, True, answered, turn, tool, piece.control) for one in ids]
        else:
            if wrote:
                turn, wrote = turn + 1, False
            if piece.author == "tool":
                answered, tool = True, piece.name or tool
            pending += [(one, piece.author, piece.control) for one in ids]
    result = any(author == "tool" for _, author, _ in pending)
    rows += [(one, result, False, False, -1, "", control) for one, _, control in pending]
    return [np.array(column) for column in zip(*rows, strict=True)]


def messages(turns, arguments):
    for turn in turns:
        if turn[0] == "user":
            yield {"role": "user", "content": turn[1]}
        elif turn[0] == "tool":
            yield {"role": "tool", "name": turn[1], "content": turn[2]}
        else:
            calls = [
                {"type": "function", "id": f"a{i}b2c3d4e", "function": {"name": name, "arguments": arguments(given)}}
                for i, (name, given) in enumerate(turn[2])
            ]
            yield {"role": "assistant", "content": turn[1]} | ({"tool_calls": calls} if calls else {})


@pytest.fixture(scope="session")
def families():
    """By name: the generator of pieces, its tokenizer, the format read off it, and how many tools a turn may call."""
    found = {}
    for family, (pieces, template, calls) in FAMILIES.items():
        tokenizer = train(template)
        found[family] = (pieces, tokenizer, ChatFormat.of(tokenizer), calls)
    return found


@pytest.fixture(scope="session")
def made():
    """The tools that the tests share."""
    return SimpleNamespace(train=train, truth=truth, messages=messages, chatml=CHATML, mistral=(mistral, MISTRAL))
