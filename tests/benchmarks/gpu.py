"""What holds on a GPU, printed as JSON: python tests/benchmarks/gpu.py

- statistics of tensors on the GPU are those of the same tensors on the CPU, to rounding;
- `observe` waits for nothing: no call that synchronises, and it returns while earlier work is still running;
- the memory of a training step is what `preflight` estimates.
"""

import gc
import json
import tempfile
import time
from statistics import median
from typing import Any

import peft
import torch
import transformers

from tracker_diag import Monitor
from tracker_diag.preflight.memory import GIB, estimate, plan_from
from tracker_diag.records import Scalar
from tracker_diag.testing import CapturingTracker

ROWS, LENGTH, STEPS = 64, 4096, 20
SHAPE = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip


def batch(seed: int, device: str) -> dict[str, torch.Tensor]:
    """Log-probabilities of three policies, a mask, and which tokens come after a tool's answer; all (rows, length)."""
    made = torch.Generator().manual_seed(seed)
    old = -0.5 - torch.rand(ROWS, LENGTH, generator=made)
    names = {
        "logprobs": old + 0.02 * torch.randn(ROWS, LENGTH, generator=made),
        "old_logprobs": old,
        "rollout_logprobs": old + 0.05 * torch.randn(ROWS, LENGTH, generator=made),
        "ref_logprobs": old + 0.1 * torch.randn(ROWS, LENGTH, generator=made),
        "response_mask": torch.ones(ROWS, LENGTH, dtype=torch.bool),
        "model_mask": torch.rand(ROWS, LENGTH, generator=made) < 0.8,
    }
    return {name: tensor.to(device) for name, tensor in names.items()}


def series(device: str) -> dict[str, float]:
    """All that is written of a few steps whose tensors are on `device`."""
    tracker = CapturingTracker()
    monitor = Monitor((tracker,))
    for step in range(STEPS):
        monitor.observe(**batch(step, device))
        monitor.log({"reward": 0.5}, step=step)
    monitor.close()
    scalars = (
        (step, record) for step, records in tracker.records.items() for record in records if isinstance(record, Scalar)
    )
    return {
        f"{record.name}@{step}": record.value for step, record in scalars if not record.name.startswith("diag/health")
    }


def waiting() -> dict[str, Any]:
    """Milliseconds of `observe` behind 300 ms of work, and of a step of work with and without us, in turn."""
    monitor, tensors = Monitor(()), batch(0, "cuda")
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def work(times: int) -> None:
        for _ in range(times):
            torch.mm(square, square)

    monitor.observe(**tensors)
    monitor.log({}, step=0)
    work(10)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work(100)
    torch.cuda.synchronize()
    alone = time.perf_counter() - begun
    times = max(1, int(100 * 0.3 / alone))
    torch.cuda.set_sync_debug_mode("error")
    try:
        work(times)
        begun = time.perf_counter()
        monitor.observe(**tensors)
        behind = time.perf_counter() - begun
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monitor.log({}, step=1)
    torch.cuda.synchronize()
    calls: dict[str, list[float]] = {"observe_ms": [], "log_ms": []}
    for step in range(2, 12):
        begun = time.perf_counter()
        monitor.observe(**tensors)
        seen = time.perf_counter()
        torch.cuda.synchronize()
        arrived = time.perf_counter()
        monitor.log({}, step=step)
        calls["observe_ms"].append(1000 * (seen - begun))
        calls["log_ms"].append(1000 * (time.perf_counter() - arrived))
    taken: dict[bool, list[float]] = {False: [], True: []}
    for step in range(12, 32):
        for watched in (False, True):
            begun = time.perf_counter()
            work(int(times * 500 / 300))
            if watched:
                monitor.observe(**tensors)
                monitor.log({"reward": 0.5}, step=step)
            torch.cuda.synchronize()
            taken[watched].append(time.perf_counter() - begun)
    return {
        "observe_ms_behind_300_ms_of_work": 1000 * behind,
        **{name: median(values) for name, values in calls.items()},
        "step_of_half_a_second_ratio": median(taken[True]) / median(taken[False]),
    }


