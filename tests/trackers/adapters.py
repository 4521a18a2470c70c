"""How tests log to each tracker and read it back, on the real thing."""

import json

import pytest

from tracker_diag.trackers.listing import list_runs
from tracker_diag.trackers.tensorboard.write import FIRST

ALERT = "Token probabilities shift after tool results (POL001 post_tool)"
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
        """What only this tracker has, of a run whose tail grew after tool results from step 80 on."""


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
        return {table["path"].removesuffix(".json") for table in listed}, "diag/decision.png" in paths

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
        assert tags["diag.first_break"].startswith("after tool results @")
        note = tags["mlflow.note.content"]
        assert note.startswith("What I tried.")
        assert "**Check it. Token probabilities shift after tool results since " in note
        assert ", 18× the usual level at step " in note
        assert "get-artifact?path=diag/decision.png" in note


def history(records):
    """Rows of a W&B run, of the records in its file."""
    return [record["history"]["item"] for record in records if record["type"] == "history"]


def own(rows):
    """The user's part of W&B's rows: without the diagnostics, and without the clock."""
    clock = ("_runtime", "_timestamp")
    mine = ({key: row[key] for key in row if not key.startswith("diag/") and key not in clock} for row in rows)
    return [row for row in mine if len(row) > 1]


def summary(records):
    """The last value of each key that was put into the summary of a W&B run."""
    updates = [record["summary"].get("update", {}) for record in records if record["type"] == "summary"]
    return {key: value for update in updates for key, value in update.items()}


class Wandb(Adapter):
    def open(self):
        self.runs = self.request.getfixturevalue("wandb_offline")

    def start(self, name):
        return self.runs.start(name)

    def series(self, name, key):
        rows = [row for records in (self.runs.records(name), *self.runs.own_records(name)) for row in history(records)]
        return {row["diag/step"]: row[key] for row in rows if key in row}

    def own(self, name):
        return own(history(self.runs.records(name)))

    def shown(self, name):
        values = summary(self.runs.records(name)).items()
        kinds = {key: value.get("_type") for key, value in values if isinstance(value, dict)}
        return {key for key, kind in kinds.items() if kind == "table-file"}, kinds.get("diag/decision") == "html-file"

    def check(self, run):
        records = self.runs.records("run")
        (alert,) = [record["alert"] for record in records if record["type"] == "alert"]
        assert (alert["level"], alert["title"]) == ("WARN", ALERT)
        assert "First: Find the tokens" in alert["text"]
        last = next(row for row in history(records) if row.get("diag/step") == 139)
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
            "diag/decision"
        ] == "trackio.image"

    def check(self, run):
        import trackio

        (slices,) = self.series("run", "diag/slices").values()
        assert {row["slice"] for row in slices["_value"]} >= {"all", "text_only", "post_tool"}
        (listed,) = list_runs(f"trackio:{self.runs.project}/run", project=False)
        assert listed.over == "finished"
        alerts = [
            notice for notice in trackio.Api().runs(self.runs.project)[0].alerts() if "(POL001" in notice["title"]
        ]
        (alert,) = (notice for notice in alerts if notice["title"].startswith("Watch"))
        assert alert["level"] == "warn"
        assert "First: Find the tokens" in alert["text"]


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
        return set(tags["tensors"]) - {"diag/decision/text"}, FIRST in tags["images"]

    def check(self, run):
        events = self.events(self.folder / "run" / "diag")
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in events.Images(FIRST))
        last = events.Histograms("diag/policy/post_tool/hist")[-1].histogram_value
        assert last.num == sum(last.bucket) == 8 * 32 * 12
        (first, *_), *_ = [event.tensor_proto.string_val for event in events.Tensors("diag/decision/text")]
        assert first.startswith(b"**Watch. Token probabilities shift after tool results since ")
        texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("diag/findings")]
        assert any("#### POL001 tool" in text and "Find the tokens" in text for text in texts)
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
