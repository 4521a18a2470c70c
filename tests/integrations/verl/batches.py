"""Batches of verl's, what its trainer v0 does with them, and the losses of its actor; for every release."""

import numpy as np
import pytest
import torch
import tracker_diag_verl.workers as of_workers
from verl.protocol import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, ray_trainer
from verl.utils.tracking import Tracking
from verl.workers.config import FSDPActorConfig

from tests.integrations.conformance import SketchesLosses, responses

CONFIG = {
    "trainer": {"project_name": "agent"},
    "algorithm": {"adv_estimator": "grpo"},
    "actor_rollout_ref": {
        "actor": {"clip_ratio": 0.2, "clip_ratio_low": 0.1, "clip_ratio_high": 0.3},
        "rollout": {"calculate_log_probs": True},
    },
}
ROWS, PROMPT, RESPONSE = 64, 4, 24


def made(rng, post=0.02, version=0):
    """As the agent loop of verl lays it out: a tool result amid half of the responses, padding at both ends."""
    model, old, sampled = responses(rng, ROWS, RESPONSE, post)
    mask, old, sampled = torch.tensor(model).long(), torch.tensor(old).float(), torch.tensor(sampled).float()
    attention = torch.ones(ROWS, PROMPT + RESPONSE, dtype=torch.int64)
    attention[:, 0] = attention[:, -2:] = mask[:, -2:] = 0
    scores = torch.zeros(ROWS, RESPONSE)
    scores[:, 21] = torch.arange(ROWS) % 2
    return DataProto.from_dict(
        tensors={
            "responses": torch.ones_like(mask), "attention_mask": attention, "response_mask": mask,
            "old_log_probs": old * mask, "rollout_log_probs": sampled * mask, "ref_log_prob": old - 0.1,
            "token_level_scores": scores, "token_level_rewards": scores,
        },
        non_tensors={
            "uid": np.array([str(row // 4) for row in range(ROWS)], dtype=object),
            "data_source": np.array(["search" if row < ROWS // 2 else "maths" for row in range(ROWS)], dtype=object),
            "min_global_steps": np.array([version - row % 2 for row in range(ROWS)], dtype=object),
            "max_global_steps": np.array([version] * ROWS, dtype=object),
        },
    )  # fmt: skip


def v0_step(tracking, step, batch, **rejection):
    """The calls of `RayPPOTrainer.fit` in their order, with its lazy imports."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics

    metrics = calculate_debug_metrics(batch)
    correction = RolloutCorrectionConfig(rollout_is="token", rollout_is_threshold=2.0, **rejection)
    batch, result = compute_rollout_correction_and_add_to_batch(batch, correction)
    ray_trainer.compute_advantage(batch, adv_estimator="grpo", num_repeat=4)
    metrics |= result | {"critic/score/mean": 0.5}
    tracking.log(data=metrics, step=step)
    return metrics


def begun(*trackers, project="agent"):
    return Tracking(project, "run", default_backend=[*trackers] or ["console"], config=CONFIG)


def train(tracking, rng):
    """Forty-five steps; from the thirtieth on the tail after tools is wider."""
    for step in range(1, 46):
        v0_step(tracking, step, made(rng, post=0.02 if step < 30 else 0.5, version=step - 1))


class TestWorkers(SketchesLosses):
    """The actor's own loss, which it looks up by its name; model and optimiser are stand-ins."""

    WORKERS, TOKENS = of_workers, (ROWS * RESPONSE - ROWS // 2 * 4, ROWS // 2 * (RESPONSE - 12))

    @pytest.fixture(autouse=True)
    def put_back(self, monkeypatch):
        """Without the plugin's hook."""
        theirs = getattr(core_algos.get_policy_loss_fn, "__wrapped__", core_algos.get_policy_loss_fn)
        monkeypatch.setattr(core_algos, "get_policy_loss_fn", theirs)

    def put(self):
        of_workers.losses(core_algos)

    def update(self, times):
        config = FSDPActorConfig(
            strategy="fsdp", rollout_n=1, ppo_mini_batch_size=8, ppo_micro_batch_size_per_gpu=8, clip_ratio=0.2,
            clip_ratio_low=0.3, clip_ratio_high=0.15,
        )  # fmt: skip
        mask = torch.ones(ROWS, RESPONSE, dtype=torch.int64)
        mask[: ROWS // 2, 8:12] = 0
        old, losses = torch.linspace(-3, -0.1, ROWS * RESPONSE).reshape(ROWS, RESPONSE), []
        for update in range(times):
            new = (old + 0.1 * update).requires_grad_()
            value, _ = core_algos.get_policy_loss_fn("vanilla")(
                old_log_prob=old, log_prob=new, advantages=torch.ones_like(old), response_mask=mask,
                loss_agg_mode="token-mean", config=config, rollout_is_weights=None,
            )  # fmt: skip
            value.backward()
            losses.append((value.item(), new.grad))
            of_workers.stepped()
        of_workers.RECORDER.send()
        return losses
