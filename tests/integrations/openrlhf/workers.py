"""The policy pair from OpenRLHF's remote actors: a real Ray job, two of them with its own `fit`, on the CPU.

Model and optimiser are stand-ins, and what generates and scores is in the test. `test_openrlhf.py` runs this.
"""

import argparse
import logging
import re
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
from job import job
from openrlhf.utils.config import hierarchize
from remote import WORLD, Actor

from tests.integrations.conformance import counted
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


def test_ray_is_taken_down_while_its_mailbox_is_read():
    """By a thread that is not within Ray then, where it would be in the way."""
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    monitor = Monitor()
    Workers(monitor).open()
    (reader,) = (item for item in threading.enumerate() if item.name == MAILBOX)

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

    def __init__(self, actors, wait, rng):
        super().__init__()
        self.actors, self.wait, self.rng, self.post = actors, wait, rng, 0.02

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
            width, rows = PROMPT + RESPONSE, [len(item.sequences) for item in share]
            old, mask = torch.zeros(sum(rows), width), torch.zeros(sum(rows), width, dtype=torch.bool)
            for item, first in zip(share, np.cumsum([0, *rows]), strict=False):
                at = torch.arange(first, first + len(item.sequences))
                item.sequences[:, 0] = at  # by which the model knows them
                old[at, : item.action_mask.shape[1]] = item.action_log_probs.float()
                mask[at, : item.action_mask.shape[1]] = item.action_mask.bool()
            tool = ~mask & mask.cumsum(1).bool() & mask.flip(1).cumsum(1).flip(1).bool()
            drift = torch.where(tool.cumsum(1).bool(), self.post, 0.02) * torch.tensor(self.rng.normal(size=mask.shape))
            refs.append(actor.train.remote(share, old, drift.float()))
        status = ray.get(refs)
        self.wait(self.actors)
        return status


@pytest.mark.matrix("openrlhf", "real modules, made tensors", "Ray job, 2 remote workers")
def test_a_tail_after_tools_in_the_actors_reaches_every_tracker_and_the_webhook(a_trainer, tmp_path, alerted, underway):
    args = hierarchize(argparse.Namespace(**FLAGS | OF_ACTORS))
    hook = "tracker_diag_openrlhf.install"  # as `python -m tracker_diag_openrlhf` has it
    with job(Actor, WORLD, args, hook=hook) as (actors, wait), underway("mlflow", "trackio"):
        group = Remote(actors, wait, np.random.default_rng(0))
        curves = {"logger.tensorboard_dir": str(tmp_path / "curves"), "logger.wandb.key": "0" * 40}
        trainer = a_trainer(group, **OF_ACTORS | curves)
        monitor = tracker_diag_openrlhf.attach(trainer)
        for step in range(1, 46):
            group.post = 0.02 if step < 30 else 0.6
            one_step(trainer, step, samples(group.rng))
        trainer.wandb_logger.close()
        trainer.tensorboard_logger.close()
    policy, mismatch = counted(monitor, "policy"), counted(monitor, "mismatch")
    assert 0.4 < policy["all"] / mismatch["all"] < 0.6  # of two updates the second
    assert 0.3 < policy["post_tool"] / mismatch["post_tool"] < 0.7
    assert monitor.health["rank_errors"] == monitor.health["integration_errors"] == 0
    assert alerted("POL001") == {"mlflow", "tensorboard", "trackio", "wandb", "webhook"}
    text = next(item["text"] for item in alerted.alerts if "(POL001" in item["title"])
    assert re.search(r"policy p95 \|log-ratio\| is \S+ after tool\s+calls", text), text
