"""The policy pair from remote workers: a real Ray job whose two actors run verl's own loss and mini-batch loop on CPU.

Model and engine are tiny; what verl does with an update is verl's: `TrainingWorker.train_mini_batch`,
`BaseEngine.train_batch`, `ppo_loss` and the policy losses it looks up. `test_verl.py` runs this.
"""

import inspect
import json

import numpy as np
import pytest
import ray
import tracker_diag_verl.workers
import verl  # noqa: F401  # loads the plugin, in this process and in each worker's
from batches import begun
from job import job
from remote import ROWS, WIDTH, WORLD, Actor, Trains, batch, config, updated
from verl.trainer.ppo import core_algos

from tests.integrations.conformance import counted, same
from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

TOKENS = ROWS * WIDTH - ROWS // 2 * 4


@pytest.fixture
def step():
    """Has the actors of a job train on a batch each; gives losses and gradients once what they sent has come."""
    with job(Actor, WORLD) as (actors, wait):

        def train(batches, **how):
            there = actors[: len(batches)]
            done = ray.get([item.update.remote(data, **how) for item, data in zip(there, batches, strict=True)])
            wait(there)
            return done

        train.actors = actors
        yield train


@pytest.fixture
def tracking():
    made = begun()
    made.diag.add_tracker(CapturingTracker())
    yield made
    made.finish()


def test_every_loss_of_verl_takes_what_is_looked_at():
    assert {"vanilla", "gspo"} <= set(core_algos.POLICY_LOSS_REGISTRY)
    for loss in core_algos.POLICY_LOSS_REGISTRY.values():
        assert set(tracker_diag_verl.workers.TAKES) <= set(inspect.signature(loss).parameters)


def test_what_two_remote_workers_sketch_is_what_one_process_observes(step, tracking, monkeypatch):
    """And their losses and gradients are bitwise those of the same update here without us."""
    rng, seen = np.random.default_rng(0), []
    batches = [batch(rng) for _ in range(WORLD)]
    done = step(batches, mini=ROWS)
    tracking.log({"critic/score/mean": 0.5}, 1)
    vanilla = core_algos.POLICY_LOSS_REGISTRY["vanilla"]

    def keep(**given):
        seen.append({name: given[name].detach().clone() for name in tracker_diag_verl.workers.TAKES})
        return vanilla(**given)

    from verl.workers.utils import losses

    monkeypatch.setattr(losses, "get_policy_loss_fn", lambda name: keep)
    for data, (loss, gradients) in zip(batches, done, strict=True):
        engine = updated(Trains(config()), data, mini=ROWS)
        assert engine.losses == loss
        assert same(engine.gradients, gradients)
    alone = Monitor(clip=(0.05, 0.3))
    for item in seen:
        alone.observe(
            logprobs=item["log_prob"], old_logprobs=item["old_log_prob"], model_mask=item["response_mask"],
            advantages=item["advantages"],
        )  # fmt: skip
    alone.log({"critic/score/mean": 0.5}, 1)
    ours, expected = (
        json.dumps(monitor.state_dict()["windows"], sort_keys=True, default=str) for monitor in (tracking.diag, alone)
    )
    assert ours == expected


def test_of_several_mini_batches_the_first_is_left_out(step, tracking):
    rng = np.random.default_rng(0)
    step([batch(rng) for _ in range(WORLD)], mini=ROWS // 2, epochs=2)
    tracking.log({}, 1)
    every = 2 * 2 * TOKENS  # workers, epochs
    assert every * 0.7 < counted(tracking.diag, "policy")["all"] < every * 0.8  # three of four, whose rows are drawn


def test_a_worker_without_trained_tokens_and_one_that_dies_hold_up_nobody(step, tracking):
    rng, monitor = np.random.default_rng(0), tracking.diag
    step([batch(rng), batch(rng, empty=True)], mini=ROWS)
    tracking.log({}, 1)
    table = monitor.slices_table()
    at = table.columns.index
    assert {row[at("count")] for row in table.rows if row[at("slice")] == "all" and row[at("count")]} == {TOKENS}
    step.actors[1].die.remote()
    for number in range(2, 16):
        step([batch(rng)], mini=ROWS)
        tracking.log({}, number)
    assert "RES007" in {finding.rule.id for finding in monitor.summary().findings}
    assert monitor.health["rank_errors"] == 0


@pytest.mark.matrix("verl", "real modules, made tensors", "Ray job, 2 remote workers")
def test_a_tail_after_tools_in_the_workers_reaches_every_tracker_and_the_webhook(step, places, alerted):
    rng, trackers = np.random.default_rng(0), ["mlflow", "tensorboard", "trackio", "wandb"]
    tracking = begun(*trackers, project=alerted.project)
    for at in range(1, 46):
        step([batch(rng, post=0.02 if at < 30 else 0.6, text=0.02) for _ in range(WORLD)], mini=ROWS)
        tracking.log(data={"critic/score/mean": 0.5}, step=at)
    monitor = tracking.diag
    del tracking
    assert monitor.health["rank_errors"] == monitor.health["integration_errors"] == 0
    assert alerted("POL001") == {*trackers, "webhook"}
