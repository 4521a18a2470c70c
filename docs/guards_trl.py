"""What guards do to GRPO of TRL, on the tests' tiny checkpoint, if the learning rate rises too far midway."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tracker_diag_trl import attach
from tracker_diag_trl.callback import settings
from transformers import PrinterCallback, Qwen2ForCausalLM, TrainerCallback, set_seed

from tracker_diag import Guard, Monitor
from tracker_diag.attach.resume import resume_from
from tracker_diag.testing import CapturingTracker

FAULTS = Path(__file__).parents[1] / "tests" / "faults"
STEPS, LAST = 70, 10
"""Steps of a run, and how many of its last ones tails, ESS and reward are the mean of."""
RATE, LOWER = 3e-4, 10
"""Learning rate at the start, and what a launcher divides it by after a rollback."""

Run = dict[str, Any]


def acting(do: str, **given: Any) -> Guard:
    """A guard that acts, on every incident at warn or above, with its usual limits."""
    return Guard.model_validate({"do": do, "act": True, **given})


GUARDS: Mapping[str, tuple[Guard, ...]] = {
    "none": (),
    "stop_update": (acting("stop_update"),),
    "scale_lr": (acting("scale_lr"),),
    "kl_cap": (acting("kl_cap", bounds=(0.02, 1.0), target=0.05),),
    "skip_batch": (acting("skip_batch"),),
    "rollback by a launcher": (acting("rollback"),),
}
LAUNCHED = ("none", "rollback by a launcher")
ALL = "all of these"
CASES: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "TRL, learning rate": ({"rate_from": (0.5, 15.0)}, tuple(GUARDS)[:-1]),
    "TRL, with a launcher": ({"rate_from": (0.5, 15.0)}, LAUNCHED),
    "TRL, healthy": ({}, (ALL,)),
}


class _Updates(TrainerCallback):  # type: ignore[misc]  # of a library without types
    """Counts the steps that were made with what was learnt, by whether a weight has moved."""

    def __init__(self) -> None:
        self.made = 0
        self._before: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        self._before = model.lm_head.weight.detach().clone()

    def on_step_end(self, args: Any, state: Any, control: Any, *, model: Any, **_: Any) -> None:
        self.made += not model.lm_head.weight.equal(self._before)


def runs(case: str, wanted: Sequence[str], seed: int) -> Iterator[tuple[str, Run]]:
    """A run of `case` for each of the guards `wanted`."""
    fault, _ = CASES[case]
    for name in wanted:
        guards = [guard for some in GUARDS.values() for guard in some] if name == ALL else GUARDS[name]
        yield name, run(fault, guards, seed)


def run(fault: Mapping[str, Any], guards: Sequence[Guard], seed: int) -> Run:
    """One training, watched and guarded, and what has become of it; after a rollback a launcher starts it again."""
    sys.path[:0] = [str(FAULTS)] if str(FAULTS) not in sys.path else []
    updates, capture, done, rate = _Updates(), CapturingTracker(), list[tuple[int, str]](), RATE
    with TemporaryDirectory() as folder:
        resume = None
        while True:
            trainer = _trainer(folder, fault, seed, rate)
            trainer.add_callback(updates)
            monitor = attach(trainer, monitor=Monitor([capture], config=settings(trainer), guards=guards))
            trainer.train(resume_from_checkpoint=resume and resume.path)
            if monitor.failures:
                raise RuntimeError(f"the diagnostics failed: {monitor.failures}")
            done += acted(monitor)
            if (resume := resume_from(folder)) is None:
                break
            rate /= LOWER
    rows = [capture.own[step] | capture.scalars(step) for step in sorted(capture.own)][-LAST:]
    logged = {name: _mean(rows, key) for name, key in LOGGED.items()}
    figures = {"reward": probed(trainer.model.eval(), import_module("language").task), **logged}
    kept = {name: None if value is None else float(f"{value:.4g}") for name, value in figures.items()}
    return {**kept, "updates": updates.made, "acted": done}


def _trainer(folder: str, fault: Mapping[str, Any], seed: int, rate: float) -> Any:
    """GRPO of TRL with `fault`, its checkpoints in `folder`."""
    language: Any = import_module("language")
    torch.set_num_threads(1)
    set_seed(seed)
    model = Qwen2ForCausalLM.from_pretrained(language.task.CHECKPOINT, dtype=torch.float32)
    model.config.name_or_path = str(language.task.CHECKPOINT)
    common = {
        "output_dir": folder, "lr_scheduler_type": "constant", "logging_steps": 1, "report_to": [], "seed": seed,
        "save_strategy": "steps", "save_steps": 5, "bf16": False, "gradient_checkpointing": False, "use_cpu": True,
        "disable_tqdm": True, "max_steps": STEPS,
    }  # fmt: skip
    watcher = language.Watcher(fault, STEPS)
    trainer = language.grpo(model, common, {"learning_rate": rate}, fault, watcher, "", False, seed)
    trainer.remove_callback(PrinterCallback)
    return trainer


LOGGED = {
    "logged": "reward",
    "p95": "diag/policy/text_only/p95",
    "ess": "diag/policy/text_only/ess",
    "reference p95": "diag/reference/text_only/p95",
}


def acted(monitor: Monitor) -> list[tuple[int, str]]:
    """At which steps guards began to do what."""
    events = ((step, event.partition(":")) for step, event in monitor.events)
    return [
        (step, who.removeprefix("guard "))
        for step, (who, _, what) in events
        if who.startswith("guard ") and not what.startswith((" ended", " not done"))
    ]


def _mean(rows: Sequence[Mapping[str, float]], key: str) -> float | None:
    values = [row[key] for row in rows if key in row]
    return fmean(values) if values else None


@torch.no_grad()
def probed(model: Any, task: Any) -> float:
    """Mean reward in [0, 1] of two answers to each of 100 prompts without a tool, sampled as in training.

    A right digit in its place is worth a half.
    """
    words, numbers = task.tokenizer(), [f"{number:02d}" for number in range(100) for _ in range(2)]
    chats = [[task.SYSTEM, {"role": "user", "content": f"say {number}"}] for number in numbers]
    tools = task.Lookup().tools()  # as in training: their description is part of each prompt
    ids = words.apply_chat_template(
        chats, tools=tools, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    set_seed(10_000)
    out = model.generate(**ids, do_sample=True, temperature=1.3, max_new_tokens=48, pad_token_id=words.pad_token_id)
    texts = words.batch_decode(out[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    return fmean(
        0.5 * sum(a == b for a, b in zip(text.strip(), number, strict=True)) if len(text.strip()) == 2 else 0.0
        for text, number in zip(texts, numbers, strict=True)
    )
