"""Against real offline runs, read back with W&B's own reader."""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trackers.adapters import Wandb, history, own, summary
from tracker_diag import Monitor, wrap
from tracker_diag.testing import example_batch
from tracker_diag.trackers.delivery.journal import Journal
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.wandb.write import WandbTracker

pytestmark = pytest.mark.slow


@pytest.fixture
def by_step(request):
    """p95 by step, of the rows of the run and of those next to it."""
    return lambda: Wandb(request).series("run", "diag/policy/all/p95")


@pytest.mark.parametrize("by_module", [False, True])
def test_a_disabled_run_is_judged_and_nothing_is_written(by_module, tmp_path, monkeypatch):
    import wandb

    monkeypatch.chdir(tmp_path)
    yours = wandb.init(mode="disabled", config={"num_iterations": 2})
    with yours:
        run = wrap(wandb if by_module else yours)
        assert wrap(yours).diag is run.diag
        for step in range(110):
            run.diag.observe(**example_batch(step))
            (wandb if by_module else run).log({"reward": 0.5}, step=step)
    assert run.diag.step == 109
    assert run.diag.config["num_iterations"] == 2
    assert run.diag.failures == []
    run.diag.log({"reward": 0.5}, 110)
    assert run.diag.health["after_close"] == 1, "the block has closed it"
    assert [finding.rule.id for finding in run.diag.summary().findings] == ["POL001"]
    assert not (tmp_path / "wandb").exists()


@pytest.mark.nightly
def test_the_time_line_is_there_from_the_alert_on(wandb_offline):
    run = wrap(wandb_offline.start())
    run.log({"loss": math.nan}, step=0)
    until = time.monotonic() + 60
    while "diag/decision" not in run.summary.keys() and time.monotonic() < until:  # noqa: SIM118  # no dictionary
        time.sleep(0.05)
    assert run.summary["diag/decision"]["_type"] == "html-file"
    run.finish()


@pytest.mark.nightly
@pytest.mark.parametrize("steps", [1, 3])
def test_a_loop_of_ones_own_with_the_tracker_alone(steps, rng, make_batch, wandb_offline):
    """No row is yours, so none is ours: a single step is in the summary, several in another run."""
    run = wandb_offline.start()
    with Monitor([WandbTracker(run)]) as monitor:
        for step in range(steps):
            monitor.observe(**make_batch(rng))
            monitor.log({"reward": 1.0}, step)
    run.finish()
    assert history(wandb_offline.records()) == []
    assert summary(wandb_offline.records()).get("diag/step") == (0 if steps == 1 else None)
    steps_seen = [row["diag/step"] for records in wandb_offline.own_records() for row in history(records)]
    assert steps_seen == ([] if steps == 1 else list(range(steps)))


YOURS = {
    "few rows with steps": lambda run: [run.log({"eval/return": 0.5 * epoch}, step=epoch) for epoch in range(3)],
    "few rows without": lambda run: [run.log({"eval/return": 0.5 * epoch}) for epoch in range(3)],
    "none": lambda run: None,
}


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("yours", YOURS)
def test_more_steps_than_rows_of_yours_move_none_of_them(yours, when, wandb_offline, by_step):
    plain = wandb_offline.start("plain")
    YOURS[yours](plain)
    plain.finish()

    run = wrap(wandb_offline.start())
    if when == "between":
        run.diag.log({"loss": 1.0}, 0)
        YOURS[yours](run)
    for step in range(100, 150):
        run.diag.observe(**example_batch(step))
        run.diag.log({"loss": 1.0}, step)
    if when == "before":
        YOURS[yours](run)
    run.finish()
    counted = {kind for kind, count in run.diag.health.items() if count}
    assert counted <= {"late_steps", "dropped_histograms"}  # of rows that count epochs, and of steps without a row
    records, alone = wandb_offline.records(), history(wandb_offline.records("plain"))
    assert repr(own(history(records))) == repr(own(alone))
    assert len(history(records)) == len(alone)
    assert sorted(by_step()) == list(range(100, 150))


