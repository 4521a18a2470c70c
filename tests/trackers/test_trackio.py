"""Against real local runs, read back from Trackio's own store and through its API."""

import math
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tracker_diag import DiagError, Monitor, wrap
from tracker_diag.cli.app import app
from tracker_diag.trackers.trackio.write import TrackioTracker

pytestmark = pytest.mark.slow


def own(rows):
    """The user's part of the rows."""
    return [row for row in rows if not any(key.startswith("diag/") for key in row[1])]


def test_the_time_line_of_an_alert_comes_with_the_next_step(trackio_runs):
    import trackio

    trackio_runs.start()
    run = wrap(trackio)
    run.log({"loss": math.nan}, step=0)
    until = time.monotonic() + 60
    # What is drawn in a thread comes with the next step, so nothing outside says that it is there.
    while run.diag.trackers[0]._drawn is None and time.monotonic() < until:  # noqa: SLF001  # as said above
        time.sleep(0.05)
    run.log({"loss": 0.1}, step=1)
    run.finish()
    assert run.diag.health["tracker_errors"] == 0
    assert [step for step, row in trackio_runs.rows() if "diag/decision" in row] == [0, 1]  # and at the end


def test_a_resumed_run_continues_where_it_was(rng, make_batch, trackio_runs):
    import trackio

    for part in range(2):
        run = wrap(trackio_runs.start(resume="must" if part else "never"))
        for i in range(3):
            run.diag.observe(**make_batch(rng))
            run.log({"a": 3 * part + i}, step=3 * part + i)
        run.finish()
        trackio.context_vars.current_run.set(None)
    assert own(trackio_runs.rows()) == [(i, {"a": i}) for i in range(6)]
    assert [step for step, row in trackio_runs.rows() if "diag/policy/all/p95" in row] == list(range(6))


def test_the_run_is_yours_to_end(rng, make_batch, trackio_runs):
    import trackio

    run = trackio_runs.start(config={"lr": 1e-3, "ppo": {"clip": 0.2}})
    tracker = TrackioTracker.find(trackio)
    assert tracker.config == {"lr": 1e-3, "ppo": {"clip": 0.2}}
    where = {"run": run.id, "name": "run", "project": trackio_runs.project}
    assert tracker.address == where | {"source": f"trackio:{trackio_runs.project}/run"}
    with Monitor([tracker]) as monitor:
        for step in range(3):
            monitor.observe(**make_batch(rng))
            monitor.log({"reward": 1.0}, step)
    assert trackio.context_vars.current_run.get() is run
    trackio.log({"still": 1})
    trackio.finish()
    rows = trackio_runs.rows()
    assert [step for step, row in rows if "diag/policy/all/p95" in row] == [0, 1, 2]
    assert own(rows) == [(0, {"still": 1})]
    (config,) = trackio_runs.select("SELECT config FROM configs WHERE run_name = 'run'")
    assert '"clip":0.2' in str(config)


def test_a_trackio_that_counts_otherwise_is_reported():
    with pytest.raises(DiagError, match=r"trackio 0\.\d+.*: does not count steps as 0.43 does"):
        TrackioTracker(SimpleNamespace(log=print))


KILLED = """
import os, sys
import numpy as np, trackio
import tracker_diag as td
run = td.wrap(trackio.init(project=sys.argv[1], name="killed", auto_log_cpu=False, auto_log_gpu=False))
assert hasattr(sys.modules["matplotlib.figure"], "Figure")  # else rows are lost while the first picture is drawn
rng = np.random.default_rng(0)
for step in range(30):
    new = rng.normal(-1, 0.1, (8, 16))
    run.diag.observe(logprobs=new, old_logprobs=new + 0.1, response_mask=np.ones((8, 16), bool))
    run.log({"loss": 1.0}, step=step)
os._exit(9)
"""


@pytest.mark.nightly
def test_what_trackio_had_not_written_of_a_killed_run_is_brought_by_flush(trackio_runs, journals):
    died = subprocess.run([sys.executable, "-c", KILLED, trackio_runs.project], capture_output=True, check=False)
    assert died.returncode == 9, died.stderr
    for _ in range(2):  # and no step twice
        done = CliRunner().invoke(app, ["flush", str(journals)])
        assert done.exit_code == 0, done.output
    assert list(journals.iterdir()) == []
    rows = trackio_runs.rows("killed")
    assert sorted(step for step, row in rows if "diag/policy/text_only/count" in row) == list(range(30))
