"""Several ranks, in processes of their own: what comes together is what one process would have seen."""

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from functools import reduce
from operator import add
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag import Monitor
from tracker_diag.metrics.series import NAMED_ROWS, Rank
from tracker_diag.rules.engine import Engine
from tracker_diag.tensors.batch import TokenBatch
from tracker_diag.tensors.observation import Observation
from tracker_diag.tensors.slices import Names, label
from tracker_diag.tensors.store import Merged, ThroughStore
from tracker_diag.tensors.windows import PairWindow
from tracker_diag.testing import CapturingTracker

WORKER = Path(__file__).with_name("rank.py")
worker = SimpleNamespace(**runpy.run_path(str(WORKER)))


def start(mode, rank, world, port, folder):
    return subprocess.Popen(
        [sys.executable, WORKER, mode, str(rank), str(world), str(port), folder],
        stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(processes):
    for process in processes:
        _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error


def observed(step, rank, names, first_group):
    tokens = TokenBatch.validated(**worker.batch(step, rank))
    labels = label(tokens, names)
    return {pair: Observation.reduced(tokens, pair, labels, first_group) for pair in tokens.pairs}


@pytest.mark.slow
def test_two_ranks_with_gloo_see_what_one_process_would(tmp_path, free_port):
    finish([start("all_reduce", rank, 2, free_port, tmp_path) for rank in range(2)])
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["table"] == second["table"]
    assert first["state"]["windows"] == second["state"]["windows"]

    names, windows = Names(), {}
    for step in range(worker.STEPS):
        parts = [observed(step, rank, names, step + 1) for rank in range(2) if (step, rank) != (6, 1)]
        for pair in ("policy", "reference"):
            window = windows.setdefault(pair, PairWindow(pair, worker.STEPS, 15, 50))
            window.push(reduce(add, (part[pair] for part in parts if pair in part)))
    for pair, window in windows.items():
        restored = PairWindow(pair, worker.STEPS, 15, 50)
        restored.load_state_dict(first["state"]["windows"][pair])
        for dimension in window.dimensions:
            expected = window.total(dimension)
            np.testing.assert_array_equal(restored.total(dimension), expected, err_msg=f"{pair} {dimension}")
    rows = {(row["pair"], row["slice"]): row for row in first["table"]}
    assert {"tool:search", "tool:python", "tool:browser"} <= {name for _, name in rows}
    expected = windows["policy"].slices(names)["all"]
    assert rows["policy", "all"]["ess_sequence"] == pytest.approx(expected.sequences.ess, rel=1e-12)
    assert rows["policy", "all"]["k1"] == pytest.approx(expected.k1, rel=1e-9)
    assert second["health"]["rejected_batches"] == 1

    # Resumed by one process alone: what is saved is the run's, not a rank's.
    alone = Monitor(window=worker.STEPS)
    alone.load_state_dict(first["state"])
    table = alone.slices_table()
    assert [dict(zip(table.columns, row, strict=True)) for row in table.rows] == first["table"]
    alone.observe(**worker.batch(worker.STEPS, 0))
    alone.log({"reward": 0.5}, worker.STEPS)
    alone.close()
    assert not alone.failures
    assert set(first["times"]) == {10}  # as the ranks say, though all waited for the slower one


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["decide_all_reduce", "decide_through_store"])
def test_every_rank_decides_as_the_first_one_which_alone_hears_what_is_wrong(tmp_path, free_port, mode):
    finish([start(mode, rank, 2, free_port, tmp_path) for rank in range(2)])
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["decisions"] == second["decisions"]
    stops, factors, steps = zip(*first["decisions"], strict=True)
    if mode == "decide_all_reduce":
        assert steps == (None, None, None, None, None, 0)  # both have read the checkpoint before
        assert stops == (None, None, None, "update", "update", None)  # which then give way to the rollback
        assert factors[:3] == (1.0,) * 3
        assert all(0.9 < factor < 1 for factor in factors[3:])  # √ESS of both ranks' tokens
        assert first["accounts"]["guards"] == second["accounts"]["guards"]
    else:
        assert (*steps, *stops, *factors) == (*(None,) * 12, *(1.0,) * 6)
        assert sum("the ranks share no collective to agree by" in event for event in first["events"]) == 3
    assert not first["alone"]
    assert not second["alone"]
    for item in (first, second):
        parted = mode == "decide_all_reduce"
        assert len(item["failures"]) == parted
        assert all(failure.startswith("rank_errors: RuntimeError: the ranks separate") for failure in item["failures"])


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "to"), [("slow_reader", 1), ("blind_reader", 0)])
def test_a_rank_that_reads_slowly_or_not_at_all_makes_none_act_differently(tmp_path, free_port, mode, to):
    finish([start(mode, rank, 2, free_port, tmp_path) for rank in range(2)])
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["decisions"] == second["decisions"]
    assert [step for _, _, step in first["decisions"] if step is not None] == [to]
    assert first["failures"] == second["failures"] == []
    assert any("rank 1: no way to it from here" in event for event in first["events"]) == (mode == "blind_reader")
    for rank in (first, second):  # nobody waits twice, and the others not longer than for the slow one
        assert sum(seconds > 1.0 for seconds in rank["waited"]) == (mode == "slow_reader")
        assert max(rank["waited"]) < 4.5


