"""What `tracker_diag_trl.attach` costs a run of TRL on the CPU: python tests/benchmarks/bench_trl.py [CYCLES].

One process, one run: every second generation, with the steps that are trained on it, goes without us, hooks and
callback taken off. So both kinds see the same machine, the same model and the same lengths. Prints the median seconds
of both, their ratio, and how far that can be told. The run logs every step, ten times as often as TRL by default,
to an MLflow database in a temporary folder.
"""

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "integrations"), str(ROOT / "tests" / "integrations" / "trl")]
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

ITERATIONS, WARM_UP = 2, 10


def measure(cycles: int, folder: Path) -> tuple[list[float], list[float]]:
    """Seconds of each generation with its steps: without us, and with us."""
    import mlflow
    import trl
    from tracker_diag_trl import attach
    from train import grpo
    from transformers import TrainerCallback

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    seconds: dict[bool, list[float]] = {False: [], True: []}

    class Alternate(TrainerCallback):
        """Takes ours off and puts it on again, at the first step of each generation."""

        with_us, began = True, 0.0

        def on_step_begin(self, args, state, control, **kwargs):
            cycle, first = divmod(state.global_step, ITERATIONS)
            if first:
                return
            now = time.perf_counter()
            if cycle > WARM_UP:
                seconds[self.with_us].append(now - self.began)
            self.with_us = cycle % 2 == 0
            trainer.callback_handler.callbacks[0] = ours if self.with_us else TrainerCallback()
            for off in ours._hooks:
                off()
            ours._hooks.clear()
            if self.with_us:
                ours._look(trainer)
            self.began = time.perf_counter()

    trainer = grpo(
        folder, kind=trl.GRPOTrainer, num_iterations=ITERATIONS, beta=0.02, report_to=["mlflow"],
        max_steps=ITERATIONS * (cycles + WARM_UP),
    )  # fmt: skip
    monitor = attach(trainer)
    ours = trainer.callback_handler.callbacks[0]
    trainer.add_callback(Alternate())
    trainer.train()
    monitor.close()  # the last generation may have been one without us
    return seconds[False], seconds[True]


def main() -> None:
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    with tempfile.TemporaryDirectory() as folder:
        without, with_us = measure(cycles, Path(folder))
    a, b = statistics.median(without) / ITERATIONS, statistics.median(with_us) / ITERATIONS
    show = Console().print
    show(f"TRL GRPO on the CPU, {len(without)} + {len(with_us)} generations of {ITERATIONS} steps")
    show(f"without {1000 * a:.1f} ms a step, with {1000 * b:.1f} ms: {100 * (b / a - 1):+.1f} %")
    low, high = (100 * (ratio - 1) for ratio in interval(without, with_us))
    show(f"95 % of resampled generations give {low:+.1f} to {high:+.1f} %: their lengths differ")


def interval(without: list[float], with_us: list[float]) -> tuple[float, float]:
    """Between which 95 % of the ratios of the medians lie, with generations drawn anew from those that were."""
    rng = np.random.default_rng(0)
    medians = [np.median(rng.choice(taken, (2000, len(taken))), axis=1) for taken in (without, with_us)]
    low, high = np.quantile(medians[1] / medians[0], [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
