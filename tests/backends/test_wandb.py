"""Against real offline runs, read back with W&B's own reader."""

import math

import pytest

from tracker_diag import Monitor, wrap
from tracker_diag.backends.wandb import WandbBackend

pytestmark = pytest.mark.slow


def history(records):
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def own(rows):
    """The user's part of the rows: without the diagnostics, and without the clock."""
    clock = ("_runtime", "_timestamp")
    return [
        mine
        for row in rows
        if (mine := {k: v for k, v in row.items() if not k.startswith("diag/") and k not in clock}) and len(mine) > 1
    ]


def test_scalars_histograms_table_and_alert_stand_in_the_file(rng, make_batch, wandb_offline):
    run = wrap(wandb_offline.start())
    for step in range(140):
        post = 0.02 * math.exp(max(0, step - 80) * 0.05)
        run.diag.observe(**make_batch(rng, post=post, pairs=("policy",)))
        run.log({"reward": 0.5 + step}, step=step)
    run.finish()
    records = wandb_offline.records()

    rows = [row for row in history(records) if "diag/policy/text_only/p95" in row]
    assert [row["diag/step"] for row in rows] == list(range(140))
    last = rows[139]
    assert last["diag/policy/post_tool/p95"] > 3 * last["diag/policy/text_only/p95"]
    assert last["diag/policy/post_tool/hist._type"] == "histogram"
    assert len(last["diag/policy/post_tool/hist.bins"]) == 46
    assert sum(last["diag/policy/post_tool/hist.values"]) == 8 * 32 * 12
    assert last["diag/rule/POL001"] == 2

    (alert,) = [record["alert"] for record in records if record["type"] == "alert"]
    assert alert["level"] == "WARN"
    assert alert["title"] == "POL001 post_tool: Weight tail grows after tool calls"
    assert "First: Read ten of the tool results" in alert["text"]

    tables = {k for row in history(records) for k, v in row.items() if k.endswith("._type") and v == "table-file"}
    assert tables == {"diag/events._type", "diag/findings._type", "diag/slices._type"}
    metrics = [record["metric"] for record in records if record["type"] == "metric"]
    assert any("diag" in metric.get("glob_name", "") for metric in metrics)


PATTERNS = {
    "explicit steps": [({"a": i, "b": -i}, {"step": i}) for i in range(6)],
    "automatic steps": [({"a": i}, {}) for i in range(6)],
    "sparse steps": [({"a": i}, {"step": i}) for i in (0, 3, 4, 10)],
    "two calls a step": [({name: i}, {"step": i}) for i in range(4) for name in ("a", "b")],
    "rows built up with commit=False": [
        call for i in range(4) for call in (({"a": i}, {"commit": False}), ({"b": i}, {}))
    ],
    "steps that go backwards": [({"a": i}, {"step": s}) for i, s in enumerate((0, 1, 2, 1, 3))],
    "nan and text": [({"a": math.nan, "b": "text", "c": math.inf}, {"step": i}) for i in range(3)],
    "automatic, then explicit": [({"a": 0}, {}), ({"a": 1}, {}), ({"a": 2}, {"step": 5}), ({"a": 3}, {})],
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_your_rows_are_the_same_with_and_without_us(pattern, rng, make_batch, wandb_offline):
    calls = PATTERNS[pattern]
    plain = wandb_offline.start("plain")
    for data, options in calls:
        plain.log(data, **options)
    plain.finish()

    wrapped = wrap(wandb_offline.start("wrapped"))
    for data, options in calls:
        wrapped.diag.observe(**make_batch(rng))
        wrapped.log(data, **options)
    wrapped.finish()

    theirs, ours = own(history(wandb_offline.records("plain"))), own(history(wandb_offline.records("wrapped")))
    assert repr(ours) == repr(theirs)  # repr, so that NaN equals itself
    steps = [row["diag/step"] for row in history(wandb_offline.records("wrapped")) if "diag/policy/all/p95" in row]
    assert steps == sorted(steps)  # what came of the last step after its row was closed has one of its own
    assert len(set(steps)) == wrapped.diag.summary().steps
    assert len(steps) - len(set(steps)) <= 1


def test_the_wrapped_run_still_is_the_run(wandb_offline):
    run = wandb_offline.start()
    with wrap(run) as wrapped:
        assert wrapped.id == run.id
        wrapped.config.update({"lr": 1e-3})
        wrapped.summary["best"] = 3
        wrapped.notes = "kept"
        assert run.notes == "kept"
    configs = [record for record in wandb_offline.records() if record["type"] == "config"]
    assert any("lr" in str(record) for record in configs)


def test_a_loop_of_ones_own_with_the_backend_alone(rng, make_batch, wandb_offline):
    run = wandb_offline.start()
    with Monitor([WandbBackend(run)]) as monitor:
        for step in range(3):
            monitor.observe(**make_batch(rng))
            monitor.log({"reward": 1.0}, step)
    run.finish()
    rows = history(wandb_offline.records())
    assert [row["diag/step"] for row in rows if "diag/step" in row] == [0, 1, 2]


def test_a_finished_run_is_counted_and_training_goes_on(rng, make_batch, wandb_offline):
    run = wandb_offline.start()
    monitor = Monitor([WandbBackend(run)])
    run.finish()
    monitor.observe(**make_batch(rng))
    monitor.log({"reward": 1.0}, 0)
    monitor.close()
    assert monitor.health["backend_errors"] >= 1


def test_a_new_baseline_stands_in_a_table_of_events(rng, make_batch, wandb_offline):
    run = wrap(wandb_offline.start())
    for step in range(4):
        if step in (1, 3):
            run.diag.rebaseline(f"tools changed at {step}")
        run.diag.observe(**make_batch(rng))
        run.log({"reward": 0.5}, step=step)
    run.finish()
    written = [row["diag/events.nrows"] for row in history(wandb_offline.records()) if "diag/events.nrows" in row]
    assert written[-1] == 3  # with what was seen at the first step


@pytest.mark.parametrize("closed", [True, False])
def test_a_run_that_is_finished_past_us_has_all_steps(closed, rng, make_batch, wandb_offline):
    """As in `with wandb.init() as run: run = wrap(run)`, where W&B ends its own run and not ours."""
    with wandb_offline.start() as plain:
        run = wrap(plain)
        for step in range(60):
            run.diag.observe(**make_batch(rng))
            run.log({"reward": 0.5}, step=step)
        if closed:
            run.diag.close()
    rows = history(wandb_offline.records())
    assert [row["diag/step"] for row in rows if "diag/policy/text_only/p95" in row] == list(range(60))
    assert [row["_step"] for row in rows if "reward" in row] == list(range(60))
    assert run.diag.failures == []


def test_without_a_hook_the_end_of_the_diagnostics_is_that_of_the_run(rng, make_batch, wandb_offline, monkeypatch):
    import wandb.sdk.wandb_run

    monkeypatch.delattr(wandb.sdk.wandb_run, "TeardownStage")
    with wandb_offline.start() as plain:
        run = wrap(plain)
        for step in range(40):
            run.diag.observe(**make_batch(rng))
            run.log({"reward": 0.5}, step=step)
        run.diag.close()
        monkeypatch.undo()
    rows = history(wandb_offline.records())
    assert [row["diag/step"] for row in rows if "diag/policy/text_only/p95" in row] == list(range(40))
