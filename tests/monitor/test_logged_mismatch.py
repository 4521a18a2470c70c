"""A rule of a ratio pair that speaks by logged metrics alone: there are no tensors of the pair to look into."""

import numpy as np
import pytest

from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

pytestmark = pytest.mark.slow

NAMES = {
    "prime-rl": ("mismatch_kl/all/mean", {"entropy/all/mean": 0.5, "optim/grad_norm": 1.0, "loss/mean": 0.01}),
    "OpenRLHF": ("vllm_kl", {"actor_grad_norm": 1.0, "ppo_clip_ratio": 0.01, "rollout/reward_mean": 0.5}),
    "slime": ("train/mis_k3_kl", {"train/pg_loss": 0.1, "rollout/raw_reward": 0.5, "train/pg_clipfrac": 0.01}),
}


@pytest.mark.parametrize("framework", NAMES)
def test_a_mismatch_that_the_trainer_logs_is_named_without_an_error(framework):
    key, extra = NAMES[framework]
    rng, seen = np.random.default_rng(0), CapturingTracker()
    monitor = Monitor([seen])
    for step in range(1, 240):
        kl = 0.002 * np.exp(max(0, step - 100) / 30) * (1 + 0.1 * rng.normal())
        monitor.log({key: kl} | {k: v * (1 + 0.02 * rng.normal()) for k, v in extra.items()}, step)
    monitor.close()
    assert monitor.failures == []
    assert "POL007" in {finding.rule.id for finding in seen.summary.findings}
