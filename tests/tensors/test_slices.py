import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.metrics.series import FIRST, NAMED_ROWS
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.slices import Names, label, size

TEXT, POST, OUT = 0, 1, 3


def label_context(batch):
    return label(batch, Names())["context"]


def labels(response, model, after_tool=None):
    response, model = np.array(response, bool), np.array(model, bool)
    given = {} if after_tool is None else {"after_tool": np.array(after_tool, bool)}
    zero = np.zeros(model.shape, np.float32)
    batch = TokenBatch.validated(logprobs=zero, old_logprobs=zero, response_mask=response, model_mask=model, **given)
    return label_context(batch).reshape(model.shape).tolist()


def test_model_tokens_before_and_after_a_tool_result():
    #          prompt  call    tool    answer  padding
    response = [[0, 0, 1, 1, 1, 1, 1, 1, 0]]
    model = [[0, 0, 1, 1, 0, 0, 1, 1, 0]]
    assert labels(response, model) == [[OUT, OUT, TEXT, TEXT, OUT, OUT, POST, POST, OUT]]


def test_a_turn_whose_prompt_ends_with_a_tool_result_is_after_it_from_its_first_token_on():
    """One trajectory, a turn a row: the tool's answer to the first row is in the second row's prompt."""
    model = np.array([[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 1, 0, 1, 1]], bool)
    response = model | np.array([[0] * 5, [0] * 5, [0, 0, 1, 0, 0]], bool)
    zero = np.zeros(model.shape, np.float32)
    given = {"logprobs": zero, "old_logprobs": zero, "model_mask": model, "response_mask": response}
    batch = TokenBatch.validated(**given, begins_after_tool=[False, True, False])
    rows = label(batch, Names())
    context, since = (rows[name].reshape(model.shape).tolist() for name in ("context", "after_tool_k"))
    assert context[0] == [OUT, TEXT, TEXT, OUT, OUT]
    assert context[1] == [OUT, OUT, POST, POST, OUT]
    assert context[2] == [OUT, TEXT, OUT, POST, POST]
    assert (since[1], since[2]) == ([2, 2, 0, 0, 2], [2, 2, 2, 0, 0])
    assert "turn" not in rows  # which one a row is, nobody has said
    ragged = {name: [row[:4] for row in part] for name, part in given.items()}
    packed = TokenBatch.validated(**ragged, begins_after_tool=[False, True, False])
    assert label_context(packed).reshape(3, 4).tolist() == [row[:4] for row in context]


def test_a_tool_result_counts_only_in_its_own_sequence():
    response = [[1, 1, 1], [1, 1, 1]]
    model = [[1, 0, 1], [1, 1, 1]]
    assert labels(response, model) == [[TEXT, OUT, POST], [TEXT, TEXT, TEXT]]


def test_without_a_response_mask_the_leading_gap_is_the_prompt():
    zero = np.zeros((1, 6), np.float32)
    model = np.array([[0, 0, 1, 0, 1, 0]], bool)
    batch = TokenBatch.validated(logprobs=zero, old_logprobs=zero, model_mask=model)
    assert label_context(batch).tolist() == [OUT, OUT, TEXT, OUT, POST, OUT]


def test_what_stands_before_the_first_model_token_is_the_prompt_whatever_the_response_mask_says():
    assert labels([[1, 1, 1, 1, 1]], [[0, 0, 1, 0, 1]]) == [[OUT, OUT, TEXT, OUT, POST]]


def test_an_unscored_token_taken_out_of_both_masks_is_no_tool_result():
    assert labels([[1, 1, 0, 1]], [[1, 1, 0, 1]]) == [[TEXT, TEXT, OUT, TEXT]]


def test_what_the_caller_knows_of_tools_goes_before_what_the_masks_show():
    assert labels([[1, 1, 1]], [[1, 1, 1]], after_tool=[[0, 0, 1]]) == [[TEXT, TEXT, POST]]
    assert labels([[1, 1, 1]], [[1, 0, 1]], after_tool=[[0, 0, 0]]) == [[TEXT, OUT, TEXT]]


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from("pmt."), min_size=5, max_size=5), min_size=1, max_size=5))
def test_the_slices_are_a_partition_of_the_model_tokens(rows):
    """Against a loop that reads each sequence as a person would: p prompt, m model, t tool, . padding."""
    if not any("m" in row for row in rows):
        return
    response = [[c in "mt" for c in row] for row in rows]
    model = [[c == "m" for c in row] for row in rows]
    expected = []
    for row in rows:
        begun, seen_tool, out = False, False, []
        for c in row:
            begun |= c == "m"
            seen_tool |= begun and c == "t"
            out.append((POST if seen_tool else TEXT) if c == "m" else OUT)
        expected.append(out)
    assert labels(response, model) == expected


def batch_of(text, **more):
    """One sequence: m model, t tool, p prompt, . padding."""
    zero = np.zeros((1, len(text)), np.float32)
    response, model = (np.array([[c in kinds for c in text]]) for kinds in ("mt", "m"))
    return TokenBatch.validated(logprobs=zero, old_logprobs=zero, response_mask=response, model_mask=model, **more)