@pytest.mark.nightly
def test_ranks_that_fall_out_of_step_part_and_continue_and_the_trainers_own_collectives_are_none_the_wiser(
    tmp_path, free_port
):
    finish([start("out_of_step", rank, 2, free_port, tmp_path) for rank in range(2)])
    for rank in range(2):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert report["health"]["rank_errors"] == 1
        assert report["health"].get("internal_errors", 0) == 0
        assert len(report["counts"]) >= worker.STEPS - 1  # every step is evaluated all the same


@pytest.mark.nightly
def test_a_rank_that_hangs_is_waited_for_once_and_reported_and_counts_again_when_it_is_back(tmp_path, free_port):
    ranks = [start("hung", rank, 3, free_port, tmp_path) for rank in range(3)]
    worker.until(lambda: (tmp_path / "1.waits").exists() or any(rank.poll() is not None for rank in ranks))
    ranks[1].send_signal(signal.SIGSTOP)
    worker.until(lambda: all((tmp_path / f"{rank}.9").exists() for rank in (0, 2)))  # they continued without it
    ranks[1].send_signal(signal.SIGCONT)
    (tmp_path / "resumed").touch()
    finish(ranks)
    report = json.loads((tmp_path / "0.json").read_text())
    assert report["health"]["rank_errors"] == 1
    assert report["health"].get("internal_errors", 0) == 0
    counts = [value.get("diag/policy/text_only/count") for value in report["counts"].values()]
    assert max(counts[:4]) == min(counts[:4])  # all three
    assert min(counts[4:10]) < counts[0]  # without rank 1
    assert sum(counts) > 0.9 * 20 * counts[0]  # what it sent late came in late


@pytest.mark.nightly
def test_one_made_on_the_first_rank_alone_hangs_nobody(tmp_path, free_port):
    finish([start("alone", rank, 2, free_port, tmp_path) for rank in range(2)])
    report = json.loads((tmp_path / "0.json").read_text())
    assert report["health"]["rank_errors"] == 1


@pytest.mark.nightly
def test_a_killed_rank_delays_nobody_and_is_reported_with_its_host(tmp_path, free_port):
    ranks = [start("through_store", rank, 3, free_port, tmp_path) for rank in range(3)]
    worker.until(lambda: (tmp_path / "1.waits").exists() or any(rank.poll() is not None for rank in ranks))
    ranks[1].send_signal(signal.SIGKILL)
    _, error = ranks[1].communicate()
    assert ranks[1].returncode == -signal.SIGKILL, error
    (tmp_path / "killed").touch()
    finish([ranks[0], ranks[2]])
    report = json.loads((tmp_path / "0.json").read_text())
    (finding, *_) = [finding for finding in report["findings"] if finding["rule"] == "RES007"]
    assert finding["state"] == "firing"
    assert finding["summary"].startswith("rank 1 on host-1 last reported ")
    assert 10 <= finding["onset"] <= 20
    assert report["health"].get("internal_errors", 0) == 0
    # While they live, all three are in the counts: 400 tokens of each before its tool results, a step.
    counts = [value["diag/policy/text_only/count"] for value in report["counts"].values() if value]
    assert max(counts) > 2 * worker.STEPS * 400


def settle(ranks):
    worker.settle(ranks)
    assert not ranks.errors()


