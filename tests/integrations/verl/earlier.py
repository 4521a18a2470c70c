"""verl before it had plugins, 0.7 and 0.8, loaded as its own setting does; `test_verl.py` runs this with each."""

import gc
import os

import numpy as np
import pytest
import torch
import verl  # loads what VERL_USE_EXTERNAL_MODULES names
from batches import RESPONSE, ROWS, TestWorkers, begun, made, train, v0_step  # noqa: F401  # a class of tests
from verl.trainer.ppo import ray_trainer
from verl.workers.engine.base import BaseEngine
from verl.workers.engine_workers import TrainingWorker

from tests.integrations.conformance import counted
from tracker_diag.testing import CapturingTracker


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_it_is_the_version_that_is_asked_for_and_its_workers_are_hooked():
    assert verl.__version__.startswith(os.environ["VERL"])
    hooked = [(BaseEngine, "train_batch"), (TrainingWorker, "train_mini_batch")]
    if os.environ["VERL"] == "0.7":
        from verl.workers.actor.dp_actor import DataParallelPPOActor

        hooked += [(DataParallelPPOActor, name) for name in ("_optimizer_step", "update_policy")]
    assert all(hasattr(getattr(owner, name), "__wrapped__") for owner, name in hooked)


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_reach_every_tracker(places, rng, alerted, trackio_runs):
    trackers = ["mlflow", "tensorboard", "wandb"]
    if os.environ["VERL"] == "0.7":  # which hands Trackio's `log` a name that it does not take: a run of one's own
        trackio_runs.start()
        alerted.ours.add("trackio")
    else:
        trackers.append("trackio")
    tracking = begun(*trackers, project=alerted.project)
    train(tracking, rng)
    tracking.diag.close()  # these releases end no run of a tracker but their own W&B's
    del tracking
    gc.collect()
    assert alerted("POL001") == {*trackers, "trackio", "webhook"}


@pytest.mark.matrix("verl", "real modules, made tensors")
def test_findings_of_a_run_without_a_tracker_are_in_files(rng, alerted):
    tracking = begun()
    train(tracking, rng)
    tracking.diag.close()
    assert alerted("POL001") == {"jsonl", "webhook"}


def test_a_run_is_watched_from_its_tracking_to_its_end_and_computed_as_without_us(rng):
    tracking = begun()
    monitor, captured = tracking.diag, CapturingTracker()
    monitor.add_tracker(captured)
    watched, alone = made(np.random.default_rng(1)), made(np.random.default_rng(1))
    metrics = v0_step(tracking, 1, watched)
    del tracking  # as when fit returns; there is no other end
    gc.collect()
    assert captured.summary is not None
    assert set(captured.own) == {1}
    tokens = counted(monitor, "mismatch")
    assert (tokens["all"], tokens["post_tool"]) == (int(watched.batch["response_mask"].sum()), ROWS // 2 * 10)
    assert monitor.failures == []
    assert not hasattr(ray_trainer.compute_advantage, "__wrapped__")  # the hooks are off
    unheard = type("Unheard", (), {"log": lambda self, data, step: None})()
    assert v0_step(unheard, 1, alone) == metrics  # and what verl computed is as without them
    assert all(torch.equal(watched.batch[name], value) for name, value in alone.batch.items())
