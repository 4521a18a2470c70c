import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.errors import BatchError, UnknownName
from tracker_diag.tensors.batch import TokenBatch, running_count

NEW = np.log(np.array([[0.5, 0.4, 0.3], [0.2, 0.9, 0.8]], np.float32))
OLD = np.log(np.array([[0.5, 0.2, 0.3], [0.4, 0.9, 0.1]], np.float32))
MASK = np.array([[True, True, False], [True, True, True]])


def test_padded_arrays_give_the_log_ratio_trainer_first():
    batch = TokenBatch.validated(logprobs=NEW, old_logprobs=OLD, model_mask=MASK)
    assert batch.pairs == ("policy",)
    np.testing.assert_allclose(batch.log_ratio("policy").reshape(2, 3)[MASK], np.log([1, 2, 0.5, 1, 8]), atol=1e-6)
    np.testing.assert_array_equal(batch.sequence, [0, 0, 0, 1, 1, 1])


def test_each_pair_has_its_two_log_probabilities():
    tensors = {"logprobs": NEW, "old_logprobs": OLD, "rollout_logprobs": NEW - 1, "ref_logprobs": NEW - 2}
    batch = TokenBatch.validated(**tensors, model_mask=MASK)
    assert batch.pairs == ("policy", "mismatch", "reference")
    np.testing.assert_allclose(batch.log_ratio("mismatch"), (OLD - (NEW - 1)).reshape(-1))
    np.testing.assert_allclose(batch.log_ratio("reference"), 2, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_torch_tensors_of_any_float_type(dtype):
    new, old = torch.tensor(NEW).to(dtype).requires_grad_(), torch.tensor(OLD).to(dtype)
    batch = TokenBatch.validated(logprobs=new, old_logprobs=old, model_mask=torch.tensor(MASK))
    expected = (new.detach().double() - old.double()).numpy().reshape(-1)
    np.testing.assert_allclose(batch.log_ratio("policy"), expected, atol=1e-6)
    assert batch.log_ratio("policy").dtype == (np.float64 if dtype == torch.float64 else np.float32)


@pytest.mark.parametrize("mask", [MASK, MASK.astype(np.int64), MASK.astype(np.float32)])
def test_masks_may_be_booleans_or_zero_and_one(mask):
    batch = TokenBatch.validated(logprobs=NEW, old_logprobs=OLD, response_mask=mask)
    np.testing.assert_array_equal(batch.model_mask, MASK.reshape(-1))


@pytest.mark.slow
@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=6))
def test_packed_and_padded_are_the_same_batch(rows):
    width = max(len(row) for row in rows)
    if not any(any(row) for row in rows):
        return
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, len(rows), width))
    real = np.array([[i < len(row) for i in range(width)] for row in rows])
    mask = np.array([row + [False] * (width - len(row)) for row in rows])
    padded = TokenBatch.validated(logprobs=values[0], ref_logprobs=values[1], model_mask=mask)
    ids = np.repeat(np.arange(len(rows)) * 7 + 3, [len(row) for row in rows])
    packed = TokenBatch.validated(
        logprobs=values[0][real], ref_logprobs=values[1][real], model_mask=mask[real], sequence_ids=ids
    )
    chosen = real.reshape(-1)
    np.testing.assert_array_equal(packed.log_ratio("reference"), padded.log_ratio("reference")[chosen])
    np.testing.assert_array_equal(packed.sequence, padded.sequence[chosen])
    np.testing.assert_array_equal(packed.response_mask, padded.response_mask[chosen])


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_running_count_starts_anew_in_each_sequence(tokens):
    tokens = sorted(tokens, key=lambda token: token[0])
    sequence = np.array([s for s, _ in tokens])
    flags = np.array([flag for _, flag in tokens])
    expected = [sum(flags[j] for j in range(i + 1) if sequence[j] == sequence[i]) for i in range(len(tokens))]
    np.testing.assert_array_equal(running_count(flags, sequence), expected)
    on_device = running_count(torch.from_numpy(flags), torch.from_numpy(sequence))
    np.testing.assert_array_equal(on_device.numpy(), expected)


