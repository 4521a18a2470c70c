"""Every tracker against the same contract, each on the real thing; a third party runs `check_tracker` on its own."""

import itertools
import json
import math
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracker_diag import DiagError, Monitor, wrap
from tracker_diag.records import Drawing, Histogram, Scalar, Table
from tracker_diag.testing import CapturingTracker, check_tracker
from tracker_diag.trackers.discovery import tracker_class
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.listing import list_runs
from tracker_diag.trackers.tracker import Tracker

pytestmark = pytest.mark.slow

ALERT = "POL001 post_tool: Token probabilities diverge after tool calls"
TABLES = {"diag/events", "diag/findings", "diag/slices", "diag/worst_sequences"}


class Adapter:
    """How a test logs to a tracker and reads it back; runs are called by their names."""

    tables = TABLES

    def __init__(self, request):
        self.request, self.folder = request, request.getfixturevalue("tmp_path")
        self.open()

    def open(self):
        pass

    def log(self, run, data, step=None):
        run.log(data, step=step)

    def end(self, run):
        run.finish()

    def check(self, run):
        """What only this tracker has, of a run whose tail grew after tool calls from step 80 on."""


class Mlflow(Adapter):
    tables = TABLES - {"diag/findings"}

    def open(self):
        import mlflow

        self.request.getfixturevalue("mlflow_store")
        self.mlflow, self.client, self.ids = mlflow, mlflow.MlflowClient(), {}

    def start(self, name):
        run = self.mlflow.start_run(description="What I tried.")
        self.ids[name] = run.info.run_id
        return run

    def log(self, run, data, step=None):
        self.mlflow.log_metrics(data, step=step)

    def end(self, run):
        self.mlflow.end_run()

    def series(self, name, key):
        points = self.client.get_metric_history(self.ids[name], key)
        assert len({point.step for point in points}) == len(points)
        return {point.step: point.value for point in points}

    def own(self, name):
        keys = sorted(self.client.get_run(self.ids[name]).data.metrics)
        history = self.client.get_metric_history
        return [
            (key, point.step, point.value)
            for key in keys
            if not key.startswith("diag/")
            for point in history(self.ids[name], key)
        ]

    def shown(self, name):
        paths = {artifact.path for artifact in self.client.list_artifacts(self.ids[name], "diag")}
        listed = json.loads(self.client.get_run(self.ids[name]).data.tags.get("mlflow.loggedArtifacts", "[]"))
        assert {table["path"] for table in listed} <= paths
        return {table["path"].removesuffix(".json") for table in listed}, "diag/timeline.png" in paths

    def check(self, run):
        run_id = run.info.run_id
        assert {artifact.path for artifact in self.client.list_artifacts(run_id)} == {"diag"}
        files = {artifact.path for artifact in self.client.list_artifacts(run_id, "diag")}
        assert files >= {"diag/context.json", "diag/findings.json", "diag/policy", "diag/report.html"}
        assert [artifact.path for artifact in self.client.list_artifacts(run_id, "diag/policy")] == [
            "diag/policy/tail.png"
        ]
        findings = json.loads(self.mlflow.artifacts.load_text(f"runs:/{run_id}/diag/findings.json"))
        assert findings["first_break"]["rule"] == "POL001"
        table = self.mlflow.load_table("diag/slices.json", run_ids=[run_id])
        assert {"text_only", "post_tool", "all", "turn:1"} <= set(table["slice"])
        tags = self.client.get_run(run_id).data.tags
        assert (tags["diag.alert.state"], tags["diag.alert.rules"]) == ("warn", "POL001")
        assert tags["diag.first_break"].startswith("POL001 on post_tool at step ")
        note = tags["mlflow.note.content"]
        assert note.startswith("What I tried.")
        assert "**Watch. Token probabilities diverge after tool calls, 18× the usual level, since " in note
        assert "get-artifact?path=diag/timeline.png" in note


