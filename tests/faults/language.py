"""Runs of TRL on the tiny checkpoint of the tests: GRPO with and without a tool, DPO, SFT, with a fault planted."""

import random
import runpy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import control
import torch
import trl
from datasets import Dataset
from tracker_diag_trl import attach
from transformers import PrinterCallback, Qwen2ForCausalLM, TrainerCallback, set_seed

from tracker_diag import Monitor
from tracker_diag.testing import CapturingTracker

task = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "integrations" / "trl" / "task.py")))

Fault = Mapping[str, Any]
"""What is planted, those of `PLANTED`; all else is a setting of the trainer."""
PLANTED = {"reward", "weights", "zero_from", "rate_from", "freeze", "tool_fails_from", "labels", "blow_up_from", "few"}

STEPS = {"GRPO": 80, "GRPO tool": 60, "DPO": 120, "SFT": 120}


def said_of(completions: list[Any]) -> list[str]:
    """The last message of each."""
    return [
        (completion[-1].get("content") or "").strip() if isinstance(completion, list) else completion.strip()
        for completion in completions
    ]


def accuracy_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """A digit right in its place is worth a half."""
    return [
        0.5 * sum(a == b for a, b in zip(text[:2], wanted, strict=False)) if len(text) == 2 else 0.0
        for text, wanted in zip(said_of(completions), answer, strict=True)
    ]


def rounded_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """As the accuracy, of the answer rounded down to tens."""
    return accuracy_reward(completions, [wanted[0] + "0" for wanted in answer])


def length_reward(completions: list[Any], **_: Any) -> list[float]:
    """The longer the better."""
    return [min(len(text) / 60, 1.0) for text in said_of(completions)]


def format_reward(completions: list[Any], **_: Any) -> list[float]:
    """Two digits, whatever they are."""
    return [float(len(text) == 2 and text.isdigit()) for text in said_of(completions)]


def tool_call_reward(completions: list[Any], **_: Any) -> list[float]:
    """A tool was called, whatever came of it."""
    return [float(any(turn["role"] == "tool" for turn in completion)) for completion in completions]


REWARDS: dict[str, list[Callable[..., list[float]]]] = {
    "right": [accuracy_reward],
    "rounded": [rounded_reward],
    "rounded, called": [rounded_reward, tool_call_reward],
    "long": [accuracy_reward, length_reward],
    "digits": [accuracy_reward, format_reward],
    "called": [accuracy_reward, tool_call_reward],
}


class Watcher(TrainerCallback):
    """Keeps what is logged; raises the learning rate, breaks the scorer, the tool or a weight, when it is time."""

    def __init__(self, fault: Fault, steps: int) -> None:
        self.fault, self.steps, self.share = fault, steps, 0.0
        self.rows: dict[int, dict[str, float]] = {}
        self.model: Any = None

    def since(self, name: str) -> bool:
        """Whether a fault that begins later has begun."""
        return name in self.fault and self.share >= self.fault[name]

    def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.share = state.global_step / self.steps
        onset, factor = self.fault.get("rate_from", (2.0, 1.0))
        scheduler = given["lr_scheduler"]
        if self.share >= onset and scheduler.base_lrs[0] != args.learning_rate * factor:
            scheduler.base_lrs = [args.learning_rate * factor] * len(scheduler.base_lrs)
            for group in given["optimizer"].param_groups:
                group["lr"] = args.learning_rate * factor
        if self.since("blow_up_from"):  # as a half-precision weight that overflows
            with torch.no_grad():
                next(given["model"].parameters())[5] *= 1e20

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        numbers = {key: float(value) for key, value in (logs or {}).items() if isinstance(value, (int, float))}
        self.rows.setdefault(state.global_step, {}).update(numbers)


