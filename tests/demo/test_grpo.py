import copy

import pytest

from tracker_diag.demo.grpo import ARMS, Training, train
from tracker_diag.guards.checkpoints import Checkpoint
from tracker_diag.guards.decision import Decision

pytestmark = pytest.mark.slow


def test_a_run_repeats_bit_for_bit():
    first, second = (list(train(ARMS["collapse"], 3, 4)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.metrics == b.metrics
        assert a.logprobs.equal(b.logprobs)
        assert a.rollout.tokens.equal(b.rollout.tokens)


@pytest.mark.by_day("drift-aware", "collapse")
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_trains_and_says_what_a_trainer_says(arm):
    steps = list(train(ARMS[arm], 0, 3))
    assert [step.step for step in steps] == [0, 1, 2]
    for step in steps:
        assert step.logprobs.shape == step.ref_logprobs.shape == step.rollout.is_model.shape
        assert step.metrics["reward"] > 0.5
        assert ("clip_fraction" in step.metrics) == ARMS[arm].clips
    policy_is_sampler = (steps[2].logprobs - steps[2].rollout.sampler_logprobs)[steps[2].rollout.is_model].abs().max()
    assert (policy_is_sampler < 1e-5) == (ARMS[arm].lag[0] == 0)


def state(training):
    return [parameter.detach().clone() for parameter in training.policy.parameters()]


def same(first, other):
    return all(a.equal(b) for a, b in zip(first, other, strict=True))


def test_what_guards_decide_is_done_and_a_refreshed_reference_moves_the_ruler_alone(tmp_path):
    training = Training(ARMS["collapse"], 0)
    training.step(0)
    training.save(tmp_path / "0.pt")
    first = state(training)
    assert "loss" not in training.step(1, Decision(skip_batch=True)).metrics
    training.step(2, Decision(stop="update"))
    assert same(state(training), first)
    plain, refreshed, penalised = (copy.deepcopy(training) for _ in range(3))
    for step, decision in ((3, Decision(refresh_reference=True)), (4, Decision())):
        kl, anew = plain.step(step).metrics["kl"], refreshed.step(step, decision).metrics["kl"]
        assert anew < kl
    assert same(state(plain), state(refreshed))
    for step in (3, 4):
        penalised.step(step, Decision(kl_coef=10.0))
    assert not same(state(plain), state(penalised))
    back = Checkpoint(str(tmp_path / "0.pt"), 0)
    plain.step(5, Decision(rollback_to=back, stop="update"))
    assert same(state(plain), first)
