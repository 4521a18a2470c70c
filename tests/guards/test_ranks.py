"""Ranks that are slow, fail or die never act differently: random schedules, each rank a thread."""

import atexit
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist
from bandit import guard, of_metric

from tracker_diag import Monitor
from tracker_diag.tensors.store import ThroughStore
from tracker_diag.testing import CapturingTracker

STEPS, ILL = 14, 4
WAIT = timedelta(milliseconds=180)


class Together(ThroughStore):
    """A collective made of a store: a rank that comes late has all of it, while the others have given up."""

    def __init__(self, store, rank, world):
        super().__init__(store, rank, world)
        self.store, self.rank, self.world, self.parted, self.exchanges = store, rank, world, False, 0

    @property
    def together(self):
        return not self.parted

    def exchange(self, step, message):
        self.exchanges += 1
        keys = [f"{step}/{rank}" for rank in range(self.world)]
        self.store.set(keys[self.rank], json.dumps(message))
        try:
            self.store.wait(keys, WAIT)
        except Exception:  # noqa: BLE001  # stores raise what they like where time is over
            self.parted = True
            return None
        return [json.loads(self.store.get(key)) for key in keys]

    def settle(self, word):
        return bytes(self.store.compare_set(f"settled/{self.exchanges}", "", word or "no")).decode().removeprefix("no")


def played(seed, world, folder):
    """What each rank did at each step that it came to."""
    chance = random.Random(seed)
    folder.mkdir()
    for step in range(3):
        (folder / f"{step}.bin").write_bytes(bytes([step]))
    store = dist.HashStore()
    sleeps = {(rank, step): chance.choice([0.09, 0.21, 0.3]) for rank in range(world) for step in range(STEPS)
              if chance.random() < 0.08}  # fmt: skip
    dies = {rank: chance.randrange(ILL, STEPS) for rank in range(world) if chance.random() < 0.15}
    damaged = chance.randrange(ILL, STEPS) if chance.random() < 0.3 else STEPS

    def rank(number):
        own = [guard("rollback", cooldown=0, most=9), guard("stop_update", hold=3, cooldown=0)]
        monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=own,
                          ranks=Together(store, number, world))  # fmt: skip
        atexit.unregister(monitor.close)
        did = {}
        for step in range(STEPS):
            time.sleep(sleeps.get((number, step), 0.0))
            if number == 0 and step == damaged:
                (folder / "2.bin").write_bytes(b"other")
            if step == dies.get(number):
                break
            monitor.log({"loss": 2.0 if step >= ILL and step % 5 else 0.5} if number == 0 else {}, step)
            decision = monitor.decide()
            did[step] = (decision.stop, decision.rollback_to and decision.rollback_to.step)
            if number == 0 and step < 3:
                monitor.checkpoint(folder / f"{step}.bin", step)
        return did

    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(rank, range(world)))


def never_differently(seeds, folder):
    acted = 0
    for seed in seeds:
        ranks = played(seed, 2 + 2 * (seed % 2), folder / str(seed))
        for step in range(STEPS):
            did = {done[step] for done in ranks if step in done}
            assert len(did) <= 1, (seed, step, ranks)
            acted += did not in (set(), {(None, None)})
    return acted


@pytest.mark.slow
def test_no_rank_acts_differently(tmp_path):
    assert never_differently(range(6), tmp_path) > 5


@pytest.mark.nightly
def test_no_rank_acts_differently_in_200_schedules(tmp_path):
    assert never_differently(range(1000, 1200), tmp_path) > 200


def test_three_failed_agreements_in_a_row_turn_a_guard_off():
    store, seen = dist.HashStore(), CapturingTracker()
    for exchange in (3, 4, 7, 8, 9):  # another rank was first to give its word there
        store.set(f"settled/{exchange}", "no")
    own = [guard("stop_update", hold=99)]
    monitor = Monitor([seen], rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=own,
                      ranks=Together(store, 0, 1))  # fmt: skip
    stopped = []
    for step in range(1, 16):
        monitor.log({"loss": 0.5 if step == 1 else 2.0}, step)
        stopped += [step] * bool(monitor.decide())
    assert stopped == [2, 5, 6]
    assert [text for _, text in seen.events][-1] == "guard stop_update: no agreement 3 times in a row; off for this run"
    assert monitor.health["rank_errors"] == 5
