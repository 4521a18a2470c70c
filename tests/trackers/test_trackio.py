"""Against real local runs, read back from Trackio's own store and through its API."""

import math
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tracker_diag import DiagError, Monitor, wrap
from tracker_diag.cli.app import app
from tracker_diag.trackers.listing import list_runs
from tracker_diag.trackers.trackio.write import TrackioTracker

pytestmark = pytest.mark.slow


def own(rows):
    """The user's part of the rows."""
    return [row for row in rows if not any(key.startswith("diag/") for key in row[1])]


def test_scalars_histograms_tables_and_alerts_stand_in_the_store(rng, make_batch, trackio_runs, capfd):
    import trackio

    trackio_runs.start()
    run = wrap(trackio)
    for step in range(140):
        if step == 120:
            run.diag.rebaseline("a new tool")
        post = 0.02 * math.exp(max(0, min(step, 119) - 80) * 0.05)
        run.diag.observe(**make_batch(rng, post=post, pairs=("policy",)))
        run.log({"reward": 0.5 + step}, step=step)
    run.finish()
    rows = trackio_runs.rows()

    ours = {step: row for step, row in rows if "diag/policy/all/p95" in row}
    assert sorted(ours) == list(range(140))
    last = ours[119]
    assert last["diag/policy/post_tool/p95"] > 3 * last["diag/policy/text_only/p95"]
    histogram = last["diag/policy/post_tool/hist"]
    assert histogram["_type"] == "trackio.histogram"
    assert len(histogram["bins"]) == 46
    assert sum(histogram["values"]) == 8 * 32 * 12
    assert last["diag/rule/POL001"] == 2

    tables = [(step, key, row[key]["_value"]) for step, row in rows for key in row if row[key].__class__ is dict
              and row[key]["_type"] == "trackio.table"]  # fmt: skip
    found = [(step, table) for step, key, table in tables if key == "diag/findings"]
    (finding,) = [row for row in found[0][1] if row["rule"] == "POL001"]
    assert (finding["slice"], finding["state"], finding["severity"]) == ("post_tool", "firing", "warn")
    assert finding["resolved"] is None
    assert finding["fired"] == found[0][0]
    assert next(row["state"] for row in found[-1][1] if row["rule"] == "POL001") == "resolved"
    events = [row for _, key, row in tables if key == "diag/events"][-1]
    assert "what is seen at step 0" in events[0]["event"]
    assert events[1:] == [{"step": 120, "event": "new baseline: a new tool"}]
    *_, picture = [row["diag/timeline"] for _, row in rows if "diag/timeline" in row]
    assert picture["_type"] == "trackio.image"
    (slices,) = [row for _, key, row in tables if key == "diag/slices"]
    assert {row["slice"] for row in slices} >= {"all", "text_only", "post_tool"}
    (listed,) = list_runs(f"trackio:{trackio_runs.project}/run", project=False)
    assert listed.over == "finished"

    alerts = {alert["title"]: alert for alert in trackio.Api().runs(trackio_runs.project)[0].alerts()}
    alert = alerts["POL001 post_tool: Token probabilities diverge after tool calls"]
    assert (alert["level"], alert["step"]) == ("warn", finding["fired"])
    assert "First: Read ten of the tool results" in alert["text"]
    assert alerts["POL001 post_tool: resolved"]["level"] == "info"
    assert "[TRACKIO WARN]" in capfd.readouterr().out


def test_the_time_line_of_an_alert_comes_with_the_next_step(trackio_runs):
    import trackio

    trackio_runs.start()
    run = wrap(trackio)
    run.log({"loss": math.nan}, step=0)
    until = time.monotonic() + 60
    while run.diag.trackers[0]._drawn is None and time.monotonic() < until:
        time.sleep(0.05)
    run.log({"loss": 0.1}, step=1)
    run.finish()
    assert run.diag.health["tracker_errors"] == 0
    assert [step for step, row in trackio_runs.rows() if "diag/timeline" in row] == [0, 1]  # and at the end


PATTERNS = {
    "explicit steps": [({"a": i, "b": -i}, {"step": i}) for i in range(6)],
    "no steps": [({"a": i}, {}) for i in range(6)],
    "sparse steps": [({"a": i}, {"step": i}) for i in (0, 3, 4, 10)],
    "two calls a step": [({name: i}, {"step": i}) for i in range(4) for name in ("a", "b")],
    "steps that go backwards": [({"a": i}, {"step": s}) for i, s in enumerate((0, 1, 2, 1, 3))],
    "nan and text": [({"a": math.nan, "b": "text", "c": math.inf}, {"step": i}) for i in range(3)],
    "none, then explicit, then none": [({"a": 0}, {}), ({"a": 1}, {}), ({"a": 2}, {"step": 9}), ({"a": 3}, {})],
    "explicit, then none": [({"a": 0}, {"step": 4}), ({"a": 1}, {}), ({"a": 2}, {})],
}


def with_and_without(runs, calls, make_batch, rng, *, module=False):
    """The user's rows of a run without us and of one that is wrapped, and all rows of the latter."""
    import trackio

    plain = runs.start("plain")
    plain.log({"before": 1})
    for data, options in calls:
        plain.log(data, **options)
    trackio.finish()
    run = runs.start("wrapped")
    run.log({"before": 1})
    wrapped = wrap(trackio if module else run)
    for data, options in calls:
        wrapped.diag.observe(**make_batch(rng))
        wrapped.log(data, **options)
    wrapped.finish()
    return runs.rows("plain"), runs.rows("wrapped")


@pytest.mark.by_day("run-explicit steps", "run-steps that go backwards", "module-no steps")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("module", [False, True], ids=["run", "module"])
def test_your_rows_are_the_same_with_and_without_us(pattern, module, rng, make_batch, trackio_runs):
    plain, wrapped = with_and_without(trackio_runs, PATTERNS[pattern], make_batch, rng, module=module)
    assert len(plain) == len(PATTERNS[pattern]) + 1
    assert repr(own(wrapped)) == repr(plain)  # repr, so that NaN equals itself
    assert any("diag/policy/all/p95" in row for _, row in wrapped)


@pytest.mark.nightly
@settings(max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(st.none(), st.integers(0, 12)), min_size=1, max_size=8))
def test_whatever_steps_you_give_or_leave_out(steps, rng, make_batch, trackio_runs):
    calls = [({"a": i}, {} if step is None else {"step": step}) for i, step in enumerate(steps)]
    before = [len(trackio_runs.rows(name)) if trackio_runs.known() else 0 for name in ("plain", "wrapped")]
    plain, wrapped = with_and_without(trackio_runs, calls, make_batch, rng)
    assert own(wrapped[before[1] :]) == plain[before[0] :]


def test_a_resumed_run_goes_on_where_it_was(rng, make_batch, trackio_runs):
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


def test_no_run_underway_is_told_with_what_to_do(trackio_runs):
    import trackio

    message = r"trackio: no run is underway, expected one; call trackio.init\(\) before wrap\(trackio\)"
    with pytest.raises(DiagError, match=message):
        wrap(trackio)


def test_a_trackio_that_counts_otherwise_is_told():
    with pytest.raises(DiagError, match=r"trackio 0\.\d+.*: does not count steps as 0.43 does"):
        TrackioTracker(SimpleNamespace(log=print))


KILLED = """
import os, sys
import numpy as np, trackio
import tracker_diag as td
run = td.wrap(trackio.init(project=sys.argv[1], name="killed", auto_log_cpu=False, auto_log_gpu=False))
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
