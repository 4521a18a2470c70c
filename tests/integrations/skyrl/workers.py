"""The policy pair from SkyRL's remote workers: a real Ray job, two of its actors with its own updates, on the CPU.

Model and optimiser are stand-ins, and the trainer's loop is in the test. `test_skyrl.py` runs this.
"""

import json
import logging
import socket
import time

import numpy as np
import pytest
import ray
import torch
import tracker_diag_skyrl
from checks import RESPONSE, ROWS, a_trainer, made, sync_step
from remote import WORLD, Actor
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.tracking import Tracking


@pytest.fixture
def actors():
    """Of a job whose processes Ray starts as our page says."""
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        hook = {"worker_process_setup_hook": "tracker_diag_skyrl.install"}
        patch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": hook}))
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        port = server.getsockname()[1]
    yield [ray.remote(num_cpus=1)(Actor).remote(rank, port) for rank in range(WORLD)]
    ray.shutdown()


@pytest.mark.matrix("skyrl", "real modules, made tensors", "Ray job, 2 remote workers")
def test_a_tail_after_tools_in_the_workers_reaches_every_tracker_and_the_webhook(
    actors, tmp_path, monkeypatch, alerted, underway
):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "curves"))
    rng, post = np.random.default_rng(0), torch.zeros(ROWS, RESPONSE)

    def update(model, batch):
        batch.metadata["response_length"] = RESPONSE
        tool = (batch["response_mask"] == 1) & (batch["loss_mask"] == 0)
        after = tool.cumsum(1).bool()
        noise = torch.where(after, post, 0.02) * torch.tensor(rng.normal(size=(ROWS, RESPONSE))).float()
        shares = zip(actors, batch.chunk(ROWS // WORLD), noise.chunk(WORLD), strict=True)
        ray.get([actor.train.remote(data, [0.0 * moved, moved]) for actor, data, moved in shares])
        ray.get([actor.wait.remote() for actor in actors])
        end = time.monotonic() + 60
        while len(workers._come) < 2 * WORLD:
            assert time.monotonic() < end, f"{len(workers._come)} messages have come"
            time.sleep(0.005)
        return {"policy_entropy": 0.7}

    with underway("mlflow", "trackio", "wandb"):
        tracking = Tracking("agent", "run", backend="tensorboard", config=SkyRLTrainConfig())
        trainer = a_trainer(RayPPOTrainer, tracking, _execute_training_step=update)
        monitor = tracker_diag_skyrl.attach(trainer)
        (workers,) = (one._workers for one in trainer._callback_handler.callbacks)
        for step in range(1, 46):
            post[:] = 0.02 if step < 30 else 0.6
            sync_step(trainer, step, made(rng))
        table = monitor.slices_table()
        trainer._fire("on_train_end")
        tracking.finish()
    columns = [table.columns.index(name) for name in ("pair", "slice", "count")]
    counts = {(pair, name): count for pair, name, count in ([row[at] for at in columns] for row in table.rows)}
    assert counts["policy", "all"] == counts["mismatch", "all"]
    assert counts["policy", "post_tool"] == counts["mismatch", "post_tool"]
    assert monitor.health["rank_errors"] == monitor.health["integration_errors"] == 0
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    assert "policy p95" in next(one["text"] for one in alerted.told if one["title"].startswith("POL001"))
