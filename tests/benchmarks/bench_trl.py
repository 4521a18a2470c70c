"""What `tracker_diag_trl.attach` costs a run of TRL on the CPU: python tests/benchmarks/bench_trl.py [GENERATIONS].

Two figures, with every tenth step logged, as by default in TRL, and with every step. The first is what the training
thread spends in our hooks and callback, over what a step takes: it can be told to a tenth of a per cent. The second is
end to end, what happens beside that thread included: in one run blocks of generations with us and without us, hooks and
callback taken off, follow each other. Each generation begins with the same weights, prompts and random numbers, so that
all do the same work; what is left is the machine's noise, which takes hundreds of them to see a per cent. The run logs
to an MLflow database in a temporary folder. What was found goes to docs/trl_cost.json; `make bench` reads that.
"""

import copy
import json
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "integrations"), str(ROOT / "tests" / "integrations" / "trl")]
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

ITERATIONS = 2
"""Steps of a generation."""
BLOCK, LEFT_OUT = 12, 4
"""Generations of a block, and how many of them are left out: what is written beside training comes a second late."""


def measure(generations: int, logging_steps: int, folder: Path) -> list[tuple[float, float, bool]]:
    """Of each generation with its steps: seconds, those of them that are ours, and whether we were there."""
    import mlflow
    import torch
    import trl
    from datasets import Dataset
    from task import judge, prompts
    from tracker_diag_trl import attach
    from tracker_diag_trl.callback import DiagnosticsCallback
    from tracker_diag_trl.tensors import GrpoTensors
    from train import grpo
    from transformers import TrainerCallback

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    found: list[tuple[float, float, bool]] = []
    spent = [0.0]

    class Alternate(TrainerCallback):
        """Takes ours off and puts it on again, at the first step of each block."""

        with_us, began = False, 0.0
        kept: Any = None

        def on_step_begin(self, args, state, control, **kwargs):
            generation, step = divmod(state.global_step, ITERATIONS)
            if step:
                return
            now, (block, place) = time.perf_counter(), divmod(generation, BLOCK)
            if block and (place or BLOCK) > LEFT_OUT and self.kept:
                found.append((now - self.began, spent[0], self.with_us))
            if block:
                self.kept = self.kept or copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict()))
                trainer.model.load_state_dict(self.kept[0])
                trainer.optimizer.load_state_dict(copy.deepcopy(self.kept[1]))
                torch.manual_seed(0)
                luck.seed(0)
            if not place:
                self.turn(block % 2 == 0)
            spent[0], self.began = 0.0, time.perf_counter()

        def turn(self, with_us):
            self.with_us = with_us
            trainer.callback_handler.callbacks[0] = ours if with_us else TrainerCallback()
            for off in ours._hooks:
                off()
            ours._hooks.clear()
            if with_us:
                ours._look(trainer)

    luck = random.Random(0)
    trainer = grpo(
        folder, kind=trl.GRPOTrainer, num_iterations=ITERATIONS, beta=0.02, report_to=["mlflow"],
        logging_steps=logging_steps, max_steps=ITERATIONS * (generations + BLOCK), shuffle_dataset=False,
        more={"reward_funcs": judge(0.35, luck), "train_dataset": Dataset.from_list(prompts(8, tool_share=0.85))},
    )  # fmt: skip
    monitor = attach(trainer)
    ours = trainer.callback_handler.callbacks[0]
    trainer.add_callback(Alternate())
    with ExitStack() as timers:
        for owner, name in ((DiagnosticsCallback, "on_log"), (GrpoTensors, "log_probabilities"), (GrpoTensors, "loss")):
            timers.enter_context(patch.object(owner, name, timed(getattr(owner, name), spent)))
        trainer.train()
    monitor.close()  # the last block may have been one without us
    return found


def timed(function: Any, spent: list[float]) -> Any:
    """`function`, its seconds added to `spent[0]`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[0] += time.perf_counter() - start

    return call


def cost(generations: int, logging_steps: int) -> dict[str, float]:
    """Milliseconds of a step without us, and what it costs more with us, as shares of that."""
    with tempfile.TemporaryDirectory() as folder:
        seconds, spent, with_us = np.array(measure(generations, logging_steps, Path(folder))).T
    without, ours = seconds[with_us == 0], seconds[with_us == 1]
    low, high = interval(without, ours)
    return {
        "logging_steps": logging_steps,
        "generations": seconds.size,
        "step": 1000 * float(np.median(without)) / ITERATIONS,
        "hooks": float(spent[with_us == 1].mean() / np.median(without)),
        "whole": float(np.median(ours) / np.median(without)) - 1,
        "low": low - 1,
        "high": high - 1,
    }


def interval(without: Any, ours: Any) -> tuple[float, float]:
    """Between which 95 % of the ratios of the medians lie, with generations drawn anew from those that were."""
    rng = np.random.default_rng(0)
    medians = [np.median(rng.choice(taken, (2000, len(taken))), axis=1) for taken in (without, ours)]
    low, high = np.quantile(medians[1] / medians[0], [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    generations, found, show = int([*sys.argv[1:], "1000"][0]), [], Console().print
    for logging_steps in (10, 1):
        one = cost(generations, logging_steps)
        found.append(one)
        show(f"TRL's GRPO on the CPU, {one['generations']} generations, every {logging_steps} steps logged")
        show(f"a step takes {one['step']:.0f} ms without us; in hooks and callback {one['hooks']:.2%} of that")
        show(f"end to end: {one['whole']:+.1%}, 95 % from {one['low']:+.1%} to {one['high']:+.1%}")
    (ROOT / "docs" / "trl_cost.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
