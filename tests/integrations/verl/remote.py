"""What the workers of `workers.py` are made of, in a module that their processes can import."""

import os
from contextlib import nullcontext
from types import SimpleNamespace

import torch
import verl  # noqa: F401  # loads the plugin
from job import Waits
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.engine.base import BaseEngine
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

ROWS, PROMPT, WIDTH, WORLD, TOKENS = 32, 2, 24, 2, 11


def config(**settings):
    given = {
        "strategy": "fsdp", "rollout_n": 1, "ppo_mini_batch_size": 8, "ppo_micro_batch_size_per_gpu": 8,
        "use_kl_loss": False, "entropy_coeff": 0.0, "clip_ratio": 0.2,
        "clip_ratio_low": 0.05, "clip_ratio_high": 0.3,
    }  # fmt: skip
    return FSDPActorConfig(**(given | settings))


class Engine(BaseEngine):
    """A table of logits for a model, and plain gradient descent."""

    def __init__(self, settings):
        self.table = torch.nn.Parameter(torch.linspace(-1, 1, TOKENS))
        self.settings, self.gradients, self.losses = settings, [], []
        self.made = []

    def is_mp_src_rank_with_outputs(self):
        return True

    def get_data_parallel_size(self):
        return 1

    def get_data_parallel_rank(self):
        return 0

    def train_mode(self, **_):
        return nullcontext()

    def optimizer_zero_grad(self):
        self.table.grad = None

    def log_probs(self, ids):
        return torch.log_softmax(self.table, 0)[ids]

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        prompts, responses = data["prompts"], data["responses"]
        sequences = [torch.cat(both) for both in zip(prompts.unbind(), responses.unbind(), strict=True)]
        own = [self.log_probs(torch.cat([sequence[1:], sequence[:1]])) for sequence in sequences]
        values = torch.nested.as_nested_tensor(own, layout=torch.jagged)
        noise = data["noise"].to_padded_tensor(0.0) if data["noise"].is_nested else data["noise"]
        # What the actor's update did to each token is planted, on top of what the table learns.
        flat = values.values() + torch.cat([torch.cat([n.new_zeros(PROMPT - 1), n, n.new_zeros(1)]) for n in noise])
        loss, metrics = loss_function(model_output={"log_probs": flat}, data=data)
        loss.backward()
        self.losses.append(loss.item())
        return {"metrics": metrics, "model_output": None}

    def optimizer_step(self):
        self.gradients.append(self.table.grad.clone())
        with torch.no_grad():
            self.table -= 0.1 * self.table.grad
        return 1.0


class Trains(TrainingWorker):
    """The worker without its set-up, which starts a model on a GPU, and without its timers."""

    def __init__(self, settings):
        self.engine, self.loss_fn = Engine(settings), None
        self.profiler = SimpleNamespace(step=lambda: None)
        self.config = settings

    def train_batch(self, data):
        self.engine.train_batch(data, loss_function=lambda **given: ppo_loss(self.config, **given))
        return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": {"actor/pg_loss": [[0.0]]}})


def batch(rng, post=0.05, text=0.05, empty=False):
    """Ragged, as the trainer sends it to the actor: a tool result amid half of the responses."""
    rows = ROWS
    mask = torch.ones(rows, WIDTH, dtype=torch.int64)
    mask[: rows // 2, 8:12] = 0
    if empty:
        mask[:] = 0
    scale = torch.full((rows, WIDTH), text)
    scale[: rows // 2, 12:] = post
    noise = scale * torch.tensor(rng.normal(size=(rows, WIDTH))).float()
    responses = torch.tensor(rng.integers(0, TOKENS, (rows, WIDTH)))

    def ragged(values):
        return torch.nested.as_nested_tensor(list(values), layout=torch.jagged)

    old = torch.log_softmax(torch.linspace(-1, 1, TOKENS), 0)[responses]
    data = TensorDict(
        {
            "prompts": ragged(torch.ones(rows, PROMPT, dtype=torch.int64)), "responses": ragged(responses),
            "response_mask": ragged(mask), "old_log_probs": ragged(old), "noise": ragged(noise),
            "advantages": ragged(torch.tensor(rng.normal(size=(rows, WIDTH))).float() * mask),
            "attention_mask": ragged(torch.ones(rows, PROMPT + WIDTH, dtype=torch.int64)),
        },
        batch_size=[rows],
    )  # fmt: skip
    tokens = None if empty else int(mask.sum())
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=rows)
    return data


def updated(worker, data, mini=16, epochs=1):
    """What the trainer has the actor do in a step."""
    data = data.clone()
    tu.assign_non_tensor(data, mini_batch_size=mini, epochs=epochs, seed=1)
    worker.train_mini_batch(data)
    return worker.engine


class Actor(Waits):
    """A remote worker, rank `rank` of `WORLD`."""

    recorder = "tracker_diag_verl.workers:RECORDER"

    def __init__(self, rank, port):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
        self.worker = Trains(config())

    def update(self, data, **how):
        engine = updated(self.worker, data, **how)
        return engine.losses, [gradient.clone() for gradient in engine.gradients]
