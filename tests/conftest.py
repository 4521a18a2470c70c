"""What several tests share: synthetic batches whose tails are known, and real trackers on local files."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair, and no property of the code.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def batch(rng, *, post=0.02, text=0.02, pairs=("policy", "reference"), size=64, width=24):
    """Arguments for `observe`: 64 sequences, a tool result in the middle of half of them.

    `post` and `text` are the standard deviations of the log-ratios after and before it.
    """
    model = np.ones((size, width), bool)
    model[: size // 2, 8:12] = False
    response = np.ones((size, width), bool)
    response[:, :2] = model[:, :2] = False
    after = np.zeros((size, width), bool)
    after[: size // 2, 12:] = True
    new = rng.uniform(-3, -0.1, (size, width))
    scale = np.where(after, post, text)
    given = {"logprobs": new, "response_mask": response, "model_mask": model}
    names = {"policy": "old_logprobs", "reference": "ref_logprobs"}
    return given | {names[pair]: new - scale * rng.normal(size=new.shape) for pair in pairs}


@pytest.fixture(autouse=True)
def journals(tmp_path_factory, monkeypatch):
    """Where journals lie in a test, and in what it starts."""
    folder = tmp_path_factory.mktemp("journals")
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(folder))
    return folder


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def make_batch():
    return batch


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch):
    """A real MLflow store on sqlite, used by the module as well; gives its URI."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    yield uri
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


@pytest.fixture
def wandb_offline(tmp_path, monkeypatch, read_wandb):
    """Starts real offline runs, and reads them back with W&B's own reader once they are finished."""
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")

    class Runs:
        def start(self, name="run"):
            folder = tmp_path / name
            folder.mkdir()
            settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, console="off")
            return wandb.init(project="test", dir=folder, settings=settings, reinit="create_new")

        def records(self, name="run"):
            (file,) = (tmp_path / name).glob("wandb/offline-run-*/run-*.wandb")
            return read_wandb(file)

    return Runs()


@pytest.fixture(scope="session")
def read_wandb():
    """Reads the records of a `.wandb` file, through `wandb leet inspect`."""

    def read(file):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return [json.loads(line) for line in out.splitlines()]

    return read


def a_free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def free_port():
    return a_free_port()


@pytest.fixture(scope="session")
def start_mlflow_server(tmp_path_factory):
    """Starts an MLflow server over a store's URI, on loopback; all are stopped at the end."""
    started = []

    def start(uri):
        port = a_free_port()
        address = f"http://127.0.0.1:{port}"
        log = tmp_path_factory.mktemp("server") / "log"
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        with log.open("w") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True))
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=1).close()
            except OSError:
                time.sleep(1)
            else:
                return address
        raise AssertionError(f"no MLflow server: {log.read_text()}")

    yield start
    for server in started:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