BAD = {
    "shape": (
        {"old_logprobs": OLD[:, :2]},
        "old_logprobs: shape (2, 2) given, expected (2, 3), as logprobs has",
    ),
    "mask shape": (
        {"model_mask": MASK[:1]},
        "model_mask: shape (1, 3) given, expected (2, 3), as logprobs has",
    ),
    "all-false mask": (
        {"model_mask": np.zeros((2, 3), bool)},
        (
            "model_mask: no model token among 6 given, expected at least one True; "
            "micro-batches without one are no harm, if others have some"
        ),
    ),
    "masks that exclude each other": (
        {"response_mask": np.arange(6).reshape(2, 3) > 2, "model_mask": np.arange(6).reshape(2, 3) < 2},
        "model_mask: no model token among 6 given, expected at least one True; is the mask inverted or shifted?",
    ),
    "mask values": (
        {"model_mask": np.full((2, 3), 2)},
        "model_mask: int64 with values other than 0 and 1 given, expected booleans, or 0 and 1",
    ),
    "no mask": (
        {"model_mask": None},
        (
            "model_mask: no mask given, expected response_mask, and model_mask if there are tools: "
            "1 on the tokens that the policy sampled"
        ),
    ),
    "integer log-probs": (
        {"logprobs": np.ones((2, 3), np.int64)},
        "logprobs: dtype int64 given, expected floats; token ids are not log-probabilities",
    ),
    "a text": (
        {"logprobs": "0.1"},
        "logprobs: str given, expected a numpy array, a torch tensor or a list of numbers; np.asarray(logprobs) may do",
    ),
    "one log-prob alone": (
        {"old_logprobs": None},
        (
            "logprobs: logprobs given, expected logprobs and old_logprobs (policy), or old_logprobs and "
            "rollout_logprobs (mismatch), or logprobs and ref_logprobs (reference)"
        ),
    ),
    "another device": (
        {"logprobs": torch.zeros(2, 3), "old_logprobs": torch.zeros(2, 3, device="meta")},
        "old_logprobs: a tensor on meta given, expected cpu, where logprobs is",
    ),
    "three dimensions": (
        {"logprobs": NEW[None]},
        "logprobs: shape (1, 2, 3) given, expected (B, T) padded or (N,) packed, with one token or more",
    ),
    "ids for padded": (
        {"sequence_ids": np.zeros((2, 3), int)},
        "sequence_ids: ids for padded arrays of shape (2, 3) given, expected none, or packed arrays (N,)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_reported_with_field_given_and_expected(case):
    changed, message = BAD[case]
    good = {"logprobs": NEW, "old_logprobs": OLD, "model_mask": MASK}
    with pytest.raises(BatchError) as error:
        TokenBatch.validated(**(good | changed))
    assert str(error.value) == message
    assert message.startswith(error.value.field)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros(2, int), "sequence_ids: int64 of shape (2,) given, expected integers of shape (3,)"),
        (np.zeros(3), "sequence_ids: float64 of shape (3,) given, expected integers of shape (3,)"),
        (
            np.array([1, 2, 1]),
            "sequence_ids: a sequence in several pieces given, expected the tokens of a sequence adjacent",
        ),
    ],
)
def test_bad_sequence_ids(ids, message):
    with pytest.raises(BatchError) as error:
        TokenBatch.validated(logprobs=NEW[0], old_logprobs=OLD[0], model_mask=MASK[0], sequence_ids=ids)
    assert str(error.value) == message


def test_nothing_at_all():
    with pytest.raises(BatchError, match="logprobs: nothing given, expected at least two of"):
        TokenBatch.validated()


def test_unknown_pair():
    batch = TokenBatch.validated(logprobs=NEW, old_logprobs=OLD, model_mask=MASK)
    with pytest.raises(UnknownName, match="pair: 'ref' given, expected one of policy, mismatch, reference"):
        batch.log_ratio("ref")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tool": np.zeros(3, np.int64)}, "tool: shape (3,) given, expected (2, 3), or (2,), one per sequence"),
        ({"tool": np.zeros((2, 3))}, "tool: dtype float64 given, expected integers, or strings"),
        ({"turn": np.zeros((2, 3))}, "turn: dtype float64 given, expected integers"),
        ({"advantages": np.zeros((2, 3), int)}, "advantages: dtype int64 given, expected floats"),
        (
            {"control": np.full((2, 3), 3)},
            "control: int64 with values other than 0 and 1 given, expected booleans, or 0 and 1",
        ),
        (
            {"begins_after_tool": [0.5, 0.0]},
            "begins_after_tool: float64 with values other than 0 and 1 given, expected booleans, or 0 and 1",
        ),
        (
            {"begins_after_tool": [True]},
            "begins_after_tool: shape (1,) given, expected (2, 3), or (2,), one per sequence",
        ),
        ({"applied_weights": np.ones((2, 2))}, "applied_weights: shape (2, 2) given, expected (2, 3), as logprobs has"),
    ],
)  # fmt: skip
def test_labels_that_do_not_fit(given, message):
    with pytest.raises(BatchError) as error:
        TokenBatch.validated(logprobs=NEW, old_logprobs=OLD, model_mask=MASK, **given)
    assert str(error.value) == message


def test_sums_and_values_by_sequence_of_padded_and_packed():
    values = np.arange(6.0)
    padded = TokenBatch.validated(logprobs=NEW, old_logprobs=OLD, model_mask=MASK)
    np.testing.assert_array_equal(padded.by_sequence(values), [3, 12])
    np.testing.assert_array_equal(padded.per_token(np.array([7, 8])), [7, 7, 7, 8, 8, 8])
    flat = {"logprobs": NEW.reshape(-1), "old_logprobs": OLD.reshape(-1), "model_mask": MASK.reshape(-1)}
    packed = TokenBatch.validated(**flat, sequence_ids=np.array([4, 4, 4, 4, 2, 2]))
    np.testing.assert_array_equal(packed.by_sequence(values), [6, 9])
    np.testing.assert_array_equal(packed.per_token(np.array([7, 8])), [7, 7, 7, 7, 8, 8])
    np.testing.assert_array_equal(packed.running_max(np.array([3, 1, 4, 0, 1, 0])), [3, 3, 4, 4, 1, 1])


def test_a_misspelt_argument_is_reported():
    with pytest.raises(BatchError, match="logprob: no such argument given, expected one of logprobs, old_logprobs"):
        TokenBatch.validated(logprob=NEW, old_logprobs=OLD, model_mask=MASK)
