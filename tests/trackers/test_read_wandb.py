"""Offline runs as W&B writes them; online runs from a server that answers what the public API asks for."""

import json
import math
import os
import subprocess
import sys

import pytest

from tests.trackers.wandb_stub import Stub
from tracker_diag.errors import SourceError
from tracker_diag.runs.watched_run import has_ended
from tracker_diag.trackers.rows import Rows
from tracker_diag.trackers.wandb.read import definitions_in
from tracker_diag.trackers.wandb.read_file import read_wandb_file, wandb_file_in
from tracker_diag.trackers.wandb.rows import Axis


def placed(*given, axis=None):
    rows, axis = Rows(), axis or Axis()
    for row in given:
        axis.put_record(rows, row)
    axis.note_on(rows)
    return rows.finish("it")


def test_media_and_what_is_wandbs_own_are_left_out():
    medium = {"_type": "histogram", "bins": [0, 1], "values": [1]}
    own = {"_step": 3, "_runtime": 1.0, "_timestamp": 5.0}
    run = placed({**own, "a": 1, "h": medium, "t._type": "table", "t.nrows": 2})
    assert run.rows == {3: {"a": 1.0}}
    assert run.notes == ()


def test_the_axis_of_the_charts_is_the_step():
    axis = Axis()
    axis.define("train/*", "epoch")
    axis.define("*", "train/global_step")
    train = [{"_step": 0, "a": 1, "train/global_step": 10}, {"_step": 2, "train/global_step": 20, "a": 3}]
    run = placed(train[0], {"_step": 1, "eval": 2}, train[1], axis=axis)
    assert {step: {k: v for k, v in row.items() if "step" not in k} for step, row in run.rows.items()} == {
        10: {"a": 1.0, "eval": 2.0}, 20: {"a": 3.0},
    }  # fmt: skip
    assert run.notes == ("steps are those of train/global_step, not W&B's count of rows",)
    assert list(placed({"_step": 0, "global_step": 4, "a": 1}, {"_step": 1, "global_step": 8, "a": 1}).rows) == [4, 8]
    assert list(placed({"_step": 5, "a": 1}, {"_step": 6, "global_step": 9, "a": 1}).rows) == [5, 6]


def test_late_diagnostics_come_to_their_own_step():
    run = placed({"_step": 7, "a": 1, "diag/step": 6, "diag/policy/all/p95": 0.5}, {"a": 2})
    assert run.rows == {6: {"diag/policy/all/p95": 0.5, "diag/step": 6.0}, 7: {"a": 1.0}}
    assert run.notes == ("rows without a step, left out: 1, first after row 2",)


def test_the_axes_that_a_run_of_the_server_has_defined():
    metrics = [{"1": "train/global_step"}, {"2": "*", "5": 1}, {"1": "val", "4": "epoch"}, {"1": "odd", "5": 9}]
    result = [("*", "train/global_step"), ("val", "epoch")]
    assert definitions_in({"_wandb": {"value": {"m": metrics}}}) == definitions_in({"_wandb": {"m": metrics}}) == result
    assert definitions_in({}) == []


@pytest.fixture
def offline(wandb_offline, read_wandb, tmp_path):
    run = wandb_offline.start()
    run.config.update({"lr": 1e-4, "optimizer": {"name": "adam"}})
    kl = {2: math.nan, 3: math.inf, 4: -math.inf}
    for step in range(300):
        run.log({"reward": step / 2, "kl": kl.get(step, 0.1), "note": "x", "loss": {"a": 1}}, step=step)
    run.finish()
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb")
    read_wandb(file)  # waits until W&B has written all of it
    return file


