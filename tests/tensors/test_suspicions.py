"""What looks like a mistake is reported with the argument and the remedy, and what does not is not."""

import numpy as np
import pytest
import torch

from tracker_diag import Monitor
from tracker_diag.testing import example_batch


def warnings_of(caplog, tensors):
    """What is said of a first batch."""
    monitor = Monitor()
    monitor.observe(**tensors)
    return [record.message for record in caplog.records]


def shifted(values):
    return np.roll(values, 1, axis=1)


MISTAKES = {
    "probabilities": (
        lambda b: b | {"old_logprobs": np.exp(b["old_logprobs"])},
        ["old_logprobs has values up to 0.", "Are these probabilities? Give old_logprobs=log(p)."],
    ),
    "logits": (
        lambda b: b | {"logprobs": b["logprobs"] + 2},
        ["logprobs has values up to ", "Are these logits? Give the log-softmax at the token"],
    ),
    "the same tensor": (
        lambda b: b | {"old_logprobs": b["logprobs"]},
        ["logprobs and old_logprobs are the same tensor", "Keep old_logprobs from before the update"],
    ),
    "a shift": (
        lambda b: b | {"old_logprobs": shifted(b["old_logprobs"])},
        ["logprobs and old_logprobs are ", "with a correlation of ", "Is one shifted by a token?"],
    ),
    "an inverted model_mask": (
        lambda b: b | {"model_mask": ~b["model_mask"]},
        ["hardly any sequence begins its response with a token of model_mask", "model_mask = 1 - model_mask"],
    ),
    "an inverted response_mask": (
        lambda b: b | {"response_mask": np.arange(24) < 4},
        ["of model_mask lie outside response_mask, and are left out. Is one of the two inverted?"],
    ),
    "swapped masks": (
        lambda b: b | {"response_mask": b["model_mask"], "model_mask": b["response_mask"]},
        ["response_mask is wholly inside model_mask. Are the two swapped?"],
    ),
    "some model tokens outside": (
        lambda b: b | {"response_mask": np.arange(24) < 20},
        ["lie outside response_mask, and are left out. If they were sampled", "response_mask | model_mask"],
    ),
    "half of a pair": (
        lambda b: {("ref_logprobs" if n == "logprobs" else n): v for n, v in b.items()}
        | {"rollout_logprobs": b["old_logprobs"]},
        ["ref_logprobs came without logprobs", "Give logprobs=... as well."],
    ),
    "gaps": (
        lambda b: {n: v for n, v in b.items() if n != "model_mask"} | {"response_mask": b["model_mask"]},
        ["response_mask has gaps, and no model_mask was given: the gaps are taken for tool output"],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch", "lists"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_once_with_the_remedy(mistake, library, caplog):
    make, parts = MISTAKES[mistake]
    tensors = make(example_batch(0))
    tensors = (
        {name: np.broadcast_to(value, (64, 24)) for name, value in tensors.items()}
        if (mistake != "the same tensor")
        else tensors
    )
    if library != "numpy" and mistake != "the same tensor":
        convert = torch.tensor if library == "torch" else np.ndarray.tolist
        tensors = {name: convert(np.array(value)) for name, value in tensors.items()}
    text = warnings_of(caplog, tensors)
    assert len(text) == 1, text
    for part in parts:
        assert part in text[0]


FINE = {
    "as it should be": lambda b: b,
    "without tools": lambda b: b | {"model_mask": np.ones((64, 24), bool)},
    "mostly tool output": lambda b: b | {"model_mask": np.broadcast_to(np.arange(24) % 12 == 0, (64, 24))},
    "a prompt in front": lambda b: b | {
        "response_mask": np.broadcast_to(np.arange(24) > 3, (64, 24)),
        "model_mask": b["model_mask"] & (np.arange(24) > 3),
    },
    "on-policy": lambda b: b | {"old_logprobs": b["logprobs"].copy()},
    "a certain token": lambda b: b | {"logprobs": np.zeros((64, 24)), "old_logprobs": np.full((64, 24), 1e-7)},
    "far from the sampler": lambda b: b | {"old_logprobs": 3 * b["old_logprobs"]},
    "far from the reference": lambda b: b | {"ref_logprobs": b["logprobs"] - 3},
}  # fmt: skip


@pytest.mark.parametrize("case", FINE)
def test_what_is_right_is_not_suspected(case, caplog):
    assert warnings_of(caplog, FINE[case](example_batch(0))) == []


@pytest.mark.slow
def test_a_run_without_tools_is_no_mistake(caplog):
    monitor = Monitor()
    for step in range(40):
        monitor.observe(**(example_batch(0) | {"model_mask": np.ones((64, 24), bool)}))
        monitor.log({"reward": 0.5}, step)
    assert not caplog.records
