import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag import TokenBatch
from tracker_diag.slices import label_context

TEXT, POST, OUT = 0, 1, 2


def labels(response, model, after_tool=None):
    response, model = np.array(response, bool), np.array(model, bool)
    given = {} if after_tool is None else {"after_tool": np.array(after_tool, bool)}
    zero = np.zeros(model.shape, np.float32)
    batch = TokenBatch.of(logprobs=zero, old_logprobs=zero, response_mask=response, model_mask=model, **given)
    return label_context(batch).reshape(model.shape).tolist()


def test_model_tokens_before_and_after_a_tool_result():
    #          prompt  call    tool    answer  padding
    response = [[0, 0, 1, 1, 1, 1, 1, 1, 0]]
    model = [[0, 0, 1, 1, 0, 0, 1, 1, 0]]
    assert labels(response, model) == [[OUT, OUT, TEXT, TEXT, OUT, OUT, POST, POST, OUT]]


def test_a_tool_result_counts_only_in_its_own_sequence():
    response = [[1, 1, 1], [1, 1, 1]]
    model = [[1, 0, 1], [1, 1, 1]]
    assert labels(response, model) == [[TEXT, OUT, POST], [TEXT, TEXT, TEXT]]


def test_without_a_response_mask_the_leading_gap_is_the_prompt():
    zero = np.zeros((1, 6), np.float32)
    model = np.array([[0, 0, 1, 0, 1, 0]], bool)
    batch = TokenBatch.of(logprobs=zero, old_logprobs=zero, model_mask=model)
    assert label_context(batch).tolist() == [OUT, OUT, TEXT, OUT, POST, OUT]


def test_what_stands_before_the_first_model_token_is_the_prompt_whatever_the_response_mask_says():
    assert labels([[1, 1, 1, 1, 1]], [[0, 0, 1, 0, 1]]) == [[OUT, OUT, TEXT, OUT, POST]]


def test_an_unscored_token_taken_out_of_both_masks_is_no_tool_result():
    assert labels([[1, 1, 0, 1]], [[1, 1, 0, 1]]) == [[TEXT, TEXT, OUT, TEXT]]


def test_what_the_caller_knows_of_tools_goes_before_what_the_masks_show():
    assert labels([[1, 1, 1]], [[1, 1, 1]], after_tool=[[0, 0, 1]]) == [[TEXT, TEXT, POST]]
    assert labels([[1, 1, 1]], [[1, 0, 1]], after_tool=[[0, 0, 0]]) == [[TEXT, OUT, TEXT]]


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