def test_turns_are_counted_in_runs_of_tool_tokens():
    text = "pmmttmtmmtm."
    rows = label(batch_of(text), Names())["turn"].tolist()
    expected = [8, 0, 0, 8, 8, 1, 8, 2, 2, 8, 3, 8]
    assert rows == expected


def test_more_turns_than_rows_share_the_last():
    rows = label(batch_of("m" + "tm" * 12), Names())["turn"]
    assert rows[rows < size("turn")].tolist() == [0, 1, 2, 3, 4, 5, 6, *[7] * 6]


def test_the_first_tokens_after_a_result_are_separate_from_later_ones():
    text = "mm" + "t" + "m" * (FIRST + 3) + "t" + "m" * 2
    rows = label(batch_of(text), Names())["after_tool_k"].tolist()
    assert rows == [2, 2, 2, *[0] * FIRST, 1, 1, 1, 2, 0, 0]


def test_what_is_given_of_each_token_or_sequence_labels_it():
    zero, model = np.zeros((2, 3), np.float32), np.ones((2, 3), bool)
    batch = TokenBatch.validated(
        logprobs=zero, old_logprobs=zero, model_mask=model,
        tool=[["", "search", "search"], [None, "python", "search"]],
        env=["math", "web"],
        advantages=np.array([0.5, -0.5]),
        policy_lag=np.array([[0, 0, 1], [9, 9, -1]]),
        control=np.array([[1, 0, 0], [0, 0, 1]]),
        turn=np.array([[0, 1, 1], [0, 1, 2]]),
    )  # fmt: skip
    names = Names()
    rows = {name: row.tolist() for name, row in label(batch, names).items()}
    assert rows["tool"] == [NAMED_ROWS, 0, 0, NAMED_ROWS, 1, 0]
    assert rows["env"] == [0, 0, 0, 1, 1, 1]
    assert rows["advantage"] == [0, 0, 0, 1, 1, 1]
    assert rows["policy_lag"] == [0, 0, 1, 7, 7, 8]
    assert rows["control"] == [0, 1, 1, 1, 1, 0]
    assert rows["turn"] == [0, 1, 1, 0, 1, 2]
    assert names.slices("tool") == {"tool:search": 0, "tool:python": 1, "tool:other": NAMED_ROWS - 1}


def test_codes_go_by_their_names_and_unknown_ones_to_other():
    zero, model = np.zeros((1, 4), np.float32), np.ones((1, 4), bool)
    batch = TokenBatch.validated(
        logprobs=zero, old_logprobs=zero, model_mask=model,
        tool=np.array([[-1, 0, 1, 5]]), tool_names=("search", "a/b=c"),
    )  # fmt: skip
    names = Names()
    assert label(batch, names)["tool"].tolist() == [NAMED_ROWS, 0, 1, NAMED_ROWS - 1]
    assert names.rows["tool"] == ["search", "a_b_c"]


def test_too_many_names_share_other_and_are_reported():
    names = Names()
    rows = [names.row("env", f"env{i}") for i in range(40)]
    assert rows == [*range(NAMED_ROWS - 1), *[NAMED_ROWS - 1] * (41 - NAMED_ROWS)]
    assert names.folded["env"] == [f"env{i}" for i in range(NAMED_ROWS - 1, 40)]
    assert names.row("env", "env3") == 3


def test_the_rows_of_a_name_survive_a_save():
    names = Names()
    for i in range(20):
        names.row("tool", f"tool{i}")
    restored = Names.of_state(names.state_dict())
    assert (restored.rows, restored.folded) == (names.rows, names.folded)


@pytest.mark.slow
@given(st.lists(st.text("mt", min_size=1, max_size=30), min_size=1, max_size=4))
def test_packed_and_padded_sequences_are_labelled_alike(texts):
    texts = ["m" + text for text in texts]
    width = max(map(len, texts))
    padded = batch_from(texts, width)
    real = np.array([[i < len(text) for i in range(width)] for text in texts]).reshape(-1)
    ids = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    flat = "".join(texts)
    zero, model = np.zeros(len(flat), np.float32), np.array([c == "m" for c in flat])
    packed = TokenBatch.validated(
        logprobs=zero, old_logprobs=zero, model_mask=model, response_mask=np.ones(len(flat), bool), sequence_ids=ids
    )
    item, other = label(packed, Names()), label(padded, Names())
    for dimension, rows in item.items():
        np.testing.assert_array_equal(rows, other[dimension][real], err_msg=dimension)


def batch_from(texts, width):
    cells = [list(text.ljust(width, ".")) for text in texts]
    zero = np.zeros((len(texts), width), np.float32)
    response, model = (np.array([[c in kinds for c in row] for row in cells]) for kinds in ("mt", "m"))
    return TokenBatch.validated(logprobs=zero, old_logprobs=zero, response_mask=response, model_mask=model)
