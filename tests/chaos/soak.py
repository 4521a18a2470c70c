"""A long run with every tracker at once: memory, the time of a step and the journals stay flat.

    python tests/chaos/soak.py --steps 100000 --out docs/soak.json

The user logs to W&B, offline; MLflow (SQLite), Trackio, TensorBoard and a file get the same. Batches are small, so
that what is measured is ours. The figures are written after each fiftieth of the run.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

PARTS = 50
ROWS, TOKENS = 8, 24
"""Of a batch: sequences, and tokens of each; four sequences call a tool."""
STORES = ("mlflow", "wandb", "trackio", "tensorboard", "jsonl", "journals")


def soak(steps: int, place: Path) -> Iterator[dict[str, Any]]:
    """Run `steps` steps with their files in `place`; what was measured in each part, and in the end the health."""
    import mlflow
    import trackio
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    import tracker_diag as td
    from tracker_diag.trackers.discovery import tracker_of
    from tracker_diag.trackers.files.write import JsonlTracker

    settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, x_disable_meta=True, console="off")
    mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow/mlflow.db")
    (place / "mlflow").mkdir()
    (place / "wandb").mkdir()
    mlflow.start_run()
    user = wandb.init(project="soak", dir=place / "wandb", settings=settings)
    others = (
        mlflow,
        trackio.init(project="soak", name="soak", auto_log_cpu=False, auto_log_gpu=False),
        SummaryWriter(str(place / "tensorboard")),
    )
    run = td.wrap(user, also=[*map(tracker_of, others), JsonlTracker(place / "jsonl")])
    rng, model = np.random.default_rng(0), np.ones((ROWS, TOKENS), bool)
    model[: ROWS // 2, 8:12] = False
    for part in range(PARTS):
        numbers = range(steps * part // PARTS, steps * (part + 1) // PARTS)
        began, took = time.process_time(), []
        for step in numbers:
            new = rng.uniform(-3, -0.1, (ROWS, TOKENS))
            before = time.thread_time()
            run.diag.observe(
                logprobs=new,
                old_logprobs=new - 0.02 * rng.normal(size=new.shape),
                response_mask=np.ones_like(model),
                model_mask=model,
            )
            run.log({"loss": rng.normal(), "reward": rng.normal(), "kl": 0.1}, step=step)
            took.append(time.thread_time() - before)
            if step % 200 == 199:  # a step of this size is faster than the trackers are
                run.diag.flush(600)
        yield {
            "steps": numbers.stop,
            "step_ms": round(1000 * statistics.median(took), 2),
            "all_threads_ms": round(1000 * (time.process_time() - began) / len(numbers), 2),
            "memory_mib": round(_resident()),
            **{f"{name}_mib": round(_size(place / name), 2) for name in STORES},
        }
    health = {name: n for name, n in run.diag.health.items() if n}
    user.finish()
    mlflow.end_run()
    trackio.finish()
    yield {"health": health}


def grew(parts: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """What is not flat from a fifth of the run to its end: before, and after.

    Memory, the time of a step and what a tracker keeps of a step may grow by a fifth. Journals may have 12 MiB:
    4 of each tracker that loses what it has in memory, and 1 of each other.
    """
    early, last = parts[len(parts) // 5], parts[-1]
    most = {"step_ms": 1.2 * early["step_ms"], "memory_mib": 1.2 * early["memory_mib"], "journals_mib": 12.0}
    for name in STORES[:-1]:
        most[f"{name}_mib"] = 1.2 * early[f"{name}_mib"] * last["steps"] / early["steps"] + 1.0
    return {name: (early[name], last[name]) for name in most if last[name] > most[name]}


def _resident() -> float:
    """MiB of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def _size(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="the figures, as JSON")
    arguments = parser.parse_args()
    parts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        os.environ |= {
            "TRACKER_DIAG_DIR": f"{place}/journals",
            "TRACKER_DIAG_QUIET": "1",
            "TRACKIO_DIR": f"{place}/trackio",
        }
        for part in soak(arguments.steps, Path(place)):
            print(json.dumps(part), flush=True)
            parts.append(part)
            if arguments.out:
                arguments.out.write_text(json.dumps(parts, indent=1) + "\n")
    *measured, end = parts
    wrong = {"grew": grew(measured), **end}
    print(json.dumps(wrong))
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
