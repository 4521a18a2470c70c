"""verl before it had plugins, 0.7 and 0.8, loaded as its own setting does; `test_verl.py` runs this with each."""

import gc
import os

import numpy as np
import pytest
import torch
import verl  # loads what VERL_USE_EXTERNAL_MODULES names
from verl.protocol import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import ray_trainer
from verl.utils.tracking import Tracking

from tracker_diag import Monitor
from tracker_diag.testing import CapturingBackend

ROWS, RESPONSE = 16, 12
CONFIG = {"actor_rollout_ref": {"rollout": {"calculate_log_probs": True}}, "trainer": {"project_name": "agent"}}


def made(rng, rows=ROWS, post=0.02):
    """Half of the responses have a tool result at their fifth and sixth token; what follows may have another tail."""
    mask = torch.ones(rows, RESPONSE, dtype=torch.int64)
    mask[: rows // 2, 4:6] = 0
    spread = torch.full(mask.shape, 0.02)
    spread[: rows // 2, 6:] = post
    old = torch.tensor(rng.uniform(-3, -0.1, mask.shape), dtype=torch.float32)
    scores = torch.zeros(mask.shape)
    scores[:, -1] = torch.arange(rows) % 2
    tensors = {
        "responses": torch.ones_like(mask),
        "attention_mask": torch.ones(rows, 2 + RESPONSE, dtype=torch.int64),
        "response_mask": mask,
        "old_log_probs": old * mask,
        "rollout_log_probs": (old - spread * torch.tensor(rng.normal(size=mask.shape), dtype=torch.float32)) * mask,
        "token_level_scores": scores,
        "token_level_rewards": scores,
    }
    uids = np.array([str(row // 4) for row in range(rows)], dtype=object)
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": uids})


def step_of(batch):
    """The calls of `RayPPOTrainer.fit` in their order, with its lazy imports."""
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics

    metrics = calculate_debug_metrics(batch)
    batch, found = compute_rollout_correction_and_add_to_batch(batch, RolloutCorrectionConfig(rollout_is="token"))
    ray_trainer.compute_advantage(batch, adv_estimator="grpo", num_repeat=4)
    return metrics | found


def test_it_is_the_version_that_is_asked_for():
    assert verl.__version__.startswith(os.environ["VERL"])


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_reach_every_tracker_that_verl_starts(rng, alerted, mlflow_store, monkeypatch, trackio_runs):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store)
    trackers = ["mlflow", "tensorboard", "wandb"]
    if os.environ["VERL"] == "0.7":  # which hands Trackio's `log` a name that it does not take: a run of one's own
        trackio_runs.start()
    else:
        trackers.append("trackio")
    tracking = Tracking(alerted.project, "run", default_backend=trackers, config=CONFIG)
    for step in range(1, 46):
        tracking.log(step_of(made(rng, rows=128, post=0.02 if step < 30 else 0.5)), step)
    tracking.diag.close()  # these releases end no run of a tracker but their own W&B's
    del tracking
    gc.collect()
    assert alerted("POL001") == {*trackers, "trackio", "webhook"}


def test_a_run_is_watched_from_its_tracking_to_its_end():
    tracking = Tracking("agent", "run", default_backend=["console"], config=CONFIG)
    monitor, captured = tracking.diag, CapturingBackend()
    assert isinstance(monitor, Monitor)
    monitor.add(captured)
    for step in (1, 2):
        watched, alone = made(np.random.default_rng(step)), made(np.random.default_rng(step))
        metrics = step_of(watched)
        tracking.log(metrics, step)
    del tracking  # as when fit returns; there is no other end
    gc.collect()
    assert captured.summary is not None
    assert set(captured.own) == {1, 2}
    (table,) = (one for one in captured.tables if one.name == "diag/slices")
    counts = {row[1]: row[table.columns.index("count")] for row in table.rows if row[0] == "mismatch"}
    assert (counts["text_only"], counts["post_tool"]) == (2 * ROWS // 2 * (4 + 12), 2 * ROWS // 2 * 6)
    assert monitor.failures == []
    assert not hasattr(ray_trainer.compute_advantage, "__wrapped__")  # the hooks are off
    assert step_of(alone) == metrics  # and what verl computed is as without them
    assert all(torch.equal(watched.batch[name], value) for name, value in alone.batch.items())
