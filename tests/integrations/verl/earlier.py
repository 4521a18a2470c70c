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
from tracker_diag.testing import CapturingTracker

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
        alerted.ours.add("trackio")
    else:
        trackers.append("trackio")
    tracking = Tracking(alerted.project, "run", default_backend=trackers, config=CONFIG)
    for step in range(1, 46):
        tracking.log(step_of(made(rng, rows=128, post=0.02 if step < 30 else 0.5)), step)
    tracking.diag.close()  # these releases end no run of a tracker but their own W&B's
    del tracking
    gc.collect()
    assert alerted("POL001") == {*trackers, "trackio", "webhook"}


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(rng, alerted):
    tracking = Tracking("agent", "run", default_backend=["console"], config=CONFIG)
    for step in range(1, 46):
        tracking.log(step_of(made(rng, rows=128, post=0.02 if step < 30 else 0.5)), step)
    tracking.diag.close()
    assert alerted("POL001") == {"jsonl", "webhook"}


def test_a_run_is_watched_from_its_tracking_to_its_end():
    tracking = Tracking("agent", "run", default_backend=["console"], config=CONFIG)
    monitor, captured = tracking.diag, CapturingTracker()
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


def test_the_policys_losses_are_looked_up_through_the_workers_hook_and_updates_are_told_apart(monkeypatch):
    """The policy pair as an actor of this release makes it, with its own loss; model and optimiser are stand-ins."""
    import inspect

    import tracker_diag_verl.workers as of_workers
    from verl.trainer.ppo import core_algos
    from verl.workers.config import FSDPActorConfig

    from tracker_diag.attach.workers import Workers

    watched = Monitor([], clip=(0.3, 0.05))
    workers = Workers(watched)
    monkeypatch.setattr(of_workers.RECORDER, "_post", workers.receive)
    config = FSDPActorConfig(
        strategy="fsdp", rollout_n=1, ppo_mini_batch_size=8, ppo_micro_batch_size_per_gpu=8, clip_ratio=0.2,
        clip_ratio_low=0.3, clip_ratio_high=0.05,
    )  # fmt: skip
    mask = torch.ones(ROWS, RESPONSE, dtype=torch.int64)
    mask[: ROWS // 2, 4:6] = 0
    old = torch.linspace(-3, -0.1, ROWS * RESPONSE).reshape(ROWS, RESPONSE)

    def make_loss(looked_up):
        new = (old + 0.1).requires_grad_()
        found, _ = looked_up(
            old_log_prob=old, log_prob=new, advantages=torch.ones_like(old), response_mask=mask,
            loss_agg_mode="token-mean", config=config, rollout_is_weights=None,
        )  # fmt: skip
        found.backward()
        return found.item(), new.grad

    first, ours = (make_loss(core_algos.get_policy_loss_fn("vanilla")) for _ in range(2))  # as two micro-batches
    alone = make_loss(core_algos.POLICY_LOSS_REGISTRY["vanilla"])
    assert first[0] == ours[0] == alone[0]
    assert torch.equal(ours[1], alone[1])
    of_workers.RECORDER.send()
    of_workers.RECORDER.close(60)
    workers.take_in()
    watched.log({}, 1)
    table = watched.slices_table()
    at = table.columns.index
    counts = {row[at("slice")]: row[at("count")] for row in table.rows if row[at("pair")] == "policy"}
    assert counts["all"] == 2 * int(mask.sum())
    assert counts["post_tool"] == 2 * ROWS // 2 * (RESPONSE - 6)
    clipped = {row[at("slice")]: row[at("gradient_clipped")] for row in table.rows if row[at("pair")] == "policy"}
    assert clipped["all"] == 1.0  # every ratio is e ** 0.1
    from verl.workers.engine.base import BaseEngine
    from verl.workers.engine_workers import TrainingWorker

    for owner, name in ((BaseEngine, "train_batch"), (TrainingWorker, "train_mini_batch")):
        assert hasattr(getattr(owner, name), "__wrapped__")  # our hooks are on
    if os.environ["VERL"] == "0.7":
        from verl.workers.actor.dp_actor import DataParallelPPOActor

        original = inspect.unwrap(DataParallelPPOActor.update_policy)  # verl's own decorator hides what it takes
        assert list(inspect.signature(original).parameters) == ["args", "kwargs"]
        for name in ("_optimizer_step", "update_policy"):
            assert hasattr(getattr(DataParallelPPOActor, name), "__wrapped__")
