"""What `tracker_diag_trl.attach` costs a run of TRL on the CPU: python tests/benchmarks/bench_trl.py [GENERATIONS].

With every tenth step logged, as by default in TRL, and with every step. All is processor time, which a busy machine
changes less than the clock: of the training thread in our hooks and callback, and of the thread that writes to MLflow,
each over that of a step; and the same end to end, to see that they leave nothing out. For that every second generation
of one run goes without us, hooks and callback taken off. Each begins with the same weights, prompts and random numbers,
so that all do the same work. The run logs to an MLflow database in a temporary folder. The result goes to
docs/trl_cost.json; `make bench` reads that.
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

ITERATIONS, WARM_UP = 2, 10
"""Steps of a generation, and generations that are not counted."""


def measure(generations: int, logging_steps: int, folder: Path) -> tuple[list[list[float]], float]:
    """Of each two generations, without us and with us: seconds, and those in our hooks; and the writer's in all."""
    import mlflow
    import torch
    import trl
    from datasets import Dataset
    from task import judge, prompts
    from tracker_diag_trl import attach
    from tracker_diag_trl.callback import DiagnosticsCallback
    from tracker_diag_trl.rows import Rows
    from tracker_diag_trl.samples import CompletionSamples
    from tracker_diag_trl.tensors import GrpoTensors
    from train import grpo
    from transformers import TrainerCallback

    from tracker_diag.trackers.delivery.outbox import Outbox

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    result: list[list[float]] = []
    spent, written = [0.0], [0.0]

    class Alternate(TrainerCallback):
        """Takes ours off and puts it on again, at the first step of each generation."""

        began = 0.0
        kept: Any = None

        def on_step_begin(self, args, state, control, **kwargs):
            generation, step = divmod(state.global_step, ITERATIONS)
            if step:
                return
            now, with_us = time.thread_time(), generation % 2 == 1
            if generation > WARM_UP:
                if with_us:  # from now on: what has ended is one without
                    result.append([])
                result[-1] += [now - self.began, spent[0]]
            if generation == WARM_UP:
                self.kept = copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict()))
                written[0] = 0.0
            if self.kept:
                trainer.model.load_state_dict(self.kept[0])
                trainer.optimizer.load_state_dict(copy.deepcopy(self.kept[1]))
                torch.manual_seed(0)
                luck.seed(0)
            trainer.callback_handler.callbacks[0] = ours if with_us else TrainerCallback()
            ours._hooks.close()  # noqa: SLF001  # off and on within one run, which no user does
            if with_us:
                ours._look(trainer, GrpoTensors)  # noqa: SLF001  # on again
                ours._look_at_samples(trainer)  # noqa: SLF001  # on again
            spent[0], self.began = 0.0, time.thread_time()

    luck = random.Random(0)
    trainer = grpo(
        folder, kind=trl.GRPOTrainer, num_iterations=ITERATIONS, beta=0.02, report_to=["mlflow"],
        logging_steps=logging_steps, max_steps=ITERATIONS * (WARM_UP + generations + 1), shuffle_dataset=False,
        more={"reward_funcs": judge(0.35, luck), "train_dataset": Dataset.from_list(prompts(8, tool_share=0.85))},
    )  # fmt: skip
    monitor = attach(trainer)
    ours = trainer.callback_handler.callbacks[0]
    trainer.add_callback(Alternate())
    with ExitStack() as timers:
        for owner, name, into in (
            (DiagnosticsCallback, "on_log", spent),
            (GrpoTensors, "log_probabilities", spent),
            (GrpoTensors, "loss", spent),
            (Rows, "generated", spent),
            (CompletionSamples, "rewards", spent),
            (CompletionSamples, "generation", spent),
            (Outbox, "_deliver", written),  # private: all writing is in it
        ):
            timers.enter_context(patch.object(owner, name, timed(getattr(owner, name), into)))
        trainer.train()
    monitor.close()  # the last generation may have been one without us
    return [pair for pair in result if len(pair) == 4], written[0]


def timed(function: Any, spent: list[float]) -> Any:
    """`function`, the processor time of its thread added to `spent[0]`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent[0] += time.thread_time() - start

    return call


def cost(generations: int, logging_steps: int) -> dict[str, float]:
    """Milliseconds of a step without us, and what is added to it, as shares of that."""
    with tempfile.TemporaryDirectory() as folder:
        pairs, written = measure(generations, logging_steps, Path(folder))
    without, _, ours, spent = np.array(pairs).T
    usual, ratios = float(np.median(without)), ours / without
    drawn = np.median(np.random.default_rng(0).choice(ratios, (5000, ratios.size)), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {
        "logging_steps": logging_steps,
        "generations": 2 * len(pairs),
        "step": 1000 * usual / ITERATIONS,
        "hooks": float(spent.mean()) / usual,
        "writer": written / len(pairs) / usual,
        "whole": float(np.median(ratios)) - 1,
        "low": float(low) - 1,
        "high": float(high) - 1,
    }


def main() -> None:
    generations, result, show = int([*sys.argv[1:], "1000"][0]), [], Console().print
    for logging_steps in (10, 1):
        item = cost(generations, logging_steps)
        result.append(item)
        show(f"TRL's GRPO on the CPU, {item['generations']} generations, every {logging_steps} steps logged")
        ours = item["hooks"] * item["step"]
        show(f"a step takes {item['step']:.0f} ms without us; hooks and callback {ours:.1f} ms, {item['hooks']:.2%}")
        show(f"next to it, writing to MLflow: {item['writer']:.2%}")
        show(f"end to end: {item['whole']:+.1%}, 95 % from {item['low']:+.1%} to {item['high']:+.1%}")
    (ROOT / "docs" / "trl_cost.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