@pytest.mark.slow
def test_what_ranks_tell_belongs_to_the_step_of_its_tensors(rng, make_batch, monkeypatch):
    """Whether the step is evaluated at once or with the next one, and across a checkpoint too."""

    evaluate = Engine.evaluate

    class TwoRanks:
        """Two ranks, of which the second takes a second more each step, and is heard of a step ago."""

        names = Names()

        def merge(self, step, observed, names, seconds=None):
            return Merged(dict(observed), {Rank(0, "a"): 1.0, Rank(1, "b"): 1.0 + step}, {Rank(1, "b"): step})

        def received(self):
            return ()

        def errors(self):
            return ()

        def close(self):
            return Merged({})

    def run(cut=None):
        result, seen = {}, CapturingTracker()

        def evaluated(engine, observed):
            result[observed.step] = dict(observed.missing)
            return evaluate(engine, observed)

        monkeypatch.setattr(Engine, "evaluate", evaluated)
        monitor = Monitor([seen], ranks=TwoRanks())
        for step in range(4):
            if step == cut:
                old, monitor = monitor, Monitor([seen], ranks=TwoRanks())
                monitor.load_state_dict(json.loads(json.dumps(old.state_dict())))
                atexit.unregister(old.close)
            monitor.observe(**make_batch(rng))
            monitor.log({"reward": 0.5}, step)
        monitor.close()
        return {step: (seen.scalars(step)["diag/health/rank_time_ratio"], result[step]) for step in range(4)}

    expected = {step: (1.0 + step, {Rank(1, "b"): step}) for step in range(4)}
    assert run() == expected
    assert run(cut=2) == expected


@pytest.mark.nightly
def test_rank_0_takes_what_is_there_and_asks_for_no_more():
    """In one process: a rank that is late, ahead, or has another set of slices."""
    store = dist.HashStore()
    first, second = ThroughStore(store, 0, 2, "a"), ThroughStore(store, 1, 2, "b")
    names, theirs = Names(), Names()

    def send(step):
        second.merge(step, observed(step, 1, theirs, 0), theirs, seconds=2.0)
        settle(second)

    def merge_step(step):
        worker.take_sent(first)  # or what came last would be in the next step
        assert not first.errors()
        return first.merge(step, observed(step, 0, names, 0), names, seconds=0.5)

    settle(second)
    alone = merge_step(0)
    assert alone.missing == {Rank(1, "b"): 1}
    send(0), send(1), send(5)
    both = merge_step(1)
    assert not both.missing
    assert both.time_ratio == 4
    assert both.observed["policy"].tokens.n.sum() == sum(
        TokenBatch.validated(**worker.batch(step, rank)).model_mask.sum() for step, rank in ((1, 0), (0, 1), (1, 1))
    )
    assert not merge_step(2).missing  # it is ahead, not silent
    send(6)
    merged = merge_step(6)
    assert set(first.names.rows["tool"]) == {"search", "python", "browser"}
    tool = merged.observed["policy"].sketches["tool"].counts
    for name, row in first.names.slices("tool").items():
        mine = sum(
            (batch["tool"][batch["model_mask"]] == name.removeprefix("tool:")).sum()
            for batch in (worker.batch(6, 0), worker.batch(6, 1), worker.batch(5, 1))
        )
        assert tool[row].sum() == mine
    for step in range(7, 7 + 70):
        send(step)
    late = merge_step(80)
    assert late.lost == 70 - 64

    # Started anew, it counts from 0 again; and what rank 0 itself has missed before it was started anew is past.
    second.close()
    anew = ThroughStore(store, 1, 2, "c")
    anew.merge(90, observed(90, 1, theirs, 0), theirs)
    settle(anew)
    assert merge_step(91).observed["policy"].tokens.n.sum() == 2 * tokens_of(90)
    resumed = ThroughStore(store, 0, 2, "a")
    worker.take_sent(resumed)
    assert not resumed.errors()
    assert resumed.merge(92, {}, Names()).observed == {}

    # On a count of steps of its own, it is ahead for ever: no more than 64 are kept, and it reads as missing.
    lost = 0
    for step in range(10_000, 10_000 + 2 * 64):
        anew.merge(step, observed(1, 1, theirs, 0), theirs)
        settle(anew)
        result = merge_step(step - 9900)
        lost += result.lost
    assert result.missing == {Rank(1, "b"): 1} or result.missing[Rank(1, "b")] > 1
    assert 2 * 64 - lost <= 64


