"""What the workers of `workers.py` are made of, in a module that their processes can import."""

import stand_ins  # noqa: F401  # for the libraries of GPUs, in each worker too
import torch
from job import Waits
from openrlhf.trainer.ray import ppo_actor

WORLD = 2


class Model(torch.nn.Module):
    """What it says of the tokens is given by sequence, whose number is its first token; one parameter moves it."""

    def __init__(self):
        super().__init__()
        self.moved = torch.nn.Parameter(torch.zeros(()))
        self.given, self.drift, self.steps = None, None, 0

    def forward(self, sequences, action_mask, **_):
        text = self.given + self.drift if self.steps else self.given
        return text[sequences[:, 0], : action_mask.shape[1]] + self.moved, None


class Strategy:
    """Of one process that shares nothing: plain backward passes and steps."""

    ring_attn_group, ring_attn_size, ds_tensor_parallel_size, accumulated_gradient = None, 1, 1, 1

    def __init__(self, args):
        self.args = args

    def is_rank_0(self):
        return False  # which has no progress bar

    def all_reduce(self, metrics):
        return metrics

    def backward(self, loss, model, optimizer):
        loss.backward()

    def optimizer_step(self, optimizer, model, scheduler, name):
        optimizer.zero_grad()  # so that no ratio is but what the test plants
        model.steps += 1

    def get_grad_norm(self, model):
        return 0.0


class Actor(Waits, ppo_actor.PolicyModelActor.__ray_metadata__.modified_class):
    """OpenRLHF's own actor of rank `rank`, with its own trainer and its `fit`, on the CPU."""

    recorder = "tracker_diag_openrlhf.workers:RECORDER"

    def __init__(self, rank, port, args):
        torch.cuda.current_device = lambda: 0
        torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None
        super().__init__(WORLD, rank, "127.0.0.1", port)
        torch.distributed.init_process_group("gloo")
        self.strategy, self.actor = Strategy(args), Model()
        optimizer = torch.optim.SGD(self.actor.parameters(), 0.1)
        self.trainer = ppo_actor.ActorPPOTrainer(
            self.strategy, self.actor, None, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer),
            micro_train_batch_size=args.train.micro_batch_size, dataloader_pin_memory=False,
        )  # fmt: skip
        torch.cuda.current_device = lambda: "cpu"  # that is where it trains

    def train(self, experiences, old, drift):
        """Two updates on `experiences`; in the second the policy has moved by `drift` from `old`."""
        self.actor.given, self.actor.drift, self.actor.steps = old, drift, 0
        for experience in experiences:
            self.trainer.replay_buffer.append(experience)
        return self.fit()
