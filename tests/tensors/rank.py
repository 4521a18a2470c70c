"""One rank of a run of several, as a process of its own: python rank.py MODE RANK WORLD PORT FOLDER."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tracker_diag import Guard, Monitor, Rule
from tracker_diag.guards import checkpoints
from tracker_diag.guards.checkpoints import read_manifest
from tracker_diag.tensors import ranks
from tracker_diag.tensors.ranks import AllReduce
from tracker_diag.tensors.store import WAIT, ThroughStore
from tracker_diag.testing import CapturingTracker

STEPS, SEQUENCES, WIDTH = 12, 16, 40
LAST = 12
"""The last step of a rank that is then killed."""
TOOLS = (("search", "python"), ("python", "browser", "search"))


def batch(step, rank):
    """What `rank` observes at `step`: tools of its own, and a pair that only rank 0 has."""
    rng = np.random.default_rng([step, rank])
    new = rng.uniform(-3, -0.1, (SEQUENCES, WIDTH))
    model = np.ones((SEQUENCES, WIDTH), bool)
    model[: SEQUENCES // 2, 10:14] = False
    tool = np.full((SEQUENCES, WIDTH), "", object)
    tool[: SEQUENCES // 2, 14:] = rng.choice(TOOLS[rank % 2], SEQUENCES // 2)[:, None]
    given = {"logprobs": new, "model_mask": model, "old_logprobs": new - rng.normal(0, 0.05, new.shape)}
    if rank == 0:
        given |= {"ref_logprobs": new - rng.normal(0, 0.1, new.shape), "tool": tool}
    elif step > 3:
        given |= {"tool": tool}
    return given


def begin(rank, world, port):
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world, timeout=timedelta(seconds=180)
    )


def all_reduce(rank, world, port, folder):
    begin(rank, world, port)
    if rank == 1:
        time.sleep(WAIT.total_seconds() + 1)  # a tracker may take so long to begin its run
    monitor = Monitor([CapturingTracker()], ranks=AllReduce(), window=STEPS)
    for step in range(STEPS):
        given = batch(step, rank)
        if (step, rank) == (6, 1):
            given["logprobs"] = given["logprobs"][:, :5]  # rejected here, and the other rank must not wait for ever
        monitor.observe(**given, seconds=1.0 if rank == 0 else 10.0)
        monitor.log({"reward": 0.5}, step)
        if rank == 0:
            monitor.log({"eval/score": 0.5}, step + 1)  # a row of its own, that the other rank does not have
    monitor.close()
    return report(monitor)


def out_of_step(rank, world, port, folder):
    """Rank 1 leaves out one step; the trainer's own collective of every step is to continue."""
    begin(rank, world, port)
    monitor = Monitor([CapturingTracker()], ranks=AllReduce(), window=STEPS)
    for step in range(STEPS):
        if (step, rank) != (3, 1):
            monitor.observe(**batch(step, rank))
        monitor.log({"reward": 0.5}, step)
        if step == 3:
            continue  # here rank 1 is one step behind in the diagnostics
        gradient = torch.ones(3)
        dist.all_reduce(gradient)
        assert gradient.tolist() == [2, 2, 2]
    monitor.close()
    return report(monitor)


def hung(rank, world, port, folder):
    """After step 3 rank 1 is stopped, and continues when the others have made six steps more."""
    begin(rank, world, port)
    ranks = AllReduce()
    monitor = Monitor([CapturingTracker()], ranks=ranks, window=1)
    for step in range(20):
        if (step, rank) == (4, 1):
            (folder / "1.waits").touch()
            until((folder / "resumed").exists)  # stopped here
        monitor.observe(**batch(step, rank))
        monitor.log({"reward": 0.5}, step)
        (folder / f"{rank}.{step}").touch()
        if step == 3:
            until(lambda: all((folder / f"{other}.3").exists() for other in range(world)))
        if step == 9 and rank != 1:
            until((folder / "1.9").exists)
        if step > 9:  # in step again, as training keeps them
            until(lambda: all((folder / f"{other}.{step}").exists() for other in range(world)))  # noqa: B023
            settle(ranks)  # as all of them do, once they have parted
    monitor.close()
    return report(monitor)


def alone(rank, world, port, folder):
    """Rank 0 alone makes one, and the trainer's own groups and collectives continue."""
    begin(rank, world, port)
    ranks.MEET = timedelta(seconds=2)
    monitor = Monitor([CapturingTracker()], ranks=AllReduce() if rank == 0 else None)
    group = dist.new_group(backend="gloo")
    for step in range(STEPS):
        monitor.observe(**batch(step, rank))
        monitor.log({"reward": 0.5}, step)
        gradient = torch.ones(3)
        dist.all_reduce(gradient, group=group)
        assert gradient.tolist() == [2, 2, 2]
    monitor.close()
    return report(monitor)


def through_store(rank, world, port, folder):
    """In step with the others, as in training; once it has reported step 12, rank 1 waits to be killed."""
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, timedelta(seconds=180), wait_for_workers=False)
    ranks = ThroughStore(store, rank, world, f"host-{rank}")
    monitor = Monitor([CapturingTracker()], ranks=ranks, window=STEPS)
    for step in range(40):
        monitor.observe(**batch(step, rank))
        monitor.log({"reward": 0.5}, step)
        settle(ranks)  # this step is reported
        (folder / f"{rank}.{step}").touch()
        if (step, rank) == (LAST, 1):
            (folder / "1.waits").touch()
            time.sleep(600)
        living = [other for other in range(world) if other != 1 or step <= LAST]
        until(lambda: all((folder / f"{other}.{step}").exists() for other in living))  # noqa: B023  # called at once
        if step == LAST:
            until((folder / "killed").exists)
    monitor.close()
    return report(monitor)