def tokens_of(step):
    return TokenBatch.validated(**worker.batch(step, 0)).model_mask.sum()


@pytest.mark.slow
def test_what_comes_after_the_last_step_is_of_it_and_nobody_is_waited_for():
    before = {*threading.enumerate()}
    store, seen = dist.HashStore(), CapturingTracker()
    first, second = ThroughStore(store, 0, 3, "a"), ThroughStore(store, 1, 3, "b")
    monitor, theirs = Monitor([seen], ranks=first), Names()
    monitor.observe(**worker.batch(0, 0))
    monitor.log({"reward": 0.5}, 0)
    settle(first)
    for step in (0, 4):  # it is ahead, too
        second.merge(step, observed(step, 1, theirs, 0), theirs)
    second.close()
    summary = monitor.close()
    assert set(threading.enumerate()) <= before  # none waits for the third rank, which never comes
    assert (summary.steps, summary.last_step) == (1, 0)
    (row,) = (row for row in report(monitor) if (row["pair"], row["slice"]) == ("policy", "all"))
    assert row["count"] == sum(
        TokenBatch.validated(**worker.batch(step, rank)).model_mask.sum() for step, rank in ((0, 0), (0, 1), (4, 1))
    )
    text_only = next(row for row in report(monitor) if (row["pair"], row["slice"]) == ("policy", "text_only"))
    assert seen.scalars(0)["diag/policy/text_only/count"] == text_only["count"]
    (text_only,) = (row for row in report(monitor) if (row["pair"], row["slice"]) == ("policy", "text_only"))
    assert seen.scalars(0)["diag/policy/text_only/count"] == text_only["count"]
    assert set(first.names.rows["tool"]) == {"search", "python", "browser"}
    assert monitor._run.intake.missing == {Rank(2, ""): 1}  # noqa: SLF001  # RES007 waits for more steps than this
    assert not +monitor.health


class Store:
    """One without other ranks, which may go."""

    gone = False

    def check(self, keys):
        if self.gone:
            raise RuntimeError("the store is gone")
        return False


@pytest.mark.slow
def test_a_store_that_fails_at_the_end_is_reported():
    ranks = ThroughStore(store := Store(), 0, 2, "a")
    monitor = Monitor(ranks=ranks)
    monitor.observe(**worker.batch(0, 0))
    monitor.log({}, 0)
    settle(ranks)
    store.gone = True
    monitor.close()
    assert [str(item) for item in monitor.failures] == ["rank_errors: RuntimeError: the store is gone"]


def report(monitor):
    table = monitor.slices_table()
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_a_store_that_fails_costs_rank_0_nothing_of_its_own():
    ranks, names = ThroughStore(store := Store(), 0, 2, "a"), Names()
    store.gone = True
    for step in range(3):
        merged = ranks.merge(step, observed(step, 0, names, 0), names)
        assert merged.observed["policy"].tokens.n.sum() == tokens_of(step)
    worker.settle(ranks)
    assert [str(error) for error in ranks.errors()] == ["the store is gone"] * 3


def test_a_rank_that_is_none_is_reported():
    with pytest.raises(ValueError, match="rank: 2 given, expected 0 … 1"):
        ThroughStore(None, 2, 2)


@pytest.mark.slow
@given(st.lists(st.sampled_from([f"tool{i}" for i in range(30)]), min_size=1, max_size=40), st.randoms())
def test_renaming_loses_no_count(used, random):
    agreed, mine = Names(), Names()
    for name in random.sample(sorted(set(used)), len(set(used))):
        agreed.row("tool", name)
    zero, model = np.zeros((1, len(used)), np.float32), np.ones((1, len(used)), bool)
    tokens = TokenBatch.validated(logprobs=zero, old_logprobs=zero + 0.1, model_mask=model, tool=[used])
    item = Observation.reduced(tokens, "policy", label(tokens, mine))
    moved = item.renamed(mine, agreed).sketches["tool"].counts.sum(axis=(1, 2))
    assert moved.sum() == len(used)
    known = agreed.rows["tool"]
    if len(set(used)) < NAMED_ROWS:
        assert {name: moved[i] for i, name in enumerate(known)} == {name: used.count(name) for name in known}
