"""A real training, the demo's agent: what its rollouts come to, with and without a tool that fails."""

import numpy as np
import pytest

from tracker_diag import Monitor
from tracker_diag.demo.grpo import GROUP
from tracker_diag.demo.world import CALL
from tracker_diag.records import Scalar
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.nightly

STEPS = 30


def calls_of(rollout, rng, failing):
    """The calls that the policy sampled: the two tokens after CALL are the key that it looked up."""
    episodes = []
    for tokens, sampled in zip(rollout.tokens.tolist(), rollout.is_model.tolist(), strict=True):
        at = [i for i, token in enumerate(tokens[:-2]) if token == CALL and sampled[i]]
        episodes.append([{"name": "lookup", "arguments": {"key": tokens[i + 1 : i + 3]},
                          "status": bool(rng.random() >= failing)} for i in at])  # fmt: skip
    return episodes


@pytest.mark.parametrize("failing", [0.0, 0.6])
def test_a_tool_that_fails_is_named_and_a_sound_one_is_not(trained_arm, failing):
    rng, seen = np.random.default_rng(0), CapturingTracker()
    monitor = Monitor([seen])
    for one in trained_arm("healthy", STEPS):
        rewards = one.rollout.reward
        groups = [i // GROUP for i in range(len(rewards))]
        monitor.samples(reward=rewards, group=groups, length=one.rollout.is_response.sum(1),
                        calls=calls_of(one.rollout, rng, failing), tokens=one.rollout.tokens)  # fmt: skip
        monitor.log(one.metrics, one.step)
        values = {record.name: record.value for record in seen.records[one.step] if isinstance(record, Scalar)}
        spread = rewards.view(-1, GROUP).double()
        assert values["diag/samples/reward"] == pytest.approx(one.metrics["reward"], rel=1e-5)
        assert values["diag/samples/response_length"] == pytest.approx(one.metrics["response_length"], rel=1e-5)
        assert values["diag/samples/group_reward_std"] == pytest.approx(float(spread.std(1, correction=0).mean()))
        assert values["diag/samples/zero_std_share"] == float((spread.amax(1) == spread.amin(1)).double().mean())
    summary = monitor.close()
    assert not monitor.failures
    found = {(one.rule.id, one.slice) for one in summary.findings if one.fired is not None}
    assert (("ENV001", "tool:lookup") in found) == (failing > 0)
    assert "ENV001" not in summary.blind
    if not failing:
        assert not found
