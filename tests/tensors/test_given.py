"""Whatever form the tensors come in, the statistics are those of the padded arrays."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag import Monitor
from tracker_diag.errors import BatchError
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.suspicions import GAPS

LENGTHS = [3, 1, 4]
NEW = [np.linspace(-1, -0.1, n) for n in LENGTHS]
OLD = [part - 0.01 * (1 + np.arange(len(part))) for part in NEW]
MODEL = [np.arange(n) != 1 for n in LENGTHS]
"""A gap after the first token, where there are more."""


def padded(parts, fill=0.0):
    rows = np.full((len(parts), max(LENGTHS)), fill, np.asarray(parts[0]).dtype)
    for row, part in zip(rows, parts, strict=True):
        row[: len(part)] = part
    return rows


def seen(**tensors):
    """Log-ratio and slice of each model token, in the order of the text."""
    batch = TokenBatch.validated(**tensors)
    rows = label(batch, Names())["context"]
    model = np.asarray(batch.model_mask)
    return np.asarray(batch.log_ratio("policy"))[model].tolist(), np.asarray(rows)[model].tolist()


EXPECTED = seen(logprobs=padded(NEW), old_logprobs=padded(OLD), model_mask=padded(MODEL))

FORMS = {
    "lists of lists": lambda parts: [part.tolist() for part in parts],
    "arrays": list,
    "a tuple of tensors": lambda parts: tuple(torch.from_numpy(part) for part in parts),
    "a jagged tensor": lambda parts: torch.nested.nested_tensor(
        [torch.from_numpy(part) for part in parts], layout=torch.jagged
    ),
    "a list of rows": lambda parts: padded(parts).tolist(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_batch(form):
    make = FORMS[form]
    ratios, slices = seen(logprobs=make(NEW), old_logprobs=make(OLD), model_mask=make(MODEL))
    assert ratios == pytest.approx(EXPECTED[0], rel=1e-6)
    assert slices == EXPECTED[1] == [0, 1, 0, 0, 1, 1]


def test_zeros_and_ones_are_a_mask_in_a_list_too():
    given = {"logprobs": [-0.1, -0.2, -0.3], "old_logprobs": [-0.2, -0.2, -0.2], "model_mask": [1, 0, 1]}
    assert seen(**given) == ([pytest.approx(0.1), pytest.approx(-0.1)], [0, 1])


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, list])
def test_one_sequence_alone_needs_no_ids(make):
    given = {"logprobs": make([-0.1, -0.2, -0.3]), "old_logprobs": make([-0.2, -0.2, -0.2])}
    batch = TokenBatch.validated(**given, model_mask=make([True, False, True]), tool=np.array(["", "", "search"]))
    assert batch.sequences == 1
    assert batch.width == 3
    assert batch.names["tool"] == ("search",)


class Foreign:
    """An array of another library, which numpy can read."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_an_array_of_another_library_is_read():
    assert seen(logprobs=Foreign(NEW[0]), old_logprobs=Foreign(OLD[0]), model_mask=Foreign(MODEL[0]))[1] == [0, 1]


def test_labels_come_per_token_or_per_sequence():
    batch = TokenBatch.validated(
        logprobs=NEW, old_logprobs=OLD, model_mask=MODEL, env=["web", "code", "web"],
        turn=[[0, 0, 1], [0], [0, 0, 1, 1]], advantages=[0.5, -1.0, 0.0],
        tool=[["", "", "search"], [""], [None, "", "search", "python"]],
    )  # fmt: skip
    assert np.asarray(batch.labels["env"]).tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert np.asarray(batch.labels["tool"]).tolist() == [-1, -1, 0, -1, -1, -1, 0, 1]
    assert batch.names["tool"] == ("search", "python")
    assert np.asarray(batch.labels["turn"]).tolist() == [0, 0, 1, 0, 0, 0, 1, 1]
    assert np.asarray(batch.labels["advantages"]).tolist() == [0.5, 0.5, 0.5, -1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"old_logprobs": [*OLD[:2], OLD[2][:3]]},
            "old_logprobs: sequence 2 of 3 tokens given, expected 4",
        ),
        ({"old_logprobs": OLD[:2]}, "old_logprobs: 2 sequences given, expected 3, as logprobs has"),
        (
            {"old_logprobs": padded(OLD)},
            "old_logprobs: an array of shape (3, 4) given, expected a list of sequences",
        ),
        ({"sequence_ids": np.zeros(8, int)}, "sequence_ids: ids next to a list of sequences given, expected none: the"),
        (
            {"logprobs": [["a"] * 3, ["b"], ["c"] * 4]},
            "logprobs: dtype object given, expected floats; token ids are not",
        ),
        ({"logprobs": object()}, "logprobs: object given, expected a list of sequences, as others are"),
    ],
)
def test_what_does_not_fit_is_reported(changed, message):
    with pytest.raises(BatchError) as error:
        TokenBatch.validated(**({"logprobs": NEW, "old_logprobs": OLD, "model_mask": MODEL} | changed))
    assert str(error.value).startswith(message)


@pytest.mark.slow
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=6), st.booleans())
def test_a_loss_mask_with_gaps_is_sliced_as_the_same_model_mask(masks, packed):
    """Most trainers have one mask, on the tokens that they train on: its gaps are what tools said."""
    if not any(map(any, masks)):
        masks[0][0] = True
    zeros = [[0.0] * len(mask) for mask in masks]
    give = (lambda parts: parts) if packed else (lambda parts: [part + [0] * (9 - len(part)) for part in parts])
    batches = [
        TokenBatch.validated(logprobs=give(zeros), old_logprobs=give(zeros), **{name: give(masks)})
        for name in ("response_mask", "model_mask")
    ]
    first, second = (label(batch, Names()) for batch in batches)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[dimension], second[dimension]) for dimension in first)


def test_a_run_says_once_that_it_took_gaps_for_tool_output(caplog):
    with Monitor() as monitor:
        for step in range(3):
            monitor.observe(logprobs=NEW, old_logprobs=OLD, response_mask=MODEL)
            monitor.log({}, step)
    assert [record.message for record in caplog.records] == [GAPS]
