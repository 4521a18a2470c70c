"""What the workers of `source.py` are made of, in a module that their processes can import."""

import hashlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import stand_ins  # what NeMo-RL needs of it, in each worker too
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

WORLD, VOCABULARY = 2, 16

POLICY = "nemo_rl.models.policy"
entered = stand_ins._Library(POLICY)  # past its `__init__`, which has types of settings and refuses transformers 5.12
entered.__path__ = [str(Path(find_spec("nemo_rl").origin).parent / "models" / "policy")]
sys.modules[POLICY] = entered

from nemo_rl.algorithms.loss.loss_functions import ClippedPGLossFn  # noqa: E402
from nemo_rl.models.policy.workers.dtensor_policy_worker import DTensorPolicyWorkerImpl  # noqa: E402
from nemo_rl.utils.timer import Timer  # noqa: E402

MADE = []
"""What the losses of this worker are made of."""


class Loss(ClippedPGLossFn):
    """NeMo-RL's own; what it is made of is kept in its worker."""

    def __call__(self, next_token_logprobs, data, global_valid_seqs, global_valid_toks, **given):
        mask = data["token_mask"] * data["sample_mask"][:, None]
        new, (old, mask, advantages) = next_token_logprobs.detach(), (
            item[:, 1:].clone() for item in (data["prev_logprobs"], mask, data["advantages"])
        )  # fmt: skip
        MADE.append((new, old, mask.bool(), advantages))
        return super().__call__(next_token_logprobs, data, global_valid_seqs, global_valid_toks, **given)


class Model(torch.nn.Module):
    """A token's logits come from the token before."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)))

    def forward(self, input_ids, **_):
        return SimpleNamespace(logits=self.table[input_ids])


class Optimizer(torch.optim.SGD):
    """Moves nothing, so that no ratio is but what is planted; keeps a digest of the gradients."""

    def __init__(self, model):
        super().__init__(model.parameters(), 0.0)
        self.digest = hashlib.sha256()

    def step(self, closure=None):
        for group in self.param_groups:
            for item in group["params"]:
                self.digest.update(item.grad.numpy().tobytes())
        return super().step(closure)


class OnCpu(TorchFunctionMode):
    """What is to be on a GPU is on the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*("cpu" if isinstance(arg, str) and arg == "cuda" else arg for arg in args), **kwargs)


class Actor(DTensorPolicyWorkerImpl):
    """NeMo-RL's worker of rank `rank`, with its own `train`; model and optimiser are stand-ins."""

    def __init__(self, rank, port):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=WORLD)
        mesh = dist.init_device_mesh("cpu", (WORLD, 1, 1), mesh_dim_names=("dp", "cp", "tp"))
        self.device_mesh, self.dp_mesh, self.cp_mesh, self.tp_mesh = mesh, mesh["dp"], mesh["cp"], mesh["tp"]
        self.dp_cp_mesh, self.dp_size, self.cp_size, self.tp_size = mesh["dp", "cp"]._flatten("dp_cp"), WORLD, 1, 1
        self.model, self.timer, self.dtype = Model(), Timer(), torch.float32
        self.optimizer = Optimizer(self.model)
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer)
        self.enable_seq_packing = self.is_gemma3 = self._is_reward_model = False
        self.sampling_params = self.max_grad_norm = None
        self.cfg = {
            "dynamic_batching": {"enabled": False}, "dtensor_cfg": {"sequence_parallel": False},
            "generation": {"temperature": 1.0},
        }  # fmt: skip
        torch.cuda.get_device_name = lambda: "none"
        torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_: None

    def trained(self, data, loss, batch, micro_batch):
        """NeMo-RL's `train`, and what its losses were made of."""
        MADE.clear()
        with OnCpu():
            result = self.train(data, loss, gbs=batch, mbs=micro_batch)
        self.optimizer.digest.update(result["global_loss"].numpy().tobytes())
        return list(MADE)

    def seen(self):
        """A digest of all losses and their gradients, once what was sent has gone out."""
        from tracker_diag_nemo_rl.workers import RECORDER

        RECORDER.close(60)
        return self.optimizer.digest.hexdigest()
