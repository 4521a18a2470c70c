"""Run the losses of a ROLL that is on the path, in two remote workers: `released.py` does.

ROLL's own pipeline functions correct the batch and make the tracker here; its own actors, which Ray has started, make
the losses. Model, optimiser and what is between the two are stand-ins.
"""

import os
import sys

import released

if os.environ["BACKENDS"] == "0":
    sys.modules.update(dict.fromkeys(released.ABSENT))

import numpy as np
import ray
import torch
import tracker_diag_roll
from remote import VOCABULARY, WORLD, Actor, Model
from roll.configs.training_args import TrainingArguments
from roll.configs.worker_config import WorkerConfig
from roll.distributed.scheduler.protocol import DataProto
from roll.pipeline.agentic import agentic_pipeline
from roll.pipeline.agentic.agentic_config import AgenticConfig
from roll.utils.tracking import create_tracker

from tracker_diag import Monitor
from tracker_diag.attach.workers import Workers

STEPS, ROWS, WIDTH = 50, 48, 32


def configured():
    config = object.__new__(AgenticConfig)  # past what it derives from a cluster of GPUs
    for name, field in AgenticConfig.__dataclass_fields__.items():
        made = field.default_factory
        setattr(config, name, made() if callable(made) else field.default)
    config.pg_clip, config.enable_old_logprobs_recompute, config.track_with = 0.1, True, "stdout"
    # Two mini-batches for each worker.
    config.actor_train = WorkerConfig(training_args=TrainingArguments(per_device_train_batch_size=ROWS // WORLD // 2))
    return config


def batch(step, generator):
    """As ROLL has it before its correction; the policy's tail after a tool is wide from step 30 on."""
    tokens = torch.randint(0, VOCABULARY, (ROWS, WIDTH), generator=generator)
    mask = torch.ones(ROWS, WIDTH, dtype=torch.long)
    mask[:, :4] = mask[: ROWS // 2, 12:16] = 0
    new = Model()(tokens)[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2).detach()
    spread = torch.full(new.shape, 0.02)
    spread[: ROWS // 2, 15:] = 0.02 if step < 30 else 0.5
    old = new * mask[:, 1:] - spread * torch.randn(new.shape, generator=generator)
    tensors = {
        "input_ids": tokens, "attention_mask": torch.ones_like(tokens), "response_mask": mask, "old_log_probs": old,
        "infer_logprobs": old - 0.02 * torch.randn(new.shape, generator=generator), "ref_log_probs": old,
        "advantages": torch.randn(new.shape, generator=generator),
    }  # fmt: skip
    others = {
        "tags": np.array(["shop", "search"] * (ROWS // 2), object),
        "sample_uuid": np.array([f"{step}-{row}" for row in range(ROWS)], object),
    }
    return DataProto.from_dict(tensors, others, {"loss_mask_keys": ["response_mask"]})


def train(actors, data, **settings):
    """One step of the workers; what their losses were made of, by worker."""
    shares = zip(actors, data.chunk(WORLD), strict=True)
    return ray.get([actor.train.remote(share, **settings) for actor, share in shares])


def losses(hook):
    """A digest of each worker's losses and gradients over all steps, without us or with us; and what we have seen."""
    config, generator = configured(), torch.Generator().manual_seed(3)
    with released.job(Actor, WORLD, config, hook=hook) as actors:
        alone, messages = Monitor([], clip=(0.1, 0.1)), released.Messages()
        monitor = tracker_diag_roll.attach(config) if hook else None
        tracker = create_tracker(config.track_with, {})
        for step in range(STEPS):
            data, metrics = agentic_pipeline.apply_train_infer_correction_to_batch(config, batch(step, generator))
            made = train(actors, data)
            if hook:
                messages.wait(actors)
            for new, old, mask, advantages in (item for worker in made for item in worker[1:]):
                alone.observe(logprobs=new, old_logprobs=old, model_mask=mask, advantages=advantages)
            alone.log({}, step)
            tracker.log(values=metrics, step=step)
        digests = ray.get([actor.seen.remote() for actor in actors])
        if hook:
            assert released.pair(monitor, "policy") == released.pair(alone, "policy")
            without_recompute(actors, messages, generator)
    return digests, monitor


def without_recompute(actors, messages, generator):
    """The first of two epochs is where trainer and engine are compared, and the second where the policy has moved."""
    monitor = Monitor([])
    workers, data = Workers(monitor, fresh=False).open(), batch(0, generator)
    train(actors, data, enable_old_logprobs_recompute=False, ppo_epochs=2)
    messages.wait(actors)
    workers.take_in()
    monitor.log({}, 0)
    tokens = int(data.batch["response_mask"].sum())
    counts = {pair: released.pair(monitor, pair)["all", "count"] for pair in ("mismatch", "policy")}
    assert counts == {"mismatch": tokens, "policy": tokens}, counts


if __name__ == "__main__":
    released.compare(losses, "tracker_diag_roll.install", (
        "roll.pipeline.agentic.agentic_pipeline", "roll.pipeline.agentic.agentic_actor_worker",
        "roll.pipeline.base_worker", "roll.utils.train_infer_corrections", "roll.utils.tracking",
    ))  # fmt: skip
