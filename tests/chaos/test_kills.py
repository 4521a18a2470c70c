"""Nothing of a step whose `log` returned is lost: processes of one journal folder that are killed at any moment."""

import multiprocessing
import os
import random
import time

import pytest

from tracker_diag import Monitor
from tracker_diag.health import FOLDER
from tracker_diag.trackers.delivery.journal import Journal
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.tracker import Metrics, Tracker


class File(Tracker):
    """Keeps the steps that arrive in a file; its server is away half of the time."""

    name = "file"
    takes = (Metrics,)

    def __init__(self, place, run):
        self.place, self.run, self.steps = place, run, []

    @property
    def address(self):
        return {"run": self.run}

    def write(self, step, entries, at):
        self.steps += [step for entry in entries if isinstance(entry, Metrics)]

    def flush(self, *, last=False):
        if time.monotonic() % 0.02 > 0.01 and not last:
            raise ConnectionError("away")
        with self.place.open("a") as out:
            out.write("".join(f"{step}\n" for step in self.steps))
        self.steps.clear()
        return True


def trains(place, run, returned):
    os.environ |= {FOLDER: str(place), "TRACKER_DIAG_QUIET": "1"}
    monitor = Monitor([File(place / f"{run}.steps", run)])
    with os.fdopen(returned.detach(), "wb", buffering=0) as pipe:
        for step in range(100_000):
            monitor.log({"loss": 0.5, "reward": step % 7}, step)
            pipe.write(b"%d\n" % step)


def lost(kills, how, folder):
    """Steps whose `log` returned and that are nowhere, of two processes at a time."""
    chance, missing, seen = random.Random(how), [], 0
    context = multiprocessing.get_context(how)
    if how == "forkserver":
        context.set_forkserver_preload([__name__, "tracker_diag.trackers.delivery.outbox"])
    for kill in range(0, kills, 2):
        pairs = []
        for run in (f"{kill}", f"{kill + 1}"):
            reads, writes = os.pipe()
            process = context.Process(target=trains, args=(folder, run, multiprocessing.reduction.DupFd(writes)))
            process.start()
            os.close(writes)
            pairs.append((run, process, os.fdopen(reads, "rb")))
        for _, process, pipe in pairs:
            pipe.readline()  # it has begun
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            process.join()
        for run, _, pipe in pairs:
            returned = {0, *map(int, pipe.read().split(b"\n")[:-1])}
            pipe.close()
            (left,) = folder.glob(f"file-{run}.*.journal")
            Outbox(File(folder / f"{run}.steps", run), Journal.taken(left)).drain(20)
            arrived = {int(line) for line in (folder / f"{run}.steps").read_text().split()}
            missing += [(run, step) for step in returned - arrived]
            seen += len(returned)
    assert not list(folder.glob("*.journal"))
    return missing, seen


@pytest.mark.slow
def test_ten_kills_lose_nothing(tmp_path):
    missing, seen = lost(10, "forkserver", tmp_path)
    assert missing == []
    assert seen > 10


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "kills"), [("forkserver", 200), ("spawn", 10), ("fork", 10)])
def test_200_kills_lose_nothing(how, kills, tmp_path):
    assert lost(kills, how, tmp_path)[0] == []
