"""Sampler against trainer: noise floors, placeholders, and log-probabilities that no sampler gives."""

import numpy as np
import pytest
import torch

import tracker_diag as td
from tracker_diag.errors import BatchError


def batch(rng, noise=0.02, n=16, width=64):
    trainer = rng.uniform(-4, -0.05, (n, width))
    return {
        "old_logprobs": trainer,
        "rollout_logprobs": trainer - noise * rng.normal(size=trainer.shape),
        "model_mask": np.ones(trainer.shape, bool),
    }


def step0(given):
    return next(check for check in td.preflight(batch=given).checks if check.name == "sampler_step0")


def test_the_documented_floor_counts_until_one_is_measured(rng):
    check = step0(batch(rng, noise=0.06))  # p95 0.117, as bfloat16 alone gives
    assert check.status == "pass"
    assert check.values["limit"] == 0.3
    assert "give logprobs_again" in check.reason
    assert step0(batch(rng, noise=0.2)).status == "fail"


def test_a_measured_floor_takes_its_place(rng):
    given = batch(rng, noise=0.06)
    exact = given["old_logprobs"] - 1e-4 * rng.normal(size=given["old_logprobs"].shape)
    check = step0(given | {"logprobs_again": exact})  # float32 on both sides: 0.117 is no noise here
    assert check.status == "fail"
    assert check.values["limit"] == 0.01
    noisy = given["old_logprobs"] - 0.05 * rng.normal(size=given["old_logprobs"].shape)
    check = step0(given | {"logprobs_again": noisy})
    assert check.status == "pass"
    assert check.values["limit"] == pytest.approx(3 * 1.96 * 0.05, rel=0.1)


def test_the_same_pass_once_more_measures_nothing(rng):
    given = batch(rng)
    check = step0(given | {"logprobs_again": given["old_logprobs"].copy()})
    assert check.values["limit"] == 0.3
    assert "take another batch size" in check.reason


def test_the_rounding_of_bfloat16_passes_with_its_own_floor():
    torch.manual_seed(0)
    hidden, vocabulary = torch.randn(256, 64), torch.randn(64, 500) / 8

    def logprobs(states, head):
        logits = (states @ head).float()
        return torch.log_softmax(logits, -1)[:, 7].reshape(8, 32)

    wide = {"old_logprobs": logprobs(hidden, vocabulary), "model_mask": torch.ones(8, 32)}
    half = logprobs(hidden.bfloat16(), vocabulary.bfloat16())
    assert step0(wide | {"rollout_logprobs": half, "logprobs_again": half.flip(0).flip(0) + 0.0}).status == "pass"
    assert step0(wide | {"rollout_logprobs": logprobs(hidden * 1.5, vocabulary)}).status == "fail"


def test_before_the_first_update_the_new_log_probs_are_the_old_ones(rng):
    given = batch(rng)
    given["logprobs"] = given.pop("old_logprobs")
    assert step0(given).status == "pass"


def test_a_loss_mask_says_what_was_sampled_where_nothing_else_does(rng):
    given = batch(rng)
    given["loss_mask"] = given.pop("model_mask")
    assert step0(given).status == "pass"


BROKEN = {
    "NaN everywhere": (lambda logprob: np.full_like(logprob, np.nan), "1,024 of 2,048 log-probabilities"),
    "one infinity": (
        lambda logprob: np.where(np.arange(logprob.size).reshape(logprob.shape) == 5, -np.inf, logprob),
        "1 of 2,048",
    ),
    "placeholders": (lambda logprob: np.where(np.arange(64) % 50 == 0, 0.0, logprob), "are exactly 0"),
    "one impossible token": (
        lambda logprob: np.where(np.arange(logprob.size).reshape(logprob.shape) == 5, -25.0, logprob),
        "the largest 2",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_no_sampler_gives_is_reported(rng, name):
    change, reason = BROKEN[name]
    given = batch(rng)
    check = step0(given | {"rollout_logprobs": change(given["rollout_logprobs"])})
    assert check.status == "fail"
    assert reason in check.reason


def test_what_is_off_the_model_tokens_does_not_count(rng):
    given = batch(rng)
    given["model_mask"][:, 40:] = False
    given["rollout_logprobs"][:, 40:] = np.nan
    assert step0(given).status == "pass"


def test_tensors_that_do_not_fit_are_refused(rng):
    for wrong in ({"rollout_logprobs": np.zeros((3, 3))}, {"logprobs_again": np.zeros((3, 3))}):
        with pytest.raises(BatchError):
            td.preflight(batch=batch(rng) | wrong)


def test_probabilities_in_place_of_their_logarithms_are_reported(rng):
    given = batch(rng)
    report = td.preflight(batch=given | {"rollout_logprobs": np.exp(given["rollout_logprobs"])})
    assert "Are these probabilities?" in next(item.reason for item in report.checks if item.name == "batch_form")
