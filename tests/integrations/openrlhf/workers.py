"""The policy pair from OpenRLHF's remote actors: a real Ray job, two of them with its own `fit`, on the CPU.

Model and optimiser are stand-ins, and what generates and scores is in the test. `test_openrlhf.py` runs this.
"""

import argparse
import json
import logging
import socket
import sys
import threading
import time
import traceback

import checks
import numpy as np
import pytest
import ray
import torch
import tracker_diag_openrlhf
from checks import FLAGS, PROMPT, RESPONSE, Group, one_step, samples
from openrlhf.utils.config import hierarchize
from remote import WORLD, Actor

from tracker_diag import Monitor
from tracker_diag.attach.mailbox import MAILBOX
from tracker_diag.attach.workers import Workers

a_trainer = checks.a_trainer

OF_ACTORS = {
    "actor.dual_clip": None, "actor.loss_agg_mode": "token-mean", "actor.aux_loss_coef": 0.0,
    "actor.entropy_coef": None, "algo.advantage.is_correction_mode": "clip",
    "algo.advantage.is_correction_gating": "ratio", "algo.advantage.is_correction_threshold": (0.0, 2.0),
    "algo.advantage.is_correction_type": "tis",
    "algo.kl.use_loss": False, "ds.packing_samples": False, "train.async_enable": False, "train.max_epochs": 1,
    "train.micro_batch_size": 16, "vllm.sync_backend": "gloo",
}  # fmt: skip


@pytest.fixture
def actors():
    """Of a job whose processes Ray starts as `python -m tracker_diag_openrlhf` has it do."""
    args = hierarchize(argparse.Namespace(**FLAGS | OF_ACTORS))
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as server:
        hook = {"worker_process_setup_hook": "tracker_diag_openrlhf.install"}
        patch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": hook}))
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        port = server.getsockname()[1]
    yield [ray.remote(num_cpus=1)(Actor).remote(rank, port, args) for rank in range(WORLD)]
    ray.shutdown()


def test_ray_is_taken_down_while_its_mailbox_is_read():
    """By a thread that is not within Ray then, where it would be in the way."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    monitor = Monitor()
    Workers(monitor).open()
    (reader,) = (one for one in threading.enumerate() if one.name == MAILBOX)

    def stack():
        return [frame.name for frame in traceback.extract_stack(sys._current_frames()[reader.ident])]

    end = time.monotonic() + 60
    while "wait" not in stack():
        assert time.monotonic() < end, stack()
    assert not {"get", "get_objects"} & {*stack()}
    ray.shutdown()
    reader.join(60)
    assert not reader.is_alive()
    assert monitor.failures == []


class Remote(Group):
    """The group of the two actors; in their second update the policy has moved, by `post` after a tool."""

    def __init__(self, actors, rng):
        super().__init__()
        self.actors, self.rng, self.post = actors, rng, 0.02
        self.sent, self.come = 0, []

    def async_run_method_batch(self, method_name, **given):
        if method_name != "append":
            return super().async_run_method_batch(method_name, **given)
        self.experiences = given["experience"]
        return []

    def async_run_method(self, method_name, **given):
        if method_name != "fit":
            return []
        refs = []
        for actor, share in zip(self.actors, (self.experiences[::WORLD], self.experiences[1::WORLD]), strict=True):
            width, rows = PROMPT + RESPONSE, [len(one.sequences) for one in share]
            old, mask = torch.zeros(sum(rows), width), torch.zeros(sum(rows), width, dtype=torch.bool)
            for one, first in zip(share, np.cumsum([0, *rows]), strict=False):
                at = torch.arange(first, first + len(one.sequences))
                one.sequences[:, 0] = at  # by which the model knows them
                old[at, : one.action_mask.shape[1]] = one.action_log_probs.float()
                mask[at, : one.action_mask.shape[1]] = one.action_mask.bool()
            tool = ~mask & mask.cumsum(1).bool() & mask.flip(1).cumsum(1).flip(1).bool()
            drift = torch.where(tool.cumsum(1).bool(), self.post, 0.02) * torch.tensor(self.rng.normal(size=mask.shape))
            refs.append(actor.train.remote(share, old, drift.float()))
        status = ray.get(refs)
        ray.get([actor.wait.remote() for actor in self.actors])
        self.sent += WORLD
        end = time.monotonic() + 60
        while len(self.come) < self.sent:
            assert time.monotonic() < end, f"{len(self.come)} of {self.sent} messages have come"
            time.sleep(0.005)
        return status


@pytest.fixture
def group(actors, monkeypatch):
    """Whose actors' messages are counted as they come."""
    made, receive = Remote(actors, np.random.default_rng(0)), Workers.receive

    def received(workers, message):
        receive(workers, message)
        made.come.append(message)

    monkeypatch.setattr(Workers, "receive", received)
    return made


@pytest.mark.matrix("openrlhf", "real modules, made tensors", "Ray job, 2 remote workers")
def test_a_tail_after_tools_in_the_actors_reaches_every_tracker_and_the_webhook(
    group, a_trainer, tmp_path, alerted, underway
):
    with underway("mlflow", "trackio"):
        curves = {"logger.tensorboard_dir": str(tmp_path / "curves"), "logger.wandb.key": "0" * 40}
        trainer = a_trainer(group, **OF_ACTORS | curves)
        monitor = tracker_diag_openrlhf.attach(trainer)
        for step in range(1, 46):
            group.post = 0.02 if step < 30 else 0.6
            one_step(trainer, step, samples(group.rng))
        table = monitor.slices_table()
        trainer.wandb_logger.close()
        trainer.tensorboard_logger.close()
    columns = [table.columns.index(name) for name in ("pair", "slice", "count")]
    counts = {(pair, name): count for pair, name, count in ([row[at] for at in columns] for row in table.rows)}
    assert 0.4 < counts["policy", "all"] / counts["mismatch", "all"] < 0.6  # of two updates the second
    assert 0.3 < counts["policy", "post_tool"] / counts["mismatch", "post_tool"] < 0.7
    assert monitor.health["rank_errors"] == monitor.health["integration_errors"] == 0
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    assert "policy p95" in next(one["text"] for one in alerted.told if one["title"].startswith("POL001"))
