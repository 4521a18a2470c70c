"""The policy pair from SkyRL's remote workers: a real Ray job, two of its actors with its own updates, on the CPU.

Model and optimiser are stand-ins, and the trainer's loop is in the test. `test_skyrl.py` runs this.
"""

import re

import numpy as np
import pytest
import ray
import torch
import tracker_diag_skyrl
from checks import RESPONSE, ROWS, a_trainer, made, sync_step
from job import job
from remote import WORLD, Actor
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.tracking import Tracking

from tests.integrations.conformance import counted


@pytest.mark.matrix("skyrl", "real modules, made tensors", "Ray job, 2 remote workers")
def test_a_tail_after_tools_in_the_workers_reaches_every_tracker_and_the_webhook(places, alerted, underway):
    rng, post = np.random.default_rng(0), torch.zeros(ROWS, RESPONSE)

    def update(model, batch):
        batch.metadata["response_length"] = RESPONSE
        tool = (batch["response_mask"] == 1) & (batch["loss_mask"] == 0)
        spread = torch.where(tool.cumsum(1).bool(), post, 0.02)
        noise = spread * torch.tensor(rng.normal(size=(ROWS, RESPONSE))).float()
        shares = zip(actors, batch.chunk(ROWS // WORLD), noise.chunk(WORLD), strict=True)
        ray.get([actor.train.remote(data, [0.0 * moved, moved]) for actor, data, moved in shares])
        wait(actors, each=2)
        return {"policy_entropy": 0.7}

    with job(Actor, WORLD, hook="tracker_diag_skyrl.install") as (actors, wait), underway("mlflow", "trackio", "wandb"):
        tracking = Tracking("agent", "run", backend="tensorboard", config=SkyRLTrainConfig())
        trainer = a_trainer(RayPPOTrainer, tracking, _execute_training_step=update)
        monitor = tracker_diag_skyrl.attach(trainer)
        for step in range(1, 46):
            post[:] = 0.02 if step < 30 else 0.6
            sync_step(trainer, step, made(rng))
        tracking.finish()
    policy, mismatch = counted(monitor, "policy"), counted(monitor, "mismatch")
    assert [policy[name] for name in ("all", "post_tool")] == [mismatch[name] for name in ("all", "post_tool")]
    assert monitor.health["rank_errors"] == monitor.health["integration_errors"] == 0
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    text = next(item["text"] for item in alerted.alerts if "(POL001" in item["title"])
    assert re.search(r"policy p95 \|log-ratio\| is \S+ after tool\s+calls", text), text
