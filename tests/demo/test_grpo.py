import pytest

from tracker_diag.demo.grpo import ARMS, train


@pytest.mark.slow
def test_a_run_repeats_bit_for_bit():
    first, second = (list(train(ARMS["collapse"], 3, 4)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert a.metrics == b.metrics
        assert a.logprobs.equal(b.logprobs)
        assert a.rollout.tokens.equal(b.rollout.tokens)


@pytest.mark.slow
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
