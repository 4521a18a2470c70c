"""One rank of an AReaL job on the host, as torchrun starts it: python ranks.py FOLDER.

AReaL's FSDP engine, actor, loss and logger train a tiny model, some steps without us and then all with us; in place of
rollouts are made sequences, whose log-probabilities of the rollout engine are the trainer's with noise.
"""

import hashlib
import json
import os
import sys
from functools import partial, update_wrapper
from pathlib import Path
from types import SimpleNamespace

import stand_ins  # noqa: F401  # what AReaL imports besides
import torch
import torch.distributed as dist
import tracker_diag_areal
from areal.api import FinetuneSpec
from areal.api.alloc_mode import ModelAllocation
from areal.api.cli_args import GRPOConfig, OptimizerConfig, PPOActorConfig, RecoverConfig, StatsLoggerConfig
from areal.engine.fsdp_engine import FSDPPPOActor
from areal.trainer.ppo import actor as ppo
from areal.utils.recover import RecoverHandler
from areal.utils.stats_logger import StatsLogger
from torch.distributed import distributed_c10d

from tests.tensors.rank import settle
from tracker_diag import Monitor
from tracker_diag.attach.shares import together

STEPS, ROWS, PROMPT, WIDTH, WIDER_FROM = 45, 12, 4, 28, 30
COMPARED = 12
"""Steps of the training without us, and of what is held against it; each updates all weights twice."""
CHECKPOINT = Path(__file__).parents[1] / "trl" / "checkpoint"


def made(generator, actor, step):
    """Trajectories as a workflow returns them, of several lengths, a tool's result in half of them."""
    result, spreads = [], []
    for row in range(ROWS):
        at = torch.arange(WIDTH - row % 3)[None]
        tool = (at >= 12) & (at < 16) & (row < ROWS // 2)
        result.append({
            "input_ids": torch.randint(3, 600, at.shape, generator=generator),
            "attention_mask": torch.ones_like(at),
            "loss_mask": ((at >= PROMPT) & ~tool).long(),
            "rewards": torch.tensor([float(row % 2)]),
        })  # fmt: skip
        wider = (at >= 16) & (row < ROWS // 2) & (step >= WIDER_FROM)
        spreads.append(torch.where(wider, 0.5, 0.02))
    for item, spread, proximal in zip(result, spreads, actor.compute_logp(result), strict=True):
        noise = torch.randn(spread.shape, generator=generator) * spread
        item["prox_logp"] = proximal
        item["logprobs"] = (torch.roll(proximal, 1, -1) - noise) * item["loss_mask"]
    return result


def a_trainer(folder, world):
    where = {"experiment_name": "agent", "trial_name": "run"}
    stats = StatsLoggerConfig(**where, fileroot=str(folder))
    stats.wandb.mode = "offline"
    config = GRPOConfig(**where, stats_logger=stats)
    config.actor = PPOActorConfig(
        **where, path=str(CHECKPOINT), backend=f"fsdp:d{world}", dtype="float32", attn_impl="sdpa",
        use_decoupled_loss=True, ppo_n_minibatches=2, optimizer=OptimizerConfig(lr=1e-3), kl_ctl=0.0,
    )  # fmt: skip
    spec = FinetuneSpec(total_train_epochs=1, dataset_size=STEPS, train_batch_size=1)
    alloc = ModelAllocation.from_str(config.actor.backend, name="actor")
    actor = FSDPPPOActor(config.actor)
    actor.create_process_group(parallel_strategy=alloc.parallel)
    actor.initialize(addr=None, ft_spec=spec)
    recover = RecoverConfig(**where, fileroot=str(folder), mode="off")
    return SimpleNamespace(
        config=config, actor=actor, actor_alloc=alloc, stats_logger=StatsLogger(config, spec),
        recover_handler=RecoverHandler(recover, spec), recover_info=None,
    )  # fmt: skip


class Losses:
    """AReaL's loss function, and what it was given and gave, by step."""

    def __init__(self):
        self.given, self.values, self._theirs = [], hashlib.sha256(), ppo.grpo_loss_fn

    def __call__(self, logprobs, entropy, input_data, **named):
        value = self._theirs(logprobs, entropy, input_data, **named)
        self.values.update(value.detach().numpy().tobytes())
        self.given[-1].append({"logprobs": logprobs.detach(), "input_data": input_data, **named})
        return value


def collectives():
    """How many there were in the groups of this rank."""
    return sum(group._get_sequence_number_for_group() for group in distributed_c10d._world.pg_map)


def train(trainer, generator, steps, monitor=None):
    """As `PPOTrainer.train` does; digests of losses and weights, the number of collectives and of groups."""
    actor, before, groups = trainer.actor, collectives(), len(distributed_c10d._world.pg_map)
    losses = ppo.grpo_loss_fn.__wrapped__ if monitor else ppo.grpo_loss_fn
    for step in steps:
        losses.given.append([])
        actor.ppo_update(actor.compute_advantages(made(generator, actor, step)))
        actor.step_lr_scheduler()
        actor.set_version(step + 1)
        trainer.stats_logger.commit(0, step, step, actor.export_stats())
        dist.barrier(group=actor.cpu_group)
    weights = hashlib.sha256()
    for parameter in actor.model.parameters():
        weights.update(parameter.detach().to_local().numpy().tobytes())
    return {
        "losses": losses.values.hexdigest(), "weights": weights.hexdigest(), "collectives": collectives() - before,
        "groups": len(distributed_c10d._world.pg_map) - groups,
    }  # fmt: skip


def main(folder):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    theirs, result = ppo.grpo_loss_fn, {}
    first = a_trainer(folder / "plain", world)
    ppo.grpo_loss_fn = update_wrapper(Losses(), theirs)
    result["plain"] = train(first, torch.Generator().manual_seed(rank), range(COMPARED))
    first.stats_logger.close()

    ppo.grpo_loss_fn = theirs
    trainer = a_trainer(folder / "watched", world)
    ppo.grpo_loss_fn = losses = update_wrapper(Losses(), theirs)
    tracker_diag_areal.Monitor = partial(Monitor, window=STEPS)  # in which all steps are
    ranks = []
    tracker_diag_areal.together = lambda *own: ranks.append(together(*own)) or ranks[-1]
    monitor = tracker_diag_areal.attach(trainer)
    generator = torch.Generator().manual_seed(rank)
    result["watched"] = train(trainer, generator, range(COMPARED), monitor)
    train(trainer, generator, range(COMPARED, STEPS), monitor)
    torch.save(losses.given, folder / f"{rank}.pt")
    settle(*ranks)  # what it has to hand over is on its way
    dist.barrier(group=trainer.actor.cpu_group)
    trainer.stats_logger.close()
    table = monitor.slices_table()
    result |= {
        "hooked": ppo.grpo_loss_fn is not losses,
        "table": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        "failures": [str(failure) for failure in monitor.failures],
        "backends": [failure.name for failure in monitor.trackers],
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier(group=trainer.actor.cpu_group)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
