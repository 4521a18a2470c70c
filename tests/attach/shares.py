"""One rank of a job, as a process of its own: python shares.py MODE RANK WORLD FOLDER.

`whole`: both make all steps. `dies`: the last rank is killed by itself after its third step.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tracker_diag import Monitor
from tracker_diag.attach.shares import Share, together
from tracker_diag.testing import CapturingTracker

STEPS, SEQUENCES, WIDTH, DIES, NOTHING = 12, 8, 40, 3, 5
"""After step DIES the last rank is gone in `dies`; at step NOTHING it has no batch in `whole`."""


def batch(step, rank):
    """What `rank` observes at `step`: a tool's result within each sequence, and a tail after it that is wider."""
    rng = np.random.default_rng([step, rank])
    new = rng.uniform(-4, -1.5, (SEQUENCES, WIDTH))
    model = np.ones((SEQUENCES, WIDTH), bool)
    model[:, :4] = model[:, 14:18] = False
    spread = np.where(np.arange(WIDTH) < 18, 0.02, 0.1 * (1 + rank))
    old = new - rng.normal(0, spread, new.shape)
    tensors = {"old_logprobs": new, "rollout_logprobs": old, "model_mask": model}
    return {name: torch.from_numpy(value) for name, value in tensors.items()}


def until(holds):
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def main(mode, rank, world, folder):
    where = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world, timeout=timedelta(seconds=180))
    ranks = together(rank, world)
    leads = rank == 0
    share = None if leads else Share(ranks)
    monitor = Monitor([CapturingTracker()], ranks=ranks, window=STEPS) if leads else share.monitor
    last = world - 1
    for step in range(STEPS):
        if not (mode == "whole" and (step, rank) == (NOTHING, last)):
            monitor.observe(**batch(step, rank))
        if leads:
            monitor.log({"reward": 0.5}, step)
        else:
            share.stepped(step)
            share.stepped(step)  # as a trainer that logs several times a step
        until(lambda: not ranks._thread._calls)  # noqa: SLF001  # there is no door: a trainer never waits for them
        (folder / f"{rank}.{step}").touch()
        if mode == "dies" and (step, rank) == (DIES, last):
            os.kill(os.getpid(), signal.SIGKILL)
        living = [other for other in range(world) if not (mode == "dies" and other == last and step > DIES)]
        until(lambda: all((folder / f"{other}.{step}").exists() for other in living))  # noqa: B023  # called at once
    monitor.close()  # here what came of the other's last step is taken
    late = monitor._run.intake.missing or {}  # noqa: SLF001  # the rule that says so waits for more steps than these
    missing = {str(other.number): steps for other, steps in late.items()}
    table = monitor.slices_table()
    result = {
        "table": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        "failures": [str(failure) for failure in monitor.failures],
        "missing": missing,
        "steps": monitor.summary().steps,
        "health": {name: n for name, n in monitor.health.items() if n},
    }
    (folder / f"{rank}.json").write_text(json.dumps(result))
    if mode == "whole":
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    mode, rank, world, folder = sys.argv[1:]
    main(mode, int(rank), int(world), Path(folder))
