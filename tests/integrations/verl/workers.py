"""The policy pair from remote workers: a real Ray job whose two actors run verl's own loss and mini-batch loop on CPU.

Model and engine are tiny; what verl does with an update is verl's: `TrainingWorker.train_mini_batch`,
`BaseEngine.train_batch`, `ppo_loss` and the policy losses it looks up. `test_verl.py` runs this.
"""

import inspect
import json
import logging
import time

import numpy as np
import pytest
import ray
import torch
import tracker_diag_verl.workers
import verl  # noqa: F401  # loads the plugin, in this process and in each worker's
from remote import ROWS, WIDTH, WORLD, Actor, Trains, batch, config, updated
from verl.trainer.ppo import core_algos
from verl.utils.tracking import Tracking
from verl.workers.engine.base import BaseEngine
from verl.workers.engine_workers import TrainingWorker

from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


@pytest.fixture
def actors():
    started = []

    def start(n=WORLD):
        started.extend(ray.remote(num_cpus=1)(Actor).remote(rank) for rank in range(n))
        return started

    yield start
    for one in started:
        ray.kill(one)


@pytest.fixture
def tracking():
    made = Tracking("agent", "run", default_backend=["console"], config={"trainer": {"project_name": "agent"}})
    made.captured = CapturingTracker()
    made.diag.add(made.captured)
    yield made
    made.finish()


def watch():
    return tracker_diag_verl._Watch.current._workers


def come(n):
    """Wait until `n` messages have come, a minute at most."""
    end = time.monotonic() + 60
    while len(watch()._come) < n:
        assert time.monotonic() < end, f"{len(watch()._come)} of {n} have come"
        time.sleep(0.01)


def step(actors, batches, **how):
    done = ray.get([one.update.remote(data, **how) for one, data in zip(actors, batches, strict=True)])
    ray.get([one.wait.remote() for one in actors])
    come(len(actors))
    return done


def test_the_functions_that_are_looked_at_take_what_they_did():
    assert list(inspect.signature(core_algos.get_policy_loss_fn).parameters) == ["name"]
    assert list(inspect.signature(BaseEngine.train_batch).parameters)[:3] == ["self", "data", "loss_function"]
    assert list(inspect.signature(TrainingWorker.train_mini_batch).parameters) == ["self", "data"]
    assert callable(BaseEngine.is_mp_src_rank_with_outputs)
    assert {"vanilla", "gspo"} <= set(core_algos.POLICY_LOSS_REGISTRY)
    for loss in core_algos.POLICY_LOSS_REGISTRY.values():
        assert set(tracker_diag_verl.workers.TAKES) <= set(inspect.signature(loss).parameters)


def test_what_two_remote_workers_sketch_is_what_one_process_observes(actors, tracking, monkeypatch):
    """And their losses and gradients are bitwise those of the same update here without us."""
    started, rng = actors(), np.random.default_rng(0)
    batches = [batch(rng) for _ in started]
    done = step(started, batches, mini=ROWS)
    tracking.log({"critic/score/mean": 0.5}, 1)
    ours = tracking.diag.state_dict()["windows"]

    seen, losses = [], core_algos.get_policy_loss_fn
    kept = core_algos.POLICY_LOSS_REGISTRY["vanilla"]

    def keep(**given):
        seen.append({name: given[name].detach().clone() for name in tracker_diag_verl.workers.TAKES})
        return kept(**given)

    assert losses.__wrapped__ is not losses
    from verl.workers.utils import losses as theirs

    monkeypatch.setattr(theirs, "get_policy_loss_fn", lambda name: keep)
    for data, (loss, gradients) in zip(batches, done, strict=True):
        engine = updated(Trains(config()), data, mini=ROWS)
        assert engine.losses == loss
        assert all(torch.equal(a, b) for a, b in zip(engine.gradients, gradients, strict=True))
    alone = Monitor(clip=(0.05, 0.3))
    for one in seen:
        alone.observe(
            logprobs=one["log_prob"], old_logprobs=one["old_log_prob"], model_mask=one["response_mask"],
            advantages=one["advantages"],
        )  # fmt: skip
    alone.log({"critic/score/mean": 0.5}, 1)
    dump = json.dumps
    assert dump(ours, sort_keys=True, default=str) == dump(alone.state_dict()["windows"], sort_keys=True, default=str)


def count(tracking, slice="all"):
    table = tracking.diag.slices_table()
    at = table.columns.index
    return {(row[at("pair")], row[at("slice")]): row[at("count")] for row in table.rows}.get(("policy", slice), 0)


@pytest.mark.nightly
def test_of_several_mini_batches_the_first_is_left_out(actors, tracking):
    started, rng = actors(), np.random.default_rng(0)
    step(started, [batch(rng) for _ in started], mini=ROWS // 2, epochs=2)
    tracking.log({}, 1)
    tokens = ROWS * WIDTH - ROWS // 2 * 4
    every = 2 * 2 * tokens  # workers, epochs
    assert every * 0.7 < count(tracking) < every * 0.8  # three of four, whose rows are drawn


@pytest.mark.nightly
def test_a_worker_without_trained_tokens_and_one_that_dies_hold_up_nobody(actors, tracking):
    started, rng = actors(), np.random.default_rng(0)
    step(started, [batch(rng), batch(rng, empty=True)], mini=ROWS)
    tracking.log({}, 1)
    one = count(tracking)
    assert one == ROWS * WIDTH - ROWS // 2 * 4
    started[1].die.remote()
    for at in range(2, 16):
        step(started[:1], [batch(rng)], mini=ROWS)
        tracking.log({}, at)
    assert "RES007" in {found.rule.id for _, found in tracking.captured.findings}
    assert tracking.diag.health["rank_errors"] == 0


@pytest.mark.nightly
@pytest.mark.matrix("verl", "real modules, made tensors", "Ray job, 2 remote workers")
def test_a_tail_after_tools_in_the_workers_reaches_every_tracker_and_the_webhook(
    actors, tmp_path, monkeypatch, new_mlflow_store, alerted
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", new_mlflow_store(tmp_path))
    monkeypatch.chdir(tmp_path)
    started, rng = actors(), np.random.default_rng(0)
    trackers = ["mlflow", "tensorboard", "trackio", "wandb"]
    tracking = Tracking(alerted.project, "run", default_backend=trackers, config={"trainer": {"project_name": "a"}})
    for at in range(1, 46):
        step(started, [batch(rng, post=0.02 if at < 30 else 0.6, text=0.02) for _ in started], mini=ROWS)
        tracking.log(data={"critic/score/mean": 0.5}, step=at)
    monitor = tracking.diag
    del tracking
    assert monitor.health["rank_errors"] == monitor.health["integration_errors"] == 0
    assert alerted("POL001") == {*trackers, "webhook"}
