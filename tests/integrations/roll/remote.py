"""What the workers of `source.py` are made of, in a module that their processes can import."""

import hashlib
import os
from contextlib import nullcontext

import stand_ins  # noqa: F401  # what ROLL needs of it, in each worker too
import torch
from roll.distributed.executor.worker import RankInfo
from roll.distributed.strategy.strategy import TrainStrategy
from roll.pipeline import base_worker
from roll.pipeline.agentic.agentic_actor_worker import ActorWorker

WORLD, VOCABULARY = 2, 16


class Model(torch.nn.Module):
    """A token's logits come from the token before."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)))

    def forward(self, tokens):
        return self.table[tokens]


class Strategy(TrainStrategy):
    """Of a process that shares nothing: one forward pass and one step of the optimiser a mini-batch."""

    def __init__(self, worker):
        super().__init__(worker)
        self.model, self.digest = Model(), hashlib.sha256()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.0)  # so that no ratio is but what is planted
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer)

    def train_step(self, batch, loss_func):
        batch.meta_info |= {
            "batch_num_tokens": self._get_batch_num_tokens(batch),
            "global_valid_samples": self._get_global_valid_samples(batch),
        }
        loss, metrics = loss_func(batch, self.model(batch.batch["input_ids"]))
        loss.backward()
        for item in (loss.detach(), self.model.table.grad):
            self.digest.update(item.numpy().tobytes())
        self.optimizer.step()
        self.optimizer.zero_grad()
        return metrics


class Actor(ActorWorker):
    """ROLL's agentic actor of rank `rank`, with its own `train_step` and loss, on the CPU."""

    def __init__(self, rank, port, config):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1"}
        os.environ |= {"MASTER_PORT": str(port), "WORKER_NAME": f"actor_train-{rank}", "CLUSTER_NAME": "actor_train"}
        Actor.get_node_ip, Actor.get_free_port = staticmethod(lambda: "127.0.0.1"), staticmethod(lambda: port)
        base_worker.state_offload_manger = lambda **_: nullcontext()  # which measures a GPU's memory
        super().__init__(config.actor_train)
        self.rank_info = RankInfo(WORLD, dp_size=WORLD, rank=rank, dp_rank=rank)
        torch.distributed.init_process_group("gloo")
        self.pipeline_config, self.strategy, self.losses = config, Strategy(self), []

    def get_old_log_probs_with_cache(self, data, log_probs):
        """ROLL's own; what each loss is made of is kept."""
        old = super().get_old_log_probs_with_cache(data, log_probs)
        mask = data.batch["response_mask"][:, 1:].bool()
        self.losses.append((log_probs.detach(), old.detach().clone(), mask, data.batch["advantages"]))
        return old

    def train(self, data, **settings):
        """ROLL's `train_step`, and what its losses were made of since the last call."""
        vars(self.pipeline_config).update(settings)
        self.train_step(data)
        made, self.losses = self.losses, []
        return made

    def seen(self):
        """A digest of all losses and their gradients, once what was sent has gone out."""
        from tracker_diag_roll.workers import RECORDER

        RECORDER.close(60)
        return self.strategy.digest.hexdigest()