@pytest.mark.nightly
@pytest.mark.parametrize("steps", ["said", "counted"])
def test_tensors_that_come_after_the_row_stand_under_their_own_step(steps, wandb_offline, by_step, tmp_path):
    """`observe` after `log`: each step is looked at again with the next row, when its own row may be closed."""
    run = wrap(wandb_offline.start(), also=[JsonlTracker(tmp_path / "files")])
    for step in range(12):
        run.log({"loss": 1.0}, **({"step": step} if steps == "said" else {}))
        run.diag.observe(**example_batch(step), step=step)
    run.finish()
    lines = (json.loads(line) for line in (tmp_path / "files" / "metrics.jsonl").read_text().splitlines())
    computed = {line["step"]: line["diag/policy/all/p95"] for line in lines if "diag/policy/all/p95" in line}
    assert len(computed) >= 11
    result = by_step()
    last = summary(wandb_offline.records())
    result.setdefault(last["diag/step"], last.get("diag/policy/all/p95"))
    assert result == computed
    assert not wandb_offline.own_records()  # your rows have room for all of them


def test_a_last_step_outlives_the_row_that_an_earlier_one_went_into(rng, make_batch, wandb_offline, by_step):
    """Step 0 comes once more when its row is closed, and takes the next: that row closes after step 1 was looked at."""
    run = wrap(wandb_offline.start())
    for row in ({"loss": 1.0}, None, {"loss": 2.0}, {"reward": 1.0}):
        run.diag.observe(**make_batch(rng))
        if row is None:
            run.diag.log({"kl": 1.0}, 0)
        else:
            run.log(row, commit=row != {"loss": 2.0})
    run.finish()
    result, last = by_step(), summary(wandb_offline.records())
    result.setdefault(last["diag/step"], last["diag/policy/all/p95"])
    assert sorted(result) == [0, 1]


@pytest.mark.nightly
def test_the_axis_of_transformers_has_no_point_of_ours(rng, make_batch, wandb_offline):
    """Whose axis W&B repeats in each row that has it not, and in the summary."""
    run = wandb_offline.start()
    run.define_metric("train/global_step")
    run.define_metric("*", step_metric="train/global_step", step_sync=True)
    wrapped = wrap(run)
    for step in range(10):
        wrapped.diag.observe(**make_batch(rng))
        wrapped.diag.log({"loss": 1.0}, step)
        if step % 4 == 0:
            run.log({"train/loss": 0.1 * step, "train/global_step": step})
    run.finish()
    rows = history(wandb_offline.records())
    assert [(row["train/global_step"], row["train/loss"]) for row in rows] == [(s, 0.1 * s) for s in (0, 4, 8)]


@pytest.mark.nightly
def test_your_next_run_is_yours_and_a_sweep_is_none_of_ours(rng, make_batch, wandb_offline, monkeypatch, tmp_path):
    """W&B gives `init` whatever run was begun last, and a process with a sweep's variables that sweep's run."""
    import wandb

    run = wrap(wandb_offline.start())
    for step in range(10):
        run.diag.observe(**make_batch(rng))
        run.diag.log({"loss": 1.0}, step)
    assert wandb.init(project="test", dir=tmp_path, mode="offline").id == run.id
    with monkeypatch.context() as sweep:
        for name, value in {"SWEEP_ID": "of-yours", "RUN_ID": run.id, "RESUME": "must"}.items():
            sweep.setenv(f"WANDB_{name}", value)
        run.finish()
    (records,) = wandb_offline.own_records()
    assert [row["diag/step"] for row in history(records)] == list(range(10))
    assert run.diag.failures == []
    after = wandb.init(project="test", dir=tmp_path, mode="offline")
    assert after.id != run.id
    assert "-diag-" not in after.id
    after.finish()


@pytest.mark.nightly
def test_a_run_that_is_wrapped_twice_and_again_after_the_end_is_heard(rng, make_batch, wandb_offline):
    run = wandb_offline.start()
    first = wrap(run)
    assert wrap(run).diag is first.diag
    first.diag.observe(**make_batch(rng))
    run.log({"a": 1}, step=0)
    first.diag.close()
    again = wrap(run)
    again.diag.observe(**make_batch(rng))
    run.log({"a": 2}, step=1)
    run.finish()
    assert again.diag.step == 1
    rows = history(wandb_offline.records())
    assert [(row["_step"], row["a"], row["diag/step"]) for row in rows] == [(0, 1, 0), (1, 2, 1)]


@pytest.mark.by_day("refused2")
@pytest.mark.parametrize("refused", [("text", {}), ({1: 2}, {}), ({"a": 1}, {"step": 2})])
def test_a_row_that_is_refused_is_none_of_ours_either(refused, rng, make_batch, wandb_offline):
    run = wrap(wandb_offline.start())
    data, options = refused
    run.log({"a": 0}, step=5)
    run.diag.observe(**make_batch(rng))
    with contextlib.suppress(TypeError, ValueError):
        run.log(data, **options)
    run.log({"a": 6}, step=6)
    run.finish()
    assert [(row["_step"], row["a"]) for row in history(wandb_offline.records())] == [(5, 0), (6, 6)]


