"""Run the loss of a slime that is on the path: `released.py` does, for each release.

`slime.backends.megatron_utils` is entered past its `__init__`, which patches kernels. Megatron is a stand-in, but for
what the loss reaches: the parallel state of one process, and the cross-entropy of a vocabulary that is not divided.
"""

import hashlib
import importlib
import inspect
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import released

if os.environ["BACKENDS"] == "0":
    sys.modules.update(dict.fromkeys(released.ABSENT))

import stand_ins  # noqa: F401  # what slime imports and its loss does not reach
import torch
import torch.distributed as dist
import tracker_diag_slime

STEPS, SAMPLES, PROMPT, RESPONSE, VOCABULARY = 50, 24, 4, 32, 16
PACKAGE = "slime.backends.megatron_utils"
MODULES = ("loss", "cp_utils", "initialize")


class State(ModuleType):
    """`megatron.core.mpu` of a single process."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        answer = 1 if "world_size" in name else 0 if name.endswith("_rank") else None
        return lambda *_, **__: name.startswith("is_") or answer


def cross_entropy(logits, tokens, _):
    """As Megatron's `fused_vocab_parallel_cross_entropy`, (T, 1, V) and (T, 1)."""
    return torch.nn.functional.cross_entropy(logits.squeeze(1), tokens.squeeze(1), reduction="none").unsqueeze(1)


def enter(source):
    """Make the modules of the loss importable."""
    import megatron.core

    megatron.core.mpu = sys.modules["megatron.core.mpu"] = State("megatron.core.mpu")
    fused = ModuleType("megatron.core.fusions.fused_cross_entropy")
    fused.fused_vocab_parallel_cross_entropy = cross_entropy
    sys.modules[fused.__name__] = fused
    package = ModuleType(PACKAGE)
    package.__path__ = [str(Path(source, *PACKAGE.split(".")))]
    sys.modules[PACKAGE] = package
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for name in ("slime.observability.logging_utils", *tracker_diag_slime.FORMERLY):
        if Path(source, *name.split(".")).with_suffix(".py").is_file():
            module = importlib.import_module(name)
            if hasattr(module, "log"):
                return importlib.import_module(f"{PACKAGE}.loss"), module
    raise SystemExit("no module with slime's log")


def arguments(custom):
    return Namespace(
        loss_type="policy_loss", advantage_estimator="grpo", eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=None,
        entropy_coef=0.0, rollout_temperature=1.0, rollout_top_p=1.0, allgather_cp=False, log_probs_chunk_size=-1,
        qkv_format="thd", true_on_policy_mode=False, use_rollout_logprobs=False, use_opsm=False, use_opd=False,
        use_kl_loss=False, get_mismatch_metrics=True, use_tis=True, tis_clip=2.0, tis_clip_low=0.0,
        custom_tis_function_path=custom,
        custom_pg_loss_reducer_function_path=None, calculate_per_token_loss=False, recompute_loss_function=False,
        global_batch_size=SAMPLES, use_wandb=False, use_tensorboard=False,
    )  # fmt: skip


def batch(generator, step):
    """Samples with a tool's result in the middle; the tail of the mismatch after it is wide from step 30 on."""
    logits = torch.randn(1, SAMPLES * (PROMPT + RESPONSE), VOCABULARY, generator=generator)
    tokens = [torch.randint(0, VOCABULARY, (PROMPT + RESPONSE,), generator=generator) for _ in range(SAMPLES)]
    masks = [torch.ones(RESPONSE, dtype=torch.int) for _ in tokens]
    old, rollout = [], []
    for number, (item, mask) in enumerate(zip(tokens, masks, strict=True)):
        mask[12:16] = 0
        end = (number + 1) * (PROMPT + RESPONSE) - 1
        under = logits[0, end - RESPONSE : end].log_softmax(-1)
        old.append(under.gather(1, item[PROMPT:, None]).squeeze(1))
        spread = torch.full((RESPONSE,), 0.02)
        spread[16:] = 0.02 if step < 30 else 0.5
        rollout.append(old[-1] - spread * torch.randn(RESPONSE, generator=generator))
    return logits.requires_grad_(), {
        "unconcat_tokens": tokens, "loss_masks": masks, "log_probs": old, "rollout_log_probs": rollout,
        "advantages": [torch.full((RESPONSE,), 0.5 - number % 2) for number in range(SAMPLES)],
        "total_lengths": [PROMPT + RESPONSE] * SAMPLES, "response_lengths": [RESPONSE] * SAMPLES,
        "rollout_mask_sums": [mask.sum() for mask in masks], "group_mask_sums": [mask.sum() for mask in masks],
    }  # fmt: skip


def train(loss, logging_utils, custom):
    """slime's `loss_function` as its trainer calls it; a digest of all gradients."""
    args, generator, seen = arguments(custom), torch.Generator().manual_seed(3), hashlib.sha256()
    takes = inspect.signature(loss.loss_function).parameters
    for step in range(STEPS):
        logits, given = batch(generator, step)
        everything = {
            "args": args, "batch": given, "num_microbatches": 1, "step_global_batch_size": SAMPLES, "logits": logits
        }  # fmt: skip
        value, _, log = loss.loss_function(**{name: item for name, item in everything.items() if name in takes})
        value.backward()
        for item in (value.detach(), logits.grad):
            seen.update(item.numpy().tobytes())
        row = {
            f"train/{name}": float(number) / SAMPLES
            for name, number in zip(log["keys"], log["values"][1:], strict=True)
        }
        logging_utils.log(args, row | {"train/step": step}, step_key="train/step")
    return seen.hexdigest()


def main():
    loss, logging_utils = enter(sys.argv[1])
    plain = train(loss, logging_utils, None)
    released.start_run()
    hooked = train(loss, logging_utils, "tracker_diag_slime.tis")
    monitor = tracker_diag_slime.attach(None)  # the one that watches by now
    monitor.close()
    modules = [*(f"{PACKAGE}.{name}" for name in MODULES), logging_utils.__name__]
    released.keep(monitor, modules, same=plain == hooked)


if __name__ == "__main__":
    main()
