"""Trains the tool agents of tool_plan.py; a run that is there is not made again.

    python tests/faults/tool_runs.py [--runs N] [--first-seed N] [--folder F]

trains the first N of the plan in this process. record.py trains all of them.
"""

import argparse
import os
import random
import time
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from calls import Kept
from dataset import Run
from tool_plan import Planned, Slip, planned

FOLDER = Path(__file__).parents[2] / "build" / "fresh" / "tools"


def made(run: Planned, folder: Path) -> Path:
    """The file of `run`; trained if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{run.name}.npz"
    if not file.exists():
        from tool_agent import train

        rng = random.Random(run.name)
        settings = run.settings
        kind = run.kind
        onset = round(rng.uniform(*kind.onset) * settings.steps) if kind else settings.steps
        planted = kind.planted(rng) if kind else {}
        over = rng.choice([1, 1, 5, 15]) if kind else 1
        label = {
            "name": run.name, "trainer": run.trainer, "task": run.task, "seed": run.seed, "onset": onset, "over": over,
            "fault": run.fault, "right": kind.right.split() if kind else [],
            "planted": {name: asdict(part) if isinstance(part, Slip) else part for name, part in planted.items()},
            "settings": asdict(settings),
        }  # fmt: skip
        begun = time.process_time()
        calls = train(settings, run.seed, planted, onset, over, folder)
        calls.write(file, label | {"cpu_seconds": round(time.process_time() - begun, 2)})
    return file


def rows_of(file: Path) -> Run:
    """What a run has logged, with its label."""
    kept = Kept(file)
    rows = [step["metrics"] for step in kept.steps]
    keys = dict.fromkeys(key for row in rows for key in row)
    label = {key: kept.label[key] for key in ("trainer", "task", "seed", "fault", "right")}
    return Run(
        **label, half="development", onset=kept.label["onset"] if kept.label["fault"] else None, collapsed=False,
        steps=[step["step"] for step in kept.steps], columns={key: [row.get(key) for row in rows] for key in keys},
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--first-seed", type=int, default=900_001)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for number, run in enumerate(planned(arguments.first_seed)[: arguments.runs], 1):
        print(number, made(run, arguments.folder).name, flush=True)


if __name__ == "__main__":
    main()
