"""Run the loss, configs and monitors of a prime-rl that is on the path: `released.py` does, for each release."""

import asyncio
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import released

if os.environ["BACKENDS"] == "0":
    sys.modules.update(dict.fromkeys(released.ABSENT))

import numpy as np
import stand_ins  # noqa: F401  # what prime-rl imports and its loss does not reach
import torch

STEPS, SEQUENCES, WIDTH = 50, 24, 40
MONITORS = importlib.util.find_spec("prime_rl.monitors")


def sequence(rng, step):
    """Two turns with a tool's result between them; the tail after it is wide from step 30 on."""
    mask = np.zeros(WIDTH, bool)
    mask[6:18] = mask[24:38] = True
    new = rng.uniform(-3, -0.1, WIDTH)
    spread = np.where(np.arange(WIDTH) >= 24, 0.02 if step < 30 else 0.5, 0.02)
    return mask, new, new - rng.normal(0, spread)


def train(config, log, load=lambda made: None):
    """prime-rl's `compute_loss` with the loss that `config` names, as its trainer calls it; a digest of gradients."""
    from prime_rl.trainer.rl import loss

    by_mode = hasattr(loss, "setup_loss_fns")  # up to v0.6
    functions = loss.setup_loss_fns(config) if by_mode else loss.setup_rl_loss_fn(config)
    takes, seen = inspect.signature(loss.compute_loss).parameters, hashlib.sha256()
    rng = np.random.default_rng(3)
    for step in range(STEPS):
        made = [sequence(rng, step) for _ in range(SEQUENCES)]
        load(made)
        leaves = [torch.from_numpy(new).float().requires_grad_() for _, new, _ in made]
        given = {
            "trainer_logprobs": leaves,
            "inference_logprobs": [torch.from_numpy(old).float() for *_, old in made],
            "advantages": [torch.full((WIDTH,), 0.5 - number % 2) for number in range(SEQUENCES)],
            "loss_mask": [torch.from_numpy(mask) for mask, *_ in made],
            "loss_fns": functions, "rl_loss_fn": functions, "loss_scale": 26 * SEQUENCES, "rl_scale": 26 * SEQUENCES,
            "ce_scale": 1, "ref_kl_scale": 1,
        }  # fmt: skip
        absent = dict.fromkeys(("teacher_logprobs", "ref_logprobs", "rl_weights", "ce_weights", "ref_kl_weights"))
        value, _ = loss.compute_loss(**{name: item for name, item in (given | absent).items() if name in takes})
        value.backward()
        for item in (value.detach(), *(leaf.grad for leaf in leaves)):
            seen.update(item.numpy().tobytes())
        log({"optim/lr": 1e-5, "step": step}, step)
    return seen.hexdigest()


class Received:
    """A micro-batch as the orchestrator sends it: all sequences of a step in one."""

    def __init__(self, made):
        self.input_ids = [*range(6), *[40] * (WIDTH - 6)] * len(made)
        self.position_ids = [*range(WIDTH)] * len(made)
        self.loss_mask = [bool(item) for mask, *_ in made for item in mask]
        self.inference_logprobs = [float(item) for *_, old in made for item in old]
        self.advantages = self.temperatures = [1.0] * len(self.input_ids)
        self.env_names, self.sequence_lengths = ["shop"] * len(self.input_ids), [WIDTH] * len(made)
        self.seq_lens, self.lora_num_tokens = self.sequence_lengths, [len(self.input_ids)]

    def __getattr__(self, name):
        return None  # what such a batch need not have


def loader():
    """prime-rl's own, over what comes from an orchestrator: gives the function that has it make the step's batch."""
    from prime_rl.trainer.rl.data import DataLoader

    item = object.__new__(DataLoader)

    def load(made):
        item.receiver = SimpleNamespace(receive=lambda: [Received(made)])
        item.get_batch()

    return load


def monitors():
    """prime-rl's own, set up by its own function: how to log to them, and how to end them."""
    if MONITORS:
        theirs = importlib.import_module("prime_rl.monitors")
        config = importlib.import_module("prime_rl.configs.monitors").FileMonitorConfig()
        asyncio.run(theirs.setup(file=config, output_dir=Path.cwd()))
        return lambda row, step: asyncio.run(theirs.log(row, step=step)), lambda: asyncio.run(theirs.finalize())
    item = importlib.import_module("prime_rl.utils.monitor").setup_monitor()
    return lambda row, step: item.log(row, step=step), item.close


def main():
    load = loader()  # prime-rl imports what it is made of before our loss
    import tracker_diag_prime_rl
    from prime_rl.configs.trainer import CustomLossConfig, DefaultLossConfig

    plain = train(DefaultLossConfig(), lambda row, step: None)
    released.start_run()
    log, end = monitors()
    hooked = train(CustomLossConfig(import_path="tracker_diag_prime_rl.loss"), log, load)
    monitor = tracker_diag_prime_rl.attach()  # the one that watches by now
    known = {row[1] for row in monitor.slices_table().rows}
    assert {"text_only", "post_tool"} <= known, known
    end()
    log_module = "prime_rl.monitors" if MONITORS else "prime_rl.utils.monitor"
    loss_modules = ["prime_rl.trainer.rl.loss", "prime_rl.trainer.rl.data", "prime_rl.configs.trainer"]
    released.keep(monitor, [*loss_modules, log_module], same=plain == hooked)


if __name__ == "__main__":
    main()
