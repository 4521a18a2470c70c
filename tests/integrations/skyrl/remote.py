"""What the workers of `workers.py` are made of, in a module that their processes can import."""

import stand_ins  # noqa: F401  # what SkyRL needs of it, in each worker too
import torch
from job import Waits
from skyrl.backends.skyrl_train.distributed.dispatch import MeshRank
from skyrl.backends.skyrl_train.distributed.strategy import DistributedStrategy
from skyrl.backends.skyrl_train.workers.worker import PolicyWorkerBase
from skyrl.train.config import SkyRLTrainConfig

WORLD = 2


class Model(torch.nn.Module):
    """What it says of the tokens is given; one parameter moves it."""

    def __init__(self):
        super().__init__()
        self.moved = torch.nn.Parameter(torch.zeros(()))
        self.given = None

    def forward(self, sequences, num_actions, **_):
        return self.given + self.moved, {"entropy": torch.zeros(sequences.shape)}


class Strategy:
    """Plain backward passes and steps; sums over the ranks are SkyRL's own."""

    all_reduce = DistributedStrategy.all_reduce
    world_size = WORLD

    def backward(self, loss, model, optimizer):
        loss.backward()

    def optimizer_step(self, optimizer, model, scheduler, name):
        optimizer.zero_grad()  # so that no ratio is but what the test plants


class Actor(Waits, PolicyWorkerBase):
    """SkyRL's worker of rank `rank`, with its own `forward_backward` and `optim_step`, on the CPU."""

    recorder = "tracker_diag_skyrl.workers:RECORDER"

    def __init__(self, rank, port):
        torch.cuda.current_device = lambda: "cpu"  # that is where it puts its tensors
        cfg = SkyRLTrainConfig().trainer
        cfg.algorithm.temperature, cfg.micro_train_batch_size_per_gpu = 1.0, 1 << 20
        super().__init__(
            cfg=cfg, world_size=WORLD, rank=rank, local_rank=rank, master_addr="127.0.0.1", master_port=port,
            sequence_parallel_size=1,
        )  # fmt: skip
        torch.distributed.init_process_group("gloo")
        self.device_mesh = torch.distributed.device_mesh.init_device_mesh(
            "cpu", (WORLD, 1), mesh_dim_names=("dp", "sp")
        )
        self.mesh_rank = MeshRank(dp=rank, sp=0, tp=0, pp=0, world_size=WORLD, dp_size=WORLD, pp_size=1)
        self.strategy, self.model = Strategy(), Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer)

    def train(self, data, noises):
        """An update for each of `noises`: how far the policy has moved from its old log-probabilities."""
        for noise in noises:
            self.model.given = data["action_log_probs"] + noise
            self.forward_backward(data)
            self.optim_step()