@pytest.mark.nightly
def test_an_offline_run(offline, tmp_path):
    messages = []
    run = read_wandb_file(offline, "it", messages.append)
    assert list(run.rows) == list(range(300))
    assert repr(run.rows[3]) == "{'kl': inf, 'loss.a': 1.0, 'reward': 1.5}"
    assert math.isnan(run.rows[2]["kl"])
    assert run.rows[4]["kl"] == -math.inf
    assert run.config == {"lr": 1e-4, "optimizer.name": "adam"}
    assert run.seconds[0] == 0.0
    assert run.seconds[299] > 0
    assert has_ended(run)
    assert run.notes == ("values that are no numbers, left out: 300, first 'note' at step 0",)
    assert messages == sorted(messages)
    for folder in (offline.parent, offline.parent.parent, tmp_path / "run"):
        assert wandb_file_in(folder).samefile(offline)
    assert wandb_file_in(offline.parent / "files") is None


@pytest.mark.nightly
def test_an_offline_run_that_was_killed_and_one_that_is_damaged(offline, tmp_path):
    whole = offline.read_bytes()
    broken = tmp_path / "run-x.wandb"
    broken.write_bytes(whole[: len(whole) // 2])
    run = read_wandb_file(broken, "it")
    assert 50 < len(run.rows) < 250
    assert run.notes[0].startswith("the file breaks off: the run was killed or still runs")
    assert not has_ended(run)
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    broken.write_bytes(damaged)
    run = read_wandb_file(broken, "it")
    assert 50 < len(run.rows) < 300
    assert run.notes[0] == "parts of the file are damaged; W&B's reader passed over them"
    broken.write_bytes(whole[:7])
    with pytest.raises(SourceError, match="it: no metrics"):
        read_wandb_file(broken, "it")


@pytest.mark.slow
def test_several_runs_in_a_folder_are_named(wandb_offline, tmp_path):
    (tmp_path / "both").mkdir()
    for name in ("a", "b"):
        wandb_offline.start(name).finish()
        (folder,) = (tmp_path / name / "wandb").glob("offline-run-*")
        folder.rename(tmp_path / "both" / folder.name)
    with pytest.raises(SourceError, match=r"both: 2 runs \(offline-run-.*, offline-run-.*\), give one of them$"):
        wandb_file_in(tmp_path / "both")


ROWS = [
    {
        "_step": i,
        "_timestamp": 1000.0 + i,
        "train/reward": i / 2,
        "train/global_step": 10 * i,
        "kl": [0.1, "NaN"][i == 2],
    }
    for i in range(5)
]
SECOND = [{"_step": 0, "diag/step": 20, "diag/policy/all/p95": 0.2}]
METRICS = [{"1": "train/global_step"}, {"2": "*", "5": 1}]
RUN = {
    "id": "x", "name": "r", "displayName": "nice", "state": "finished", "projectId": "1", "historyLineCount": 5,
    "config": json.dumps({"lr": {"value": 1e-4}, "_wandb": {"value": {"m": METRICS}}}),
    "summaryMetrics": "{}", "systemMetrics": "{}", "tags": [], "readOnly": True, "createdAt": "2026-01-01T00:00:00Z",
    "heartbeatAt": "2026-01-01T00:00:00Z", "user": {"name": "u", "username": "u"},
}  # fmt: skip
KEYS = {"lastStep": 4, "sets": [], "keys": {key: {"typeCounts": [{"type": "number", "count": 5}]} for key in ROWS[0]}}


class Finished(Stub):
    """A server with the finished run `r`, one that the diagnostics keep next to it, and one that is underway."""

    def reply(self, name, given):
        if name in {"Viewer", "GetDefaultEntity"}:
            return {"viewer": {"id": "x", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}}}
        if name == "Runs":
            others = {"y": {"config": '{"diag_of": {"value": "x"}}'}, "z": {"state": "running"}}
            summary = json.dumps({"_step": 4, "_timestamp": 1004.5})
            nodes = [RUN | {"summaryMetrics": summary}, *(RUN | {"name": run} | more for run, more in others.items())]
            nodes = nodes[1:2] if "diag_of" in given["filters"] else nodes
            page = {"endCursor": None, "hasNextPage": False}
            runs = {"edges": [{"node": node, "cursor": node["name"]} for node in nodes], "pageInfo": page}
            return {"project": {"internalId": "1", "runCount": 3, "readOnly": True, "runs": runs}}
        asked = given.get("name", given.get("run", given.get("runName")))
        if asked not in {"r", "y"}:
            return {"project": {"run": None}}
        run = {
            "Run": RUN,
            "RunHistoryKeys": {"historyKeys": KEYS},
            "RunParquetHistory": {"parquetHistory": {"parquetUrls": [], "liveData": []}},
            "HistoryPage": {"history": [json.dumps(row) for row in (ROWS if asked == "r" else SECOND)]},
        }
        return {"project": {"run": run[name]}}


@pytest.fixture
def server():
    with Finished() as server:
        yield server.url


SHOW = {
    "read_wandb_api(NAME, 'it')": "(found.rows, found.config, found.seconds, found.notes)",
    "list_wandb(NAME, 'it', project=False)": (
        "[(run.source, run.name, run.over, run.updated, bool(run.mark)) for run in found]"
    ),
}
READ, LIST = SHOW
PROJECT = LIST.replace("False", "True")
SHOW[PROJECT] = SHOW[LIST]


def read_online(name, address, tmp_path, how=READ):
    """In a process of its own: W&B keeps one service with one login for each."""
    code = (
        f"from tracker_diag.errors import SourceError\nfrom tracker_diag.trackers.finished import Gone\n"
        f"from tracker_diag.trackers.wandb.read import list_wandb, read_wandb_api\nNAME = {name!r}\n"
        f"try:\n    found = {how}\n    print({SHOW[how]})\n"
        "except SourceError as error:\n    print('gone: ' * isinstance(error, Gone) + str(error))\n"
    )
    environment = os.environ | {
        "WANDB_BASE_URL": address, "WANDB_API_KEY": "a" * 40, "WANDB_SILENT": "true", "HOME": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path), "WANDB_ERROR_REPORTING": "false", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=True).stdout
    return out.strip()


