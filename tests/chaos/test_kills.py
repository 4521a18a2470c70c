"""Nothing of a step whose `log` returned is lost: processes of one journal folder that are killed at any moment."""

import multiprocessing
import os
import random
import time

import pytest

from tracker_diag import Monitor
from tracker_diag.health import FOLDER
from tracker_diag.records import Scalar
from tracker_diag.trackers.delivery import kept
from tracker_diag.trackers.delivery.journal import Journal, NoJournal
from tracker_diag.trackers.delivery.outbox import Outbox
from tracker_diag.trackers.tracker import Metrics, Tracker

pytestmark = pytest.mark.slow


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


def trains(place, run):
    os.environ |= {FOLDER: str(place), "TRACKER_DIAG_QUIET": "1"}
    monitor = Monitor([File(place / f"{run}.steps", run)])
    with (place / f"{run}.returned").open("wb", buffering=0) as returned:
        for step in range(100_000):
            monitor.log({"loss": 0.5, "reward": step % 7}, step)
            returned.write(b"%d\n" % step)


def keeps(place):
    """What W&B and Trackio may lose is halved again and again."""
    os.environ[FOLDER] = str(place)
    kept.LARGEST = 30_000
    last = kept.Kept(File(place / "steps", "1"))
    with (place / "returned").open("wb", buffering=0) as returned:
        for step in range(1_000_000):
            assert last.keep(step, [Scalar("diag/x", 1.0)], 0.0) is None
            returned.write(b"%d\n" % step)


def steps_in(file):
    """Those of its lines that were written whole."""
    return {int(line) for line in file.read_bytes().split(b"\n")[:-1]} if file.exists() else set()


def forking():
    """Processes that have imported all they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tracker_diag.trackers.delivery.outbox"])
    return context


def lost(kills, how, folder):
    """Steps whose `log` returned and that are nowhere, of two processes at a time; and how many there were."""
    chance, missing, seen = random.Random(how), [], 0
    context = forking() if how == "forkserver" else multiprocessing.get_context(how)
    for kill in range(0, kills, 2):
        processes = {
            f"{number}": context.Process(target=trains, args=(folder, f"{number}")) for number in (kill, kill + 1)
        }
        for process in processes.values():
            process.start()
        for run, process in processes.items():
            while not steps_in(folder / f"{run}.returned"):
                assert process.exitcode is None
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            process.join()
        for run in processes:
            (left,) = folder.glob(f"file-{run}.*.journal")
            Outbox(File(folder / f"{run}.steps", run), Journal.taken(left)).drain(20)
            returned = steps_in(folder / f"{run}.returned")
            missing += [(run, step) for step in returned - steps_in(folder / f"{run}.steps")]
            seen += len(returned)
    assert not list(folder.glob("*.journal"))
    return missing, seen


def steps_of(file):
    """The steps of a journal; none if the kill came before its first line, when the older journal still has them."""
    try:
        return [line["step"] for _, line in Journal.taken(file).entries() if "step" in line]
    except NoJournal:
        return []


def test_a_kill_while_the_last_steps_are_halved_loses_none_of_the_later_half(tmp_path):
    context, chance = forking(), random.Random(1)
    for kill in range(12):
        place = tmp_path / str(kill)
        place.mkdir()
        process = context.Process(target=keeps, args=(place,))
        process.start()
        while len(steps_in(place / "returned")) < 500:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        left = {step for file in place.glob("*.journal") for step in steps_of(file)}
        last = max(steps_in(place / "returned"))
        assert left >= {*range(last - 100, last + 1)}


def test_ten_kills_lose_nothing(tmp_path):
    missing, seen = lost(10, "forkserver", tmp_path)
    assert missing == []
    assert seen > 10


@pytest.mark.nightly
@pytest.mark.parametrize(("how", "kills"), [("forkserver", 200), ("spawn", 10), ("fork", 10)])
def test_200_kills_lose_nothing(how, kills, tmp_path):
    assert lost(kills, how, tmp_path)[0] == []
