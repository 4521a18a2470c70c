"""Labels from token ids alone equal those that are known from how the tokens were made, on templates of all kinds."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.chat import ChatFormat
from tracker_diag.tensors.slices import Names, label

FAMILIES = ("chatml", "llama", "mistral", "gemma", "deepseek", "harmony")

# What the family's model does not write, or what its users spell out, too.
text = st.lists(
    st.sampled_from(
        [
            "find",
            " the",
            " answer",
            " two",
            "\n",
            "7",
            " {}",
            "é",
            " <|im_start|>",
            "assistant",
            " [/INST]",
            " name",
            "?",
        ]
    ),
    min_size=1,
    max_size=6,
).map(lambda words: "k" + "".join(words) + ".")
call = st.tuples(
    st.sampled_from(["search", "look_up", "py.run"]),
    st.dictionaries(st.sampled_from(["name", "city"]), st.sampled_from(["two", '{"name": "x"}', "k42"]), max_size=2),
)


@st.composite
def conversations(draw, calls):
    turns = []
    for _ in range(draw(st.integers(1, 3))):
        turns.append(("user", draw(text)))
        for _ in range(draw(st.integers(0, 3)) if calls else 0):
            made = draw(st.lists(call, min_size=1, max_size=calls))
            turns.append(("model", "", made))
            turns += [("tool", name, draw(text)) for name, _ in made]
        turns.append(("model", draw(text), []))
    return turns


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=settings().max_examples * 2 // 5)
@given(data=st.data())
def test_labels_are_those_of_the_construction(families, made, family, data):
    pieces, tokenizer, chat, calls = families[family]
    turns = data.draw(conversations(calls))
    written = list(pieces(turns))
    if family != "harmony":  # the pieces are what the template writes
        arguments = json.dumps if family == "deepseek" else dict
        conversation = list(made.messages(turns, arguments))
        assert "".join(piece.text for piece in written) == tokenizer.apply_chat_template(conversation, tokenize=False)
    ids, response, model, after, turn, tool, control = made.truth(written, tokenizer)
    found = chat.label(ids)
    np.testing.assert_array_equal(found.model_mask, model)
    np.testing.assert_array_equal(found.response_mask, response)
    np.testing.assert_array_equal(found.after_tool, after)
    np.testing.assert_array_equal(found.turn[model], turn[model])
    named = np.array([*found.tool_names, ""], dtype=object)[found.tool]
    np.testing.assert_array_equal(named[model], tool[model])
    np.testing.assert_array_equal(found.control[model], control[model])


def conversation(made, pieces, tokenizer, n=0):
    turns = [
        ("user", f"k find {n}"),
        ("model", "", [("search", {"city": "two"})]),
        ("tool", "search", "value is 7"),
        ("model", "k 7", []),
    ]
    return made.truth(list(pieces(turns)), tokenizer)


def test_rows_packed_and_torch(families, made):
    import torch

    pieces, tokenizer, chat, _ = families["chatml"]
    rows = [conversation(made, pieces, tokenizer, n) for n in (1, 22, 333)]
    width = max(len(row[0]) for row in rows) + 2
    pad = tokenizer.convert_tokens_to_ids("<|im_end|>")  # which also ends turns
    ids, mask = np.full((3, width), pad), np.zeros((3, width), int)
    for i, row in enumerate(rows):
        left = i % 2  # padding on either side
        ids[i, left : left + len(row[0])] = row[0]
        mask[i, left : left + len(row[0])] = 1
    padded = chat.label(torch.tensor(ids), attention_mask=torch.tensor(mask))
    packed = chat.label(
        np.concatenate([row[0] for row in rows]), sequence_ids=np.repeat([4, 2, 9], [len(r[0]) for r in rows])
    )
    for name in ("response_mask", "model_mask", "after_tool", "turn", "tool", "control"):
        np.testing.assert_array_equal(getattr(padded, name)[mask == 1], getattr(packed, name), err_msg=name)
    assert not padded.response_mask[mask == 0].any()
    assert not padded.control[mask == 0].any()
    assert (padded.turn[mask == 0] == -1).all()
    np.testing.assert_array_equal(packed.model_mask, np.concatenate([row[2] for row in rows]).astype(bool))
    assert packed.tool_names == ("search",)


def test_a_token_batch_takes_them_and_slices_as_they_say(families, rng, made):
    pieces, tokenizer, chat, _ = families["deepseek"]
    ids, *_ = conversation(made, pieces, tokenizer)
    found = chat.label(ids[None])
    logprobs = rng.normal(size=(1, len(ids)))
    batch = TokenBatch.of(logprobs=logprobs, old_logprobs=logprobs, **found.tensors())
    names = Names()
    rows = label(batch, names)
    model = found.model_mask[0]
    np.testing.assert_array_equal(rows["context"][model], found.after_tool[0][model])
    np.testing.assert_array_equal(rows["turn"][model], found.turn[0][model])
    np.testing.assert_array_equal(rows["control"][model] == 0, found.control[0][model])
    np.testing.assert_array_equal(rows["tool"][model] == 0, found.after_tool[0][model])
    assert names.rows["tool"] == ["search"]
    assert "after_tool_k" in rows


def test_without_the_prompt_a_sequence_begins_in_the_models_turn(families, made):
    pieces, tokenizer, chat, _ = families["chatml"]
    ids, _, model, after, *_ = conversation(made, pieces, tokenizer)
    start = np.flatnonzero(model)[0]
    found = chat.label(ids[start:], begins_in_model=True)
    np.testing.assert_array_equal(found.model_mask, model[start:])
    np.testing.assert_array_equal(found.after_tool, after[start:])


def test_a_turn_that_was_cut_off_ends_where_the_next_begins(families, made):
    for family in ("chatml", "llama", "harmony"):
        pieces, tokenizer, chat, _ = families[family]
        turns = [("user", "k two"), ("model", "", [("search", {})]), ("tool", "search", "7"), ("model", "k 7", [])]
        written = list(pieces(turns))
        stop = (
            max(i for i, piece in enumerate(written) if piece.author == "tool" and written[i - 1].author != "tool") - 1
        )
        while written[stop].author != "model":
            stop -= 1
        del written[stop]  # what ends the turn with the call
        ids, _, model, after, *_ = made.truth(written, tokenizer)
        found = chat.label(ids)
        np.testing.assert_array_equal(found.after_tool, after, err_msg=family)
        text = [tokenizer.decode([one]) for one, wrong in zip(ids, found.model_mask != model, strict=True) if wrong]
        assert "".join(text).strip() == "", family  # at most the line's end after the missing token


def test_a_sequence_that_ends_in_the_middle_of_a_turn_or_after_a_result(families, made):
    pieces, tokenizer, chat, _ = families["llama"]
    ids, response, model, *_ = conversation(made, pieces, tokenizer)
    for end in range(1, len(ids)):
        found = chat.label(ids[:end])
        np.testing.assert_array_equal(found.model_mask, model[:end])
        assert not (found.response_mask & ~response[:end].astype(bool)).any()


def test_tools_that_the_template_does_not_know_are_no_tools(families):
    assert families["gemma"][2].delimiters.result is None


def test_tokens_with_a_space_in_front(made):
    """As Mistral's and Gemma's: the text's first space is the tokenizer's own, and bytes stand for what it lacks."""
    pieces, template = made.mistral
    tokenizer = made.train(template, spaces=True)
    chat = ChatFormat.of(tokenizer)
    turns = [("user", "find two"), ("model", "", [("search", {"city": "two"})]), ("tool", "search", "value é")]
    turns += [("model", "the answer is é 7", [])]
    written = [piece for piece in pieces(turns) if piece.text]
    text = "".join(piece.text for piece in written)
    ends = np.cumsum([len(piece.text) for piece in written])
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    found = chat.label(np.array(encoded["input_ids"]))
    for span, model, control in zip(encoded["offset_mapping"], found.model_mask, found.control, strict=True):
        part = text[slice(*span)]
        if part.strip():  # a space alone has no place of its own in what the tokenizer tells
            piece = written[np.searchsorted(ends, span[0] + len(part) - len(part.lstrip()), side="right")]
            assert model == (piece.author == "model"), (part, piece)
            assert control == piece.control or not model, (part, piece)
    assert found.tool_names == ("search",)


def test_the_trainers_own_arguments_of_the_template_count(made):
    empty = "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"
    think = made.chatml.removesuffix("{% endif %}") + empty + "{% endif %}"
    tokenizer = made.train(think)
    ids = np.array(
        tokenizer.encode("<|im_start|>user\nk<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nk 7<|im_end|>")
    )
    sure, unsure = (ChatFormat.of(tokenizer, **given).label(ids) for given in ({"enable_thinking": False}, {}))
    assert tokenizer.decode(ids[sure.model_mask]) == "k 7<|im_end|>"
    assert tokenizer.decode(ids[unsure.model_mask]).startswith("<think>")
