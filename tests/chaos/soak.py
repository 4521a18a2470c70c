"""A long run with all trackers at once: memory, the time of a step and what is on disk stay flat.

    python tests/chaos/soak.py --steps 100000 --out docs/soak.json

Each tenth of the run is measured by itself. Small batches are observed, so that what is measured is ours.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

TENTHS = 10


def resident():
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def play(steps, place):
    """What each tenth of `steps` took: ms of a step, MiB of memory, of journals, and of all files."""
    import mlflow
    import trackio
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    import tracker_diag as td
    from tracker_diag.trackers.files.write import JsonlTracker
    from tracker_diag.trackers.tensorboard.write import TensorBoardTracker
    from tracker_diag.trackers.trackio.write import TrackioTracker
    from tracker_diag.trackers.wandb.write import WandbTracker

    mlflow.set_tracking_uri(f"sqlite:///{place}/mlflow.db")
    settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, x_disable_meta=True, console="off")
    also = [
        WandbTracker(wandb.init(project="soak", dir=place, settings=settings)), JsonlTracker(place / "jsonl"),
        TensorBoardTracker(SummaryWriter(str(place / "tensorboard"))),
        TrackioTracker(trackio.init(project="soak", name="soak", auto_log_cpu=False, auto_log_gpu=False)),
    ]  # fmt: skip
    rng, measured = np.random.default_rng(0), []
    with mlflow.start_run():
        diag = td.wrap(mlflow, also=also).diag
        model = np.ones((8, 24), bool)
        model[:4, 8:12] = False
        response = np.ones((8, 24), bool)
        for tenth in range(TENTHS):
            took = []
            for step in range(steps * tenth // TENTHS, steps * (tenth + 1) // TENTHS):
                new = rng.uniform(-3, -0.1, (8, 24))
                old = new - 0.02 * rng.normal(size=new.shape)
                before = time.perf_counter()
                diag.observe(logprobs=new, old_logprobs=old, response_mask=response, model_mask=model)
                mlflow.log_metrics({"loss": rng.normal(), "reward": rng.normal(), "kl": 0.1}, step=step)
                took.append(1000 * (time.perf_counter() - before))
                if step % 200 == 199:  # trackers are slower than a step of this size
                    diag.flush(600)
            measured.append({
                "step_ms": round(statistics.median(took), 2), "memory_mib": round(resident()),
                "journals_mib": round(size(place / "journals"), 2), "files_mib": round(size(place)),
            })  # fmt: skip
            print(json.dumps(measured[-1]), flush=True)
        health = dict(diag.health)
        diag.close()
    wandb.finish()
    trackio.finish()
    return {"steps": steps, "tenths": measured, "health": {name: n for name, n in health.items() if n}}


def flat(result):
    """What grew from the third tenth to the last one by more than a fifth, or by half where it is a time."""
    third, last = result["tenths"][2], result["tenths"][-1]
    most = {"step_ms": 1.5 * third["step_ms"], "memory_mib": 1.2 * third["memory_mib"], "journals_mib": 8}
    return {name: (third[name], last[name]) for name in most if last[name] > most[name]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="the figures, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        os.environ |= {
            "TRACKER_DIAG_DIR": f"{place}/journals",
            "TRACKER_DIAG_QUIET": "1",
            "TRACKIO_DIR": f"{place}/trackio",
        }
        result = play(arguments.steps, Path(place))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    grew = flat(result)
    print(json.dumps({"grew": grew, "health": result["health"]}))
    return int(bool(grew) or bool(result["health"]))


if __name__ == "__main__":
    sys.exit(main())
