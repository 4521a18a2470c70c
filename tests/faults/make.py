"""Make the runs of the fault benchmark: real training on two cores, about two hours.

    python tests/faults/make.py

Each run is kept in build/faults; one that is there is not made again. At the end they become runs.jsonl.xz.
"""

import math
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.update(
    OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TRL_EXPERIMENTAL_SILENCE="1", TRACKER_DIAG_QUIET="1",
    TOKENIZERS_PARALLELISM="false",
)  # fmt: skip
sys.path.insert(0, str(Path(__file__).parent))

from dataset import Run, write
from labels import labelled
from plan import CONTROL, HALVES, Planned, planned

FOLDER = Path(__file__).parents[2] / "build" / "faults"
NOT_KEPT = ("diag/rule/", "diag/health/", "diag/alert/")
"""What the diagnostics made of the run, not what they measured in it."""


def rows_of(run: Planned) -> dict[int, dict[str, float]]:
    """Train."""
    given = run.planted
    if run.trainer in CONTROL:
        import control

        return control.run(run.trainer, run.task, given, run.seed)
    if run.trainer == "one-file PPO":
        import onefile

        return onefile.run(given, run.seed, run.task)
    if run.trainer == "agent":
        import agent

        return agent.run(given, run.seed)
    import language

    return language.run(run.trainer, run.task, given, run.seed)


def made(planned: Planned) -> Run:
    """A run with its labels."""
    rows = {step: row for step, row in sorted(rows_of(planned).items()) if row}
    steps = list(rows)
    kept = dict.fromkeys(key for row in rows.values() for key in row if not key.startswith(NOT_KEPT))
    columns = {key: [number(row.get(key)) for row in rows.values()] for key in kept}
    fault = planned.fault
    return Run(
        trainer=planned.trainer, task=planned.task, seed=planned.seed, half=HALVES[planned.trainer, planned.task],
        fault=fault.name if fault else None, onset=int(fault.onset * steps[-1]) if fault else None,
        right=sorted(fault.right) if fault else [], collapsed=False, steps=steps, columns=columns,
    )  # fmt: skip


def number(value: float | None) -> Any:
    """Six digits, as a logger prints them; JSON has no NaN."""
    if value is None:
        return None
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))


def kept(planned: Planned) -> str:
    """Make one run, unless it is there; gives its name."""
    file = FOLDER / f"{planned.name.replace('/', '-')}.json"
    if not file.exists():
        try:
            file.write_text(made(planned).model_dump_json(), encoding="utf-8")
        except Exception:  # noqa: BLE001  one that fails must not lose the others
            return f"{planned.name}: {traceback.format_exc()}"
    return planned.name


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    runs = planned()
    with ProcessPoolExecutor(2) as pool:
        for at, name in enumerate(pool.map(kept, runs), 1):
            print(f"{at}/{len(runs)} {name}", flush=True)
    gathered = [
        Run.model_validate_json((FOLDER / f"{item.name.replace('/', '-')}.json").read_text(encoding="utf-8"))
        for item in runs
    ]
    write(labelled(gathered))


if __name__ == "__main__":
    main()