class Wandb(Adapter):
    def open(self):
        self.runs = self.request.getfixturevalue("wandb_offline")

    def start(self, name):
        return self.runs.start(name)

    def rows(self, name, records=None):
        rows = records or self.runs.records(name)
        return [record["history"]["item"] for record in rows if record["type"] == "history"]

    def series(self, name, key):
        rows = [*self.rows(name), *(row for records in self.runs.beside(name) for row in self.rows(name, records))]
        return {row["diag/step"]: row[key] for row in rows if key in row}

    def own(self, name):
        clock = ("_runtime", "_timestamp")
        own = [
            {k: v for k, v in row.items() if not k.startswith("diag/") and k not in clock} for row in self.rows(name)
        ]
        return [row for row in own if len(row) > 1]

    def shown(self, name):
        summary = {}
        for record in self.runs.records(name):
            if record["type"] == "summary":
                summary |= record["summary"].get("update", {})
        kinds = {key: value.get("_type") for key, value in summary.items() if isinstance(value, dict)}
        return {key for key, kind in kinds.items() if kind == "table-file"}, kinds.get("diag/timeline") == "image-file"

    def check(self, run):
        records = self.runs.records("run")
        (alert,) = [record["alert"] for record in records if record["type"] == "alert"]
        assert (alert["level"], alert["title"]) == ("WARN", ALERT)
        assert "First: Read ten of the tool results" in alert["text"]
        last = next(row for row in self.rows("run") if row.get("diag/step") == 139)
        assert last["diag/policy/post_tool/hist._type"] == "histogram"
        assert sum(last["diag/policy/post_tool/hist.values"]) == 8 * 32 * 12
        metrics = [record["metric"] for record in records if record["type"] == "metric"]
        assert any("diag" in metric.get("glob_name", "") for metric in metrics)


class Trackio(Adapter):
    def open(self):
        self.runs = self.request.getfixturevalue("trackio_runs")

    def start(self, name):
        return self.runs.start(name)

    def series(self, name, key):
        return {step: row[key] for step, row in self.runs.rows(name) if key in row}

    def own(self, name):
        return [row for row in self.runs.rows(name) if not any(key.startswith("diag/") for key in row[1])]

    def shown(self, name):
        cells = [(key, cell) for _, row in self.runs.rows(name) for key, cell in row.items() if isinstance(cell, dict)]
        kinds = {key: cell["_type"] for key, cell in cells}
        return {key for key, kind in kinds.items() if kind == "trackio.table"}, kinds[
            "diag/timeline"
        ] == "trackio.image"

    def check(self, run):
        import trackio

        (slices,) = self.series("run", "diag/slices").values()
        assert {row["slice"] for row in slices["_value"]} >= {"all", "text_only", "post_tool"}
        (listed,) = list_runs(f"trackio:{self.runs.project}/run", project=False)
        assert listed.over == "finished"
        (alert,) = [found for found in trackio.Api().runs(self.runs.project)[0].alerts() if found["title"] == ALERT]
        assert alert["level"] == "warn"
        assert "First: Read ten of the tool results" in alert["text"]


class TensorBoard(Adapter):
    library = "torch.utils.tensorboard"

    def start(self, name):
        return pytest.importorskip(self.library).SummaryWriter(str(self.folder / name))

    def log(self, run, data, step=None):
        for key, value in data.items():
            run.add_scalar(key, value, step, 100.0)

    def end(self, run):
        run.close()

    def events(self, folder):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        sizes = {"scalars": 0, "histograms": 0, "tensors": 0, "images": 0}
        return EventAccumulator(str(folder), size_guidance=sizes, purge_orphaned_data=False).Reload()

    def series(self, name, key):
        return {event.step: event.value for event in self.events(self.folder / name / "diag").Scalars(key)}

    def own(self, name):
        events = self.events(self.folder / name)
        return [(tag, event) for tag in sorted(events.Tags()["scalars"]) for event in events.Scalars(tag)]

    def shown(self, name):
        tags = self.events(self.folder / name / "diag").Tags()
        return set(tags["tensors"]), "diag/timeline" in tags["images"]

    def check(self, run):
        events = self.events(self.folder / "run" / "diag")
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in events.Images("diag/timeline"))
        last = events.Histograms("diag/policy/post_tool/hist")[-1].histogram_value
        assert last.num == sum(last.bucket) == 8 * 32 * 12
        texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("diag/findings")]
        assert any("#### POL001 tool" in text and "Read ten of the tool results" in text for text in texts)
        for name in ("text_only", "post_tool"):  # both in one chart
            chart = self.events(self.folder / "run" / "diag" / name).Scalars("diag/policy/p95")
            assert {event.step: event.value for event in chart} == self.series("run", f"diag/policy/{name}/p95")


class TensorBoardX(TensorBoard):
    library = "tensorboardX"


ADAPTERS = {
    "mlflow": Mlflow,
    "wandb": Wandb,
    "trackio": Trackio,
    "tensorboard": TensorBoard,
    "tensorboardX": TensorBoardX,
}
TRACKERS = [name for name in ADAPTERS if name != "tensorboardX"]


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


def test_faults_are_told_one_by_one():
    wrong = check_tracker(Forgetful(), lambda name: {})
    assert wrong[0] == "name: 'tracker', expected one of its own"
    assert "flush: expected True or False" in wrong
    assert "step 4: write: TypeError: an int is no step" in wrong
    assert any(told.startswith("diag/policy/all/p95: {} arrived") for told in wrong)


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