def memory(kind: str, more: dict[str, Any], **plan: Any) -> dict[str, float]:
    """GiB that a training step of a real model allocates at most, and what is estimated."""
    shape = SHAPE | more
    model = built(kind, shape, torch.float32 if plan["precision"] == "float32" else torch.bfloat16)
    model.config.use_cache = False
    if plan.get("lora_rank"):
        adapters = peft.LoraConfig(r=plan["lora_rank"], target_modules="all-linear")
        model = peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)
    model.train()
    if plan.get("checkpointing"):
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, foreach=False)
    ids = torch.randint(0, shape["vocab_size"], (plan["micro_batch"], plan["length"]), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return compared(torch.cuda.max_memory_allocated(), {"actor": shape, **plan})


def in_8_bits(kind: str, more: dict[str, Any]) -> dict[str, float]:
    """GiB that a frozen model holds which transformers has quantised to fp8, and what is estimated."""
    shape = SHAPE | more
    settings = transformers.FineGrainedFP8Config()
    with tempfile.TemporaryDirectory() as folder:
        built(kind, shape, torch.bfloat16).save_pretrained(folder)
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        kinds = getattr(transformers, f"{kind}ForCausalLM")
        model = kinds.from_pretrained(folder, quantization_config=settings, device_map="cuda", dtype=torch.bfloat16)
        held = torch.cuda.memory_allocated() - before
        assert any(parameter.dtype == torch.float8_e4m3fn for parameter in model.parameters())
    quantised = shape | {"quantization_config": settings.to_dict()}
    return compared(held, {"actor": 1.0, "optimizer": "sgd", "reference": quantised})


def built(kind: str, shape: dict[str, Any], dtype: torch.dtype) -> Any:
    """A model with random weights on the GPU, which is otherwise empty."""
    gc.collect()
    torch.cuda.empty_cache()
    config = getattr(transformers, f"{kind}Config")(**shape)
    config._attn_implementation = "sdpa"  # noqa: SLF001  # no other way to name it in a config
    return getattr(transformers, f"{kind}ForCausalLM")(config).to("cuda", dtype)


def compared(held: int, plan: dict[str, Any]) -> dict[str, float]:
    """Bytes `held` and the estimate of `plan`, in GiB."""
    real, estimated = held / GIB, sum(estimate(plan_from({"device_gib": 80, **plan})).values())
    return {"allocated_gib": real, "estimated_gib": estimated, "ratio": estimated / real}


MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}


def memories() -> dict[str, dict[str, float]]:
    """Allocated and estimated memory of each model and plan."""
    result = {}
    trained: tuple[tuple[str, dict[str, Any], int | None], ...]
    trained = (("Qwen2", {}, None), ("Llama", {}, None), ("Qwen3Moe", MIXTURE, None), ("Qwen2", {}, 16))
    for kind, more, rank in trained:
        for precision in ("bfloat16", "float32"):
            for micro, length, checkpointing in ((1, 512, False), (4, 2048, False), (4, 2048, True)):
                lora = f" LoRA {rank}" if rank else ""
                name = f"{kind}{lora} {precision} {micro}x{length}{' checkpointed' if checkpointing else ''}"
                plan = {"precision": precision, "micro_batch": micro, "length": length, "checkpointing": checkpointing}
                result[name] = memory(kind, more, **plan, lora_rank=rank)
    return result | {
        f"{kind} fp8, frozen": in_8_bits(kind, more) for kind, more in (("Qwen2", {}), ("Qwen3Moe", MIXTURE))
    }


def main() -> None:
    """Print what holds."""
    here, there = series("cpu"), series("cuda")
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "series": len(here),
        "equal_to_the_bit": sum(here[key] == there.get(key) for key in here),
        "largest_relative_difference": max(abs(here[key] - there[key]) / max(abs(here[key]), 1e-12) for key in here),
        **waiting(),
        "memory": memories(),
    }
    ratios = [value["ratio"] for value in result["memory"].values()]
    result["memory_within_15_percent"] = f"{sum(abs(ratio - 1) <= 0.15 for ratio in ratios)} of {len(ratios)}"
    print(json.dumps(result, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