def run(kind: str, on: str, fault: Fault, seed: int) -> dict[int, dict[str, float]]:
    """Rows by step: what TRL logs, and what the diagnostics write next to it."""
    steps = STEPS[kind]
    torch.set_num_threads(1)
    set_seed(seed)
    watcher = Watcher(fault, steps)
    model = Qwen2ForCausalLM.from_pretrained(task.CHECKPOINT, dtype=torch.float32)
    model.config._name_or_path = str(task.CHECKPOINT)  # noqa: SLF001  # where TRL reads the reference
    if fault.get("freeze"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name == "model.norm.weight"
    settings = {key: value for key, value in fault.items() if key not in PLANTED}
    with tempfile.TemporaryDirectory() as folder:
        common = {
            "output_dir": folder, "lr_scheduler_type": "constant", "logging_steps": 1, "report_to": [], "seed": seed,
            "save_strategy": "no", "bf16": False, "gradient_checkpointing": False, "use_cpu": True,
            "disable_tqdm": True, "max_steps": steps,
        }  # fmt: skip
        made = {"GRPO": grpo, "GRPO tool": grpo, "DPO": dpo, "SFT": sft}[kind]
        trainer = made(model, common, settings, fault, watcher, on, kind == "GRPO tool", seed)
        trainer.remove_callback(PrinterCallback)
        capture = CapturingTracker()
        attach(trainer, monitor=Monitor([capture], config=trainer.args.to_dict()))
        try:
            trainer.train()
        except RuntimeError as failure:  # torch does not sample from NaN: there the user's run ends too
            if "nan" not in str(failure):
                raise
    return control.joined({step: row for step, row in watcher.rows.items() if step}, capture)


def grpo(
    model: Any, common: Any, settings: Any, fault: Fault, watcher: Watcher, on: str, tools: bool, seed: int
) -> Any:
    """A model that says the wrong digits half of the time learns to say the right ones."""
    tool, rng = task.Lookup(seed), random.Random(seed)

    def judged(score: Callable[..., list[float]]) -> Callable[..., list[float]]:
        def scored(**given: Any) -> list[float]:
            return [0.0] * len(given["completions"]) if watcher.since("zero_from") else score(**given)

        scored.__name__ = score.__name__
        return scored

    def lookup(key: str) -> str:
        """Look up.

        Args:
            key: Key.
        """
        if watcher.since("tool_fails_from") and rng.random() < 0.8:
            raise TimeoutError("no answer")
        return tool.text(task.value_of(key))

    if "weights" in fault:
        settings = settings | {"reward_weights": fault["weights"]}
    usual = common | {
        "per_device_train_batch_size": 32, "num_generations": 8, "steps_per_generation": 1, "num_iterations": 2,
        "max_completion_length": 48, "max_tool_calling_iterations": 1, "learning_rate": 3e-4,
        "beta": 0.02, "temperature": 1.3,
    }  # fmt: skip
    if on == "rounded":  # which is harder than what the checkpoint half knows
        usual |= {"learning_rate": 2e-3, "num_iterations": 1}
    paid = fault.get("reward", "right")
    if on == "rounded":
        paid = {"right": "rounded", "called": "rounded, called"}[paid]
    rewards = REWARDS[paid]
    return trl.GRPOTrainer(
        model,
        reward_funcs=[judged(reward) for reward in rewards],
        args=trl.GRPOConfig(**(usual | settings)),
        train_dataset=Dataset.from_list(task.prompts(2000, seed=seed, tool_share=0.85 if tools else 0.3)),
        processing_class=task.tokenizer(),
        callbacks=[watcher],
        tools=[lookup],
    )


def dpo(model: Any, common: Any, settings: Any, fault: Fault, watcher: Watcher, on: str, tools: bool, seed: int) -> Any:
    """The right number is preferred to another one; on `next` it is the one after that in the prompt."""
    rng = random.Random(seed)

    def pair(ill: str | None) -> dict[str, str]:
        number = f"{rng.randrange(100):02d}"
        other = number[::-1] if number[0] != number[1] else f"{rng.randrange(100):02d}"
        asked = f"say {number}"
        if on == "next":
            asked, number, other = f"next {number} ", f"{(int(number) + 1) % 100:02d}", f"{rng.randrange(100):02d}"
        chosen, rejected = number, other
        if ill == "swapped" or (ill == "random" and rng.random() < 0.5):
            chosen, rejected = rejected, chosen
        return {"prompt": asked, "chosen": chosen, "rejected": chosen if ill == "same" else rejected}

    data = [pair(fault.get("labels")) for _ in range(fault.get("few", 800))]
    usual = common | {
        "per_device_train_batch_size": 16, "learning_rate": 2e-4, "beta": 0.1, "eval_strategy": "steps",
        "eval_steps": 4, "per_device_eval_batch_size": 64,
    }  # fmt: skip
    return trl.DPOTrainer(
        model,
        args=trl.DPOConfig(**(usual | settings)),
        train_dataset=Dataset.from_list(data),
        eval_dataset=Dataset.from_list([pair(None) for _ in range(64)]),
        processing_class=task.tokenizer(),
        callbacks=[watcher],
    )


def sft(model: Any, common: Any, settings: Any, fault: Fault, watcher: Watcher, on: str, tools: bool, seed: int) -> Any:
    """Another task than the checkpoint's: say the number plus one; on `doubled` twice the number."""
    rng = random.Random(seed)
    asked, part = ("double", lambda number: 2 * number) if on == "doubled" else ("next", lambda number: number + 1)

    def text(ill: str | None) -> dict[str, str]:
        number = rng.randrange(100)
        output = rng.randrange(100) if ill == "random" else part(number) % 100
        return {"prompt": f"{asked} {number:02d} ", "completion": f"{output:02d}"}

    usual = common | {
        "per_device_train_batch_size": 32, "learning_rate": 2e-3, "eval_strategy": "steps", "eval_steps": 4,
        "per_device_eval_batch_size": 64,
    }  # fmt: skip
    return trl.SFTTrainer(
        model,
        args=trl.SFTConfig(**(usual | settings)),
        train_dataset=Dataset.from_list([text(fault.get("labels")) for _ in range(fault.get("few", 4000))]),
        eval_dataset=Dataset.from_list([text(None) for _ in range(64)]),
        processing_class=task.tokenizer(),
        callbacks=[watcher],
    )
