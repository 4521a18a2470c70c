"""Ranks of one job that each have a share of the batch, in processes of their own."""

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from tracker_diag import Monitor, ThroughStore
from tracker_diag.attach.shares import Share, together

RANK = Path(__file__).with_name("shares.py")
rank = SimpleNamespace(**runpy.run_path(str(RANK)))


def job(mode, folder):
    """The codes that two ranks return, and what each has written."""
    started = [
        subprocess.Popen(
            [sys.executable, RANK, mode, str(number), "2", folder],
            stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for number in range(2)
    ]  # fmt: skip
    output = [process.communicate(timeout=240)[1] for process in started]
    return [process.returncode for process in started], output, folder


def shown_by(folder, number):
    return json.loads((folder / f"{number}.json").read_text())


def counted(rows):
    """Of each slice how many tokens there are, and the tail."""
    return {(row["pair"], row["slice"]): (row["count"], row["p50"], row["p95"]) for row in rows if row["count"]}


@pytest.mark.nightly
def test_rank_0_has_the_windows_of_one_process_with_all_sequences(tmp_path):
    codes, output, folder = job("whole", tmp_path)
    assert codes == [0, 0], output
    first, second = (shown_by(folder, number) for number in range(2))
    assert first["failures"] == second["failures"] == []
    assert first["missing"] == {}  # a rank that had nothing at one step was heard of
    monitor = Monitor(window=rank.STEPS)
    for step in range(rank.STEPS):
        monitor.observe(**rank.batch(step, 0))
        if step != rank.NOTHING:
            monitor.observe(**rank.batch(step, 1))
        monitor.log({}, step)
    monitor.close()
    table = monitor.slices_table()
    expected = counted(dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert counted(first["table"]) == expected
    assert {"text_only", "post_tool"} <= {name for _, name in expected}
    assert counted(second["table"]) == {}  # it evaluates nothing


@pytest.mark.nightly
def test_a_rank_that_is_killed_holds_up_nobody_and_is_reported_as_missing(tmp_path):
    codes, output, folder = job("dies", tmp_path)
    assert codes == [0, -signal.SIGKILL], output
    first = shown_by(folder, 0)
    assert first["failures"] == []
    assert first["steps"] == rank.STEPS
    assert first["missing"]["1"] >= rank.STEPS - rank.DIES - 3


def test_one_process_and_no_job_have_nobody_to_come_together_with():
    assert together(0, 1) is None
    assert not dist.is_initialized()
    assert together(0, 2) is None


def test_a_store_that_fails_costs_a_rank_nothing_and_is_counted():
    class Broken:
        def set(self, key, value):
            raise RuntimeError("the store is gone")

    ranks = ThroughStore(Broken(), 1, 2)
    share = Share(ranks)
    for step in range(3):
        share.monitor.observe(**rank.batch(step, 1))
        share.stepped(step)
        rank.until(lambda: not ranks._thread._calls)  # noqa: SLF001  # there is no door: a trainer never waits for them
    share.stepped(3)
    share.monitor.close()
    assert {str(failure) for failure in share.monitor.failures} == {"rank_errors: RuntimeError: the store is gone"}
    assert set(+share.monitor.health) == {"rank_errors"}