def deciding(monitor, rank, folder):
    """Only rank 0 hears of the loss; what each rank has decided at each step."""
    decisions = []
    for step in range(6):
        monitor.observe(**batch(step, rank))
        monitor.log({"loss": 2.0 if step >= 3 else 0.5} if rank == 0 else {}, step)
        decision = monitor.decide()
        decisions.append([decision.stop, decision.lr_factor, decision.rollback_to and decision.rollback_to.step])
        if step == 0 and rank == 0:
            (saved := folder / "saved").write_text("weights")
            monitor.checkpoint(saved, 0)
            until(monitor.guards.checkpoints.state_dict)  # it has been read
    return decisions


def guarded(ranks):
    signal = {"kind": "threshold", "series": {"metric": "loss"}, "above": 1.0}
    high = Rule(id="ACM001", title="Loss", signals={"high": signal}, when=["high"], summary="high")
    guards = [Guard(do=do, act=True) for do in ("rollback", "stop_update", "scale_lr")]
    return Monitor([CapturingTracker()], ranks=ranks, rules=[high], catalog=False, guards=guards)


def decide_all_reduce(rank, world, port, folder):
    begin(rank, world, port)
    monitor = guarded(AllReduce())
    decisions = deciding(monitor, rank, folder)
    if rank == 0:  # alone: nobody acts where not all do
        monitor.log({"loss": 2.0}, 6)
    alone = monitor.decide()
    monitor.close()
    return _decided(monitor, decisions, alone)


def slow_reader(rank, world, port, folder):
    """Rank 1 takes longer to read a checkpoint than anybody waits for it."""
    return reading(rank, world, port, folder, lambda root, names: (time.sleep(5), read_manifest(root, names))[1])


def blind_reader(rank, world, port, folder):
    """Rank 1 alone cannot read the second checkpoint."""

    def unreadable(root, names):
        if root.name == "saved1":
            raise OSError("no way to it from here")
        return read_manifest(root, names)

    return reading(rank, world, port, folder, unreadable)


def reading(rank, world, port, folder, read):
    begin(rank, world, port)
    monitor, decisions, waited = guarded(AllReduce()), [], []
    checkpoints.PATIENCE = 2.0
    if rank == 1:
        checkpoints.read_manifest = read
    for step in range(90):
        monitor.log({"loss": 2.0 if step >= 3 else 0.5} if rank == 0 else {}, step)
        begun = time.monotonic()
        decision = monitor.decide()
        waited.append(time.monotonic() - begun)
        decisions.append([decision.stop, decision.lr_factor, decision.rollback_to and decision.rollback_to.step])
        if step < 2 and rank == 0:
            (saved := folder / f"saved{step}").write_text("weights")
            monitor.checkpoint(saved, step)
            monitor.guards.checkpoints._underway[step].result(60)  # noqa: SLF001  # the other rank asks only once it is there
        time.sleep(0.1)
    monitor.close()
    return _decided(monitor, decisions, None) | {"waited": waited}


def decide_through_store(rank, world, port, folder):
    store = dist.TCPStore("127.0.0.1", port, world, rank == 0, timedelta(seconds=180), wait_for_workers=False)
    monitor = guarded(ThroughStore(store, rank, world))
    decisions = deciding(monitor, rank, folder)
    (folder / f"{rank}.done").touch()
    until(lambda: all((folder / f"{other}.done").exists() for other in range(world)))
    monitor.close()
    return _decided(monitor, decisions, None)


def _decided(monitor, decisions, alone):
    accounts = monitor.guards.state_dict()["accounts"]
    records = {"events": [event for _, event in monitor.events], "failures": monitor.failures}
    return {"decisions": decisions, "alone": bool(alone), "accounts": accounts} | records


def until(holds):
    """Until `holds()`, within three minutes."""
    end = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def settle(ranks):
    """Until `ranks` have sent and taken in what waits."""
    until(lambda: not ranks._thread._calls)  # noqa: SLF001  # no trainer waits for this, so it has no public name


def take_sent(ranks):
    """Have rank 0 take in what the others have sent by now."""
    ranks._thread.put(ranks._take)  # noqa: SLF001  # a step would do so, but not wait for it
    settle(ranks)


def report(monitor):
    """What a rank has in the end."""
    table = monitor.slices_table()
    return {
        "state": monitor.state_dict(),
        "table": [dict(zip(table.columns, row, strict=True)) for row in table.rows],
        "findings": [finding.to_json() for finding in monitor.summary().findings],
        "health": dict(monitor.health),
        "times": [
            scalars["diag/health/rank_time_ratio"]
            for step in monitor.trackers[0].records
            if "diag/health/rank_time_ratio" in (scalars := monitor.trackers[0].scalars(step))
        ],
        "counts": {
            step: {k: v for k, v in monitor.trackers[0].scalars(step).items() if k.endswith("count")}
            for step in monitor.trackers[0].records
        },
    }


if __name__ == "__main__":
    mode, rank, world, port, folder = sys.argv[1:]
    result = globals()[mode](int(rank), int(world), int(port), Path(folder))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(result))
    if dist.is_initialized() and mode != "hung":
        dist.destroy_process_group()