def test_what_a_kill_left_outlives_the_run_that_is_resumed(journals, rng, make_batch, wandb_offline):
    run = wandb_offline.start()
    journal = Journal.new(f"wandb-{run.id}-rows", {"tracker": "wandb", "address": {}})
    journal.append({"scalars": {"diag/x": 1.0}, "step": 0, "at": 0.0, "n": 0})
    journal.close(keep=True)
    wrapped = wrap(run)
    wrapped.diag.observe(**make_batch(rng))
    run.log({"a": 1}, step=1)
    run.finish()
    assert [*journals.glob("*.journal")] == [journal.path]


def test_without_a_disk_the_steps_without_a_row_are_counted(tmp_path, monkeypatch, rng, make_batch, wandb_offline):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path / "file" / "below"))
    run = wrap(wandb_offline.start())
    for step in range(5):
        run.diag.observe(**make_batch(rng))
        run.diag.log({"loss": 1.0}, step)
    run.log({"a": 1})
    run.finish()
    assert [row["diag/step"] for row in history(wandb_offline.records())] == [4]
    assert run.diag.health["dropped_steps"] == 4


KILLED = """
import os, sys
import numpy as np, wandb
import tracker_diag as td
run = td.wrap(wandb.init(project="test", dir=sys.argv[1], mode="offline"))
rng = np.random.default_rng(0)
for step in range(30):
    new = rng.normal(-1, 0.1, (8, 16))
    tokens = np.ones((8, 16), bool)
    run.diag.observe(logprobs=new, old_logprobs=new + 0.1 * rng.normal(size=new.shape), response_mask=tokens)
    run.log({"loss": 1.0}, step=step) if step % 10 == 0 else run.diag.log({"loss": 1.0}, step)
print(run.id, flush=True)
os._exit(9)
"""


@pytest.mark.nightly
def test_a_killed_run_is_left_as_it_is_and_what_waits_goes_into_another(tmp_path, read_wandb, journals):
    environment = dict(os.environ, WANDB_SILENT="true", OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert killed.returncode == 9, killed.stderr
    run_id = killed.stdout.split()[-1]
    (file,) = tmp_path.glob(f"wandb/offline-run-*-{run_id}/run-*.wandb")
    flushed = subprocess.run(
        [str(Path(sys.executable).with_name("tracker-diag")), "flush", str(journals)],
        env=environment, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert flushed.returncode == 0, flushed.stdout + flushed.stderr
    folders = list(tmp_path.glob("wandb/offline-run-*"))
    ids = {folder.name.split("-", 4)[-1] for folder in folders}
    assert len(ids) == len(folders) >= 2
    yours = [(row["_step"], row["loss"]) for row in own(history(read_wandb(file, ended=False)))]
    assert yours == [(0, 1.0), (10, 1.0), (20, 1.0)][: len(yours)]  # W&B itself may lose the last ones
    files = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = [row for item in files for row in history(read_wandb(item, ended=item != file))]
    assert {row["diag/step"] for row in rows if "diag/policy/text_only/count" in row} == set(range(30))


@pytest.mark.nightly
def test_a_finished_run_is_counted_and_training_continues(rng, make_batch, wandb_offline):
    run = wandb_offline.start()
    monitor = Monitor([WandbTracker(run)])
    run.finish()
    monitor.observe(**make_batch(rng))
    monitor.log({"reward": 1.0}, 0)
    monitor.close()
    assert 1 <= monitor.health["tracker_errors"] < 10  # each thing is tried once, and holds up no exit


@pytest.mark.nightly
def test_a_run_that_is_finished_past_us_has_all_steps(rng, make_batch, wandb_offline):
    """As in `with wandb.init() as run: run = wrap(run)`, where W&B ends its own run and not ours."""
    with wandb_offline.start() as plain:
        run = wrap(plain)
        for step in range(60):
            run.diag.observe(**make_batch(rng))
            run.log({"reward": 0.5}, step=step)
    rows = history(wandb_offline.records())
    assert [row["diag/step"] for row in rows if "diag/policy/text_only/p95" in row] == list(range(60))
    assert [row["_step"] for row in rows if "reward" in row] == list(range(60))
    assert run.diag.failures == []