@pytest.mark.nightly
def test_an_online_run(server, tmp_path):
    rows, config, seconds, notes = eval(read_online("e/p/r", server, tmp_path), {"nan": math.nan})  # noqa: S307
    assert list(rows) == [0, 10, 20, 30, 40]
    assert rows[10] == {"train/reward": 0.5, "train/global_step": 10.0, "kl": 0.1}
    assert math.isnan(rows[20]["kl"])
    assert rows[20]["diag/policy/all/p95"] == 0.2, "the run next to it is read too"
    assert config == {"lr": 1e-4}
    assert seconds == {0: 0.0, 10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0}
    assert notes == ("steps are those of train/global_step, not W&B's count of rows",)


@pytest.mark.nightly
def test_how_online_runs_stand(server, tmp_path):
    item = read_online("e/p/r", server, tmp_path, LIST)
    assert item == "[('wandb:e/p/r', 'nice', 'finished', 1767225600.0, True)]"
    assert read_online("e/p", server, tmp_path, PROJECT) == (
        "[('wandb:e/p/r', 'nice', 'finished', 1004.5, True), ('wandb:e/p/z', 'nice', '', 1767225600.0, False)]"
    )
    assert read_online("e/p/none", server, tmp_path, LIST).startswith("gone: it: Could not find run")
    assert read_online("e/p/r", server, tmp_path, PROJECT) == "it: expected wandb:<entity>/<project>"


@pytest.mark.nightly
def test_online_runs_that_cannot_be_read(server, tmp_path, free_port):
    assert read_online("e/p/none", server, tmp_path) == "gone: it: Could not find run <Run e/p/none (not found)>"
    assert read_online("p/r", server, tmp_path) == "it: expected wandb:<entity>/<project>/<run>"
    closed = f"http://127.0.0.1:{free_port}"
    assert read_online("e/p/r", closed, tmp_path) == f"it: no answer from {closed} within 10 s"
