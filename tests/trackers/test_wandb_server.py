"""Against the real client, online, and a stub of W&B's server: what arrives, and what a server that is ill does."""

import json
import math
import os
import subprocess
import sys

import pytest

from tests.trackers.adapters import own
from tests.trackers.wandb_stub import HARMLESS, KEY, Stub
from tracker_diag import wrap

pytestmark = pytest.mark.slow

P95 = "diag/policy/text_only/p95"
"""In every row of ours; W&B itself writes `diag/step` into those that have a table alone."""


@pytest.fixture
def stub(monkeypatch):
    import wandb

    for name, value in {"SILENT": "true", "ERROR_REPORTING": "false", "API_KEY": KEY}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    with Stub() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        yield server
    wandb.teardown()


@pytest.fixture
def start(stub, tmp_path):
    """Starts real runs that talk to the stub."""
    import wandb

    def start(name="run", mode="online"):
        often = {f"x_{what}_retry_wait_max_seconds": 1 for what in ("graphql", "file_stream", "file_transfer")}
        settings = wandb.Settings(
            mode=mode, silent=True, x_disable_stats=True, console="off", base_url=stub.url, **often
        )  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        return wandb.init(project="test", id=name, dir=folder, settings=settings, reinit="create_new")

    return start


def growing(rng, make_batch, steps):
    for step in range(steps):
        post = 0.02 * math.exp(max(0, step - 60) * 0.1)
        yield step, make_batch(rng, post=post, pairs=("policy",))


def test_rows_histograms_tables_and_alerts_arrive(rng, make_batch, stub, start):
    run = wrap(start())
    for step, batch in growing(rng, make_batch, 90):
        run.diag.observe(**batch)
        run.log({"reward": 0.5 + step}, step=step)
    run.finish()
    assert run.diag.failures == []

    rows = stub.history("run")
    assert [(row["_step"], row["reward"]) for row in own(rows)] == [(step, 0.5 + step) for step in range(90)]
    ours = {row["diag/step"]: row for row in rows if P95 in row}
    assert sorted(ours) == list(range(90))
    last = ours[89]
    assert last["diag/policy/post_tool/p95"] > 3 * last["diag/policy/text_only/p95"]
    assert last["diag/policy/post_tool/hist"]["_type"] == "histogram"
    assert sum(last["diag/policy/post_tool/hist"]["values"]) == 8 * 32 * 12
    assert last["diag/rule/POL001"] == 2

    summary = stub.summary("run")
    tables = {summary[key]["path"]: key for key in ("diag/findings", "diag/slices") if key in summary}
    assert set(tables.values()) == {"diag/findings", "diag/slices"}
    for path, key in tables.items():
        table = json.loads(stub.files[f"run/{path}"])
        assert ("POL001" in str(table["data"])) == (key == "diag/findings")

    (alert,) = stub.sent("NotifyScriptableRunAlert")
    assert alert["title"] == "Token probabilities shift after tool results (POL001 post_tool)"
    assert (alert["severity"], alert["waitDuration"], alert["runName"]) == ("WARN", 1000, "run")
    defined = json.loads(stub.sent("UpsertBucket")[-1]["config"])["_wandb"]["value"]["m"]
    # By name, by glob, and the place of the one that is its x-axis.
    assert [(m.get("1"), m.get("2"), m.get("5")) for m in defined] == [("diag/step", None, None), (None, "diag/*", 1)]
    assert stub.unknown <= HARMLESS


EVERYTHING = (
    "ArtifactType", "CreateArtifact", "CreateRunFiles", "NotifyScriptableRunAlert", "UpsertBucket", "file_stream"
)  # fmt: skip
FAULTS = {
    "500 to everything": {"status": dict.fromkeys(EVERYTHING, 500)},
    "tables of 150 ms": {"delays": {"ArtifactType": 0.15}},
    "tables that hang": {"delays": {"ArtifactType": 240}},
    "no tables": {"status": {"ArtifactType": 400, "CreateArtifact": 400}},
    "no alerts": {"status": {"NotifyScriptableRunAlert": 500}},
    "malformed replies": {"malformed": {"ArtifactType", "CreateArtifact", "NotifyScriptableRunAlert"}},
}


@pytest.mark.nightly
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_is_ill_is_no_matter_of_the_training_thread(fault, rng, make_batch, stub, start):
    batches = [batch for _, batch in growing(rng, make_batch, 90)]
    plain = start("plain")
    for step in range(90):
        plain.log({"reward": step}, step=step)
    plain.finish()

    run = wrap(start("wrapped"))
    for name, value in FAULTS[fault].items():
        setattr(stub, name, value)
    for step, batch in enumerate(batches):
        run.diag.observe(**batch)
        run.log({"reward": step}, step=step)  # it comes back, though what the server is asked hangs
    if "hang" in fault:
        stub.delays = {}
    run.diag.close()
    for name, value in FAULTS[fault].items():
        setattr(stub, name, type(value)())  # the client's own queue is to empty
    run.finish()
    assert own(stub.history("wrapped")) == own(stub.history("plain"))
    ours = [row["diag/step"] for row in stub.history("wrapped") if P95 in row]
    assert sorted(ours) == list(range(90))


@pytest.mark.nightly
def test_an_offline_run_arrives_when_it_is_synced(rng, make_batch, stub, start, request):
    tmp_path, read_wandb = (request.getfixturevalue(name) for name in ("tmp_path", "read_wandb"))
    run = wrap(start(mode="offline"))
    for step, batch in growing(rng, make_batch, 90):
        run.diag.observe(**batch)
        run.log({"reward": step}, step=step)
    run.finish()
    assert stub.operations == []

    (folder,) = (tmp_path / "run").glob("wandb/offline-run-*")
    read_wandb(*folder.glob("run-*.wandb"))  # waits until W&B has written all of it
    command = [sys.executable, "-m", "wandb", "sync", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    rows = stub.history("run")
    assert [row["reward"] for row in own(rows)] == list(range(90))
    assert [row["diag/step"] for row in rows if P95 in row] == list(range(90))
    (alert,) = stub.sent("NotifyScriptableRunAlert")
    assert (alert["severity"], alert["title"][-18:]) == ("WARN", "(POL001 post_tool)")
    assert stub.unknown <= HARMLESS


@pytest.mark.nightly
def test_a_loop_that_continues_after_the_diagnostics_are_closed(rng, make_batch, stub, start):
    stub.delays["ArtifactType"] = 2
    run = wrap(start())
    for step, batch in growing(rng, make_batch, 100):
        run.diag.observe(**batch)
        run.log({"reward": step}, step=step)
    run.diag.close()
    run.log({"final": 1.0}, step=100)
    run.finish()
    rows = stub.history("run")
    assert [row for row in own(rows) if "final" in row] == [{"final": 1.0, "_step": 100}]
    steps = [row["diag/step"] for row in rows if P95 in row]
    assert steps == list(range(100))  # what had waited was appended at the end


@pytest.mark.nightly
def test_in_shared_mode_each_step_of_ours_is_a_row_of_its_own(rng, make_batch, stub, start):
    run = wrap(start(mode="shared"))
    for step, batch in growing(rng, make_batch, 8):
        run.diag.observe(**batch)
        run.log({"reward": step, "train/step": step})
    run.finish()
    rows = stub.history("run")
    assert [row["reward"] for row in rows if "reward" in row] == list(range(8))
    assert [row["diag/step"] for row in rows if P95 in row] == list(range(8))
    assert not any("reward" in row and P95 in row for row in rows)
    assert run.diag.failures == []
