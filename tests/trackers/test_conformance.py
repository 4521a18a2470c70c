"""Every tracker against the same contract, each on the real thing; a third party runs `check_tracker` on its own."""

import itertools
import json
import math
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trackers.adapters import ADAPTERS, TRACKERS
from tracker_diag import DiagError, Monitor, wrap
from tracker_diag.records import Drawing, Histogram, Scalar, Table
from tracker_diag.testing import CapturingTracker, check_tracker
from tracker_diag.trackers.discovery import tracker_class
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.tracker import Tracker

pytestmark = pytest.mark.slow


@pytest.fixture(params=TRACKERS)
def adapter(request):
    return ADAPTERS[request.param](request)


def test_all_of_a_run_arrives(adapter, rng, make_batch):
    run = wrap(adapter.start("run"))
    for step in range(140):
        post = 0.02 * math.exp(max(0, step - 80) * 0.05)
        run.diag.observe(**make_batch(rng, post=post, pairs=("policy",)))
        adapter.log(run, {"reward": 0.5 + step}, step)
    adapter.end(run)
    assert run.diag.health["tracker_errors"] == 0
    assert [*adapter.series("run", "diag/policy/all/p95")] == [*range(140)]
    tails = {name: adapter.series("run", f"diag/policy/{name}/p95") for name in ("text_only", "post_tool")}
    assert tails["post_tool"][139] > 3 * tails["text_only"][139]
    assert adapter.series("run", "diag/rule/POL001")[139] == 2
    assert adapter.shown("run") == (adapter.tables, True)
    adapter.check(run)


CALLS = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from(["loss", "reward", "train/kl", "eval_score"]),
            st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf]) | st.integers(-5, 5),
            min_size=1,
        ),
        st.none() | st.integers(0, 12),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
NUMBERS = itertools.count()


@pytest.mark.by_day("mlflow", "wandb", "trackio", "tensorboard")
@settings(max_examples=settings().max_examples // 12, suppress_health_check=list(HealthCheck))
@given(calls=CALLS)
@pytest.mark.parametrize("adapter", ADAPTERS, indirect=True)
def test_your_rows_are_the_same_with_and_without_us(adapter, calls, make_batch):
    tensors = make_batch(np.random.default_rng(0), size=16)

    def logged(*, wrapped):
        name = f"run-{next(NUMBERS)}"
        run = wrap(adapter.start(name)) if wrapped else adapter.start(name)
        for data, step, observed in calls:
            if wrapped and observed:
                run.diag.observe(**tensors)
            adapter.log(run, data, step)
        adapter.end(run)
        return repr(adapter.own(name))  # so that NaN equals itself

    assert logged(wrapped=True) == logged(wrapped=False)


@pytest.mark.nightly
def test_the_contract_is_kept(adapter):
    run = adapter.start("run")
    tracker = tracker_class(type(adapter).__name__.lower()).find(run)
    ended = []

    def scalars(name):
        ended.append(ended or adapter.end(run))
        return adapter.series("run", name)

    assert check_tracker(tracker, scalars) == []
    assert adapter.shown("run")[1]


def test_the_contract_is_kept_by_files(tmp_path):
    def scalars(name):
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        return {row["step"]: row[name] for row in rows if name in row}

    assert check_tracker(JsonlTracker(tmp_path), scalars) == []


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("mlflow", r"mlflow: no active run, expected one; call mlflow\.start_run\(\) before wrap\(mlflow\)"),
        ("wandb", r"wandb: no run is underway, expected one; call wandb\.init\(\) before wrap\(wandb\)"),
        ("trackio", r"trackio: no run is underway, expected one; call trackio\.init\(\) before wrap\(trackio\)"),
    ],
)
def test_a_module_without_a_run_is_refused(module, message):
    with pytest.raises(DiagError, match=message):
        wrap(pytest.importorskip(module))


class Forgetful(Tracker):
    """A tracker with a fault of each kind."""

    def write(self, step, entries, at):
        if step == 4:
            raise TypeError("an int is no step")

    def flush(self, *, last=False):
        return "perhaps"


def test_faults_are_reported_one_by_one():
    wrong = check_tracker(Forgetful(), lambda name: {})
    assert wrong[0] == "name: 'tracker', expected one of its own"
    assert "flush: expected True or False" in wrong
    assert "step 4: write: TypeError: an int is no step" in wrong
    assert any(messages.startswith("diag/policy/all/p95: {} arrived") for messages in wrong)


class Numbers(Tracker):
    """It takes every record for one with a name and counts or a value."""

    name = "numbers"

    def write(self, step, entries, at):
        for entry in entries:
            if not isinstance(entry, Histogram):
                float(entry.value)


def test_tables_and_the_picture_of_an_alert_come_too():
    kinds = {}
    tracker = CapturingTracker()
    assert check_tracker(tracker) == []
    for step, records in tracker.records.items():
        for record in records:
            kinds.setdefault(type(record), set()).add(step)
    assert kinds.keys() == {Scalar, Histogram, Table, Drawing}
    assert (kinds[Drawing], kinds[Table]) == ({10, 19}, {10})
    assert check_tracker(Numbers()) == [
        "step 10: write: AttributeError: 'Table' object has no attribute 'value'",
        "step 19: write: Drawing: AttributeError: 'Drawing' object has no attribute 'value'",
    ]


def test_ten_thousand_names_of_tools_fold_and_every_one_is_taken(rng, make_batch, mlflow_store):
    import mlflow

    from tracker_diag.trackers.mlflow.write import MlflowTracker

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    monitor = Monitor([MlflowTracker(client, run_id)])
    batch = make_batch(rng, size=400, width=25)
    odd = [f"tool={i}<%>\N{SNOWMAN} '\"\n" for i in range(10_000)]
    batch["tool"] = np.array(odd, dtype=object).reshape(400, 25)
    for step in range(3):
        monitor.observe(**batch)
        monitor.log({}, step)
    monitor.close()
    assert monitor.failures == []
    names = client.get_run(run_id).data.metrics
    assert "diag/policy/post_tool/p95" in names
    assert len(names) < 100


def test_a_name_that_the_tracker_refuses_costs_itself_alone(mlflow_store):
    import mlflow

    from tracker_diag.trackers.mlflow.write import MlflowTracker

    client = mlflow.MlflowClient()
    run_id = client.create_run("0").info.run_id
    monitor = Monitor([MlflowTracker(client, run_id)])
    (outbox,) = monitor.trackers
    for step in range(3):
        outbox.write(step, [Scalar("diag/a=b", 1.0), Scalar("diag/fine", float(step))], time.time())
    monitor.close()
    assert [point.value for point in client.get_metric_history(run_id, "diag/fine")] == [0.0, 1.0, 2.0]
    assert monitor.health["tracker_errors"] >= 1
    assert "a=b" in monitor.failures[0]
