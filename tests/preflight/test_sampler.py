"""Sampler against trainer, and the canary: noise floors, placeholders, and engines that do not do as they should."""

import threading

import numpy as np
import pytest
import torch

import tracker_diag as td
from tracker_diag.errors import BatchError


def canary_check(perturb, sample, seconds):
    checks = td.preflight(perturb=perturb, sample=sample, seconds=seconds).checks
    return next(check for check in checks if check.name == "weights_arrive")


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

    def logprobs(of, head):
        logits = (of @ head).float()
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
    "NaN everywhere": (lambda of: np.full_like(of, np.nan), "1,024 of 2,048 log-probabilities"),
    "one infinity": (lambda of: np.where(np.arange(of.size).reshape(of.shape) == 5, -np.inf, of), "1 of 2,048"),
    "placeholders": (lambda of: np.where(np.arange(64) % 50 == 0, 0.0, of), "are exactly 0"),
    "one impossible token": (
        lambda of: np.where(np.arange(of.size).reshape(of.shape) == 5, -25.0, of),
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
    assert "Are these probabilities?" in next(one.reason for one in report.checks if one.name == "batch_form")


class Engine:
    def __init__(self, *, noise=0.0, answers=None):
        self.weights, self.noise, self.drawn, self.answers = 0.0, noise, np.random.default_rng(0), answers

    def sample(self):
        if self.answers:
            return self.answers[int(self.weights > 0)]
        return np.full(32, -1.0 - self.weights) + self.noise * self.drawn.normal(size=32)

    def perturb(self, by=0.5):
        self.weights += by


def test_a_canary_is_heard_above_the_sampler_s_own_noise():
    for noise in (0.0, 0.01):
        engine = Engine(noise=noise)
        assert canary_check(engine.perturb, engine.sample, 5).status == "pass"
        assert canary_check(lambda: None, engine.sample, 5).status == "fail"


def test_a_canary_may_be_text():
    engine = Engine(answers=["four", "fish"])
    assert canary_check(engine.perturb, engine.sample, 5).status == "pass"
    assert canary_check(lambda: None, engine.sample, 5).status == "fail"


def test_a_change_is_taken_back_and_looked_at_again():
    def undone():
        engine.perturb()
        return lambda: engine.perturb(-0.5)

    engine = Engine()
    assert canary_check(undone, engine.sample, 5).status == "pass"
    assert engine.weights == 0.0

    def not_undone():
        engine.perturb()
        return lambda: None

    assert (
        canary_check(not_undone, engine.sample, 5).reason == "the sampler did not come back when the change was undone"
    )


def test_a_change_is_taken_back_even_if_the_sampler_fails():
    engine, calls = Engine(), []

    def sample():
        calls.append(engine.weights)
        if engine.weights:
            raise ConnectionError("engine is gone")
        return engine.sample()

    def perturb():
        engine.perturb()
        return lambda: engine.perturb(-0.5)

    check = canary_check(perturb, sample, 5)
    assert check.reason == "perturb or the sample after it raised ConnectionError: engine is gone"
    assert engine.weights == 0.0


@pytest.mark.slow
def test_an_engine_that_hangs_is_left_behind():
    over = threading.Event()
    assert canary_check(lambda: None, over.wait, 0.1).reason == "the first sample did not return in time"
    assert "perturb" in canary_check(over.wait, lambda: np.zeros(3), 2).reason
    over.set()
