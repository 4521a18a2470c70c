"""What `tracker_diag_trl.attach` costs a run of TRL on the CPU: python tests/benchmarks/bench_trl.py [CYCLES].

Two figures, with every step logged and with every tenth, as by default in TRL. The first is what the training thread
spends in our hooks and callback, over what a step takes: it can be told to a tenth of a per cent. The second is end to
end, what happens beside that thread included: in one run every second generation goes without us, hooks and callback
taken off. Each generation begins with the same weights, prompts and random numbers, so that all do the same work; what
is left is the machine's noise, which takes thousands of them to see a per cent. The run logs to an MLflow database in a
temporary folder.
"""

import copy
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "integrations"), str(ROOT / "tests" / "integrations" / "trl")]
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

ITERATIONS, WARM_UP = 2, 10


def measure(cycles: int, logging_steps: int, folder: Path) -> list[tuple[float, float, bool]]:
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

    def timed(kind: Any, name: str) -> None:
        method = getattr(kind, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                spent[0] += time.perf_counter() - start

        setattr(kind, name, call)

    timed(DiagnosticsCallback, "on_log")
    timed(GrpoTensors, "log_probabilities")
    timed(GrpoTensors, "loss")

    class Alternate(TrainerCallback):
        """Takes ours off and puts it on again, at the first step of each generation."""

        with_us, began = True, 0.0
        kept: Any = None

        def on_step_begin(self, args, state, control, **kwargs):
            cycle, step = divmod(state.global_step, ITERATIONS)
            if step:
                return
            now = time.perf_counter()
            if cycle > WARM_UP:
                found.append((now - self.began, spent[0], self.with_us))
            if cycle >= WARM_UP:
                self.kept = self.kept or copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict()))
                trainer.model.load_state_dict(self.kept[0])
                trainer.optimizer.load_state_dict(copy.deepcopy(self.kept[1]))
                torch.manual_seed(0)
                luck.seed(0)
            self.with_us = cycle % 2 == 0
            trainer.callback_handler.callbacks[0] = ours if self.with_us else TrainerCallback()
            for off in ours._hooks:
                off()
            ours._hooks.clear()
            if self.with_us:
                ours._look(trainer)
            spent[0], self.began = 0.0, time.perf_counter()

    luck = random.Random(0)
    trainer = grpo(
        folder, kind=trl.GRPOTrainer, num_iterations=ITERATIONS, beta=0.02, report_to=["mlflow"],
        logging_steps=logging_steps, max_steps=ITERATIONS * (cycles + WARM_UP), shuffle_dataset=False,
        more={"reward_funcs": judge(0.35, luck), "train_dataset": Dataset.from_list(prompts(8, tool_share=0.85))},
    )  # fmt: skip
    monitor = attach(trainer)
    ours = trainer.callback_handler.callbacks[0]
    trainer.add_callback(Alternate())
    trainer.train()
    monitor.close()  # the last generation may have been one without us
    return found


def main() -> None:
    cycles, logging_steps = (int(argument) for argument in [*sys.argv[1:], "200", "1"][:2])
    with tempfile.TemporaryDirectory() as folder:
        seconds, spent, with_us = np.array(measure(cycles, logging_steps, Path(folder))).T
    without, ours = seconds[with_us == 0], seconds[with_us == 1]
    own, show = spent.sum() / with_us.sum(), Console().print
    show(f"TRL GRPO on the CPU, {seconds.size} generations of {ITERATIONS} steps, logged every {logging_steps}")
    show(f"a step takes {1000 * without.mean() / ITERATIONS:.0f} ms without us")
    show(f"in hooks and callback: {1000 * own / ITERATIONS:.2f} ms, {100 * own / without.mean():.2f} %")
    low, high = (100 * (ratio - 1) for ratio in interval(without, ours))
    show(
        f"end to end: {100 * (np.median(ours) / np.median(without) - 1):+.1f} %, 95 % from {low:+.1f} to {high:+.1f} %"
    )


def interval(without: Any, ours: Any) -> tuple[float, float]:
    """Between which 95 % of the ratios of the medians lie, with generations drawn anew from those that were."""
    rng = np.random.default_rng(0)
    medians = [np.median(rng.choice(taken, (2000, len(taken))), axis=1) for taken in (without, ours)]
    low, high = np.quantile(medians[1] / medians[0], [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
