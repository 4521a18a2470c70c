"""What several tests share: synthetic batches whose tails are known, and real trackers on local files."""

import contextlib
import fcntl
import gc
import itertools
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import closing
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.demo.arms import trained_arm  # noqa: F401  # a fixture
from tests.order import (  # noqa: F401  # hooks
    pytest_collection_modifyitems,
    pytest_ignore_collect,
    pytest_xdist_make_scheduler,
)

gc.disable()  # until all tests are collected: what is imported for them is no garbage

# How long an example takes is the machine's affair, and no property of the code.
settings.register_profile("default", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("default"), max_examples=2000)
settings.load_profile("default")


COUNT = itertools.count()

# Trackio looks once, when it is imported: one folder for all tests, a project for each.
STORE = tempfile.TemporaryDirectory(prefix="trackio-", ignore_cleanup_errors=True)
os.environ["TRACKIO_DIR"] = STORE.name


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """What is loaded by now is no garbage, and trainers that collect garbage need not look through all of it again."""
    if item.get_closest_marker("slow"):
        gc.collect()
        gc.freeze()


def pytest_sessionfinish():
    """Monitors that no test has closed end with the process, and need not say so."""
    os.environ["TRACKER_DIAG_QUIET"] = "1"


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
    folder = tmp_path_factory.getbasetemp() / f"of-test-{next(COUNT)}"  # `mktemp` looks at all folders before it
    folder.mkdir()
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(folder))
    monkeypatch.setenv("TRACKER_DIAG_EXIT_TIMEOUT", "30")  # a busy machine is no server that is down
    return folder


@pytest.fixture(scope="session")
def built_wheel(tmp_path_factory):
    """What is installed, made of the working tree."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def make_batch():
    return batch


@pytest.fixture(scope="session")
def shared_folder(request, tmp_path_factory):
    """A folder of this run of pytest, the same in all workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if hasattr(request.config, "workerinput") else folder


@pytest.fixture(scope="session")
def migrated_mlflow(shared_folder):
    """An MLflow database with all its tables and nothing in them, made once for all workers and what they start.

    Each store that a test makes would otherwise run through all migrations of MLflow's history.
    """
    import mlflow
    from mlflow.store.db import utils

    made = Path(os.environ.get("MIGRATED_MLFLOW", shared_folder / "migrated-mlflow.db"))
    with made.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            new = made.with_suffix(".new")
            mlflow.MlflowClient(f"sqlite:///{new}").search_experiments()
            with closing(sqlite3.connect(new)) as store:
                store.execute("DELETE FROM experiments")  # its place is this one; each copy's opener makes its own
                store.commit()
                with closing(sqlite3.connect(made.with_suffix(".copy"))) as copy:
                    store.backup(copy)
            made.with_suffix(".copy").rename(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIGRATED_MLFLOW", str(made))
        latest = utils._get_latest_schema_revision  # noqa: SLF001  # which reads 70 files at each call
        patch.setattr(utils, latest.__name__, cache(latest))
        yield made


@pytest.fixture(scope="session")
def new_mlflow_store(migrated_mlflow):
    """Makes a fresh MLflow store in a folder, which nothing uses yet; gives its URI."""

    def make(folder):
        shutil.copyfile(migrated_mlflow, folder / "mlflow.db")
        return f"sqlite:///{folder / 'mlflow.db'}"

    return make


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch, new_mlflow_store):
    """A real MLflow store on sqlite, used by the module as well; gives its URI."""
    import mlflow
    from mlflow.tracking import fluent
    from mlflow.tracking._tracking_service import utils as tracking_uri

    monkeypatch.chdir(tmp_path)
    uri = new_mlflow_store(tmp_path)
    before = tracking_uri._tracking_uri  # noqa: SLF001  # get_tracking_uri would name the store just made
    mlflow.set_tracking_uri(uri)
    yield uri
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(before)
    fluent._active_experiment_id = None  # noqa: SLF001  # MLflow has no call that forgets it
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)  # set_experiment leaves it, and it is of this store alone


@pytest.fixture
def wandb_offline(tmp_path, monkeypatch, read_wandb):
    """Starts real offline runs, and reads them back with W&B's own reader once they are finished."""
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")

    class Runs:
        def start(self, name="run", reinit="create_new"):
            folder = tmp_path / name
            folder.mkdir()
            settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, console="off")
            return wandb.init(project="test", dir=folder, settings=settings, reinit=reinit)

        def records(self, name="run"):
            (file,) = (tmp_path / name).glob("wandb/offline-run-*-????????/run-*.wandb")
            return read_wandb(file)

        def own_records(self, name="run"):
            files = sorted((tmp_path / name).glob("wandb/offline-run-*-diag-*/run-*.wandb"))
            return [read_wandb(file) for file in files]

    return Runs()


@pytest.fixture
def trackio_runs(request):
    """Starts real local runs of Trackio in a project of the test's own; reads rows back from its store."""
    import orjson
    import trackio

    class Runs:
        project = "".join(c if c.isalnum() else "-" for c in request.node.name)

        def start(self, name="run", **options):
            return trackio.init(project=self.project, name=name, auto_log_cpu=False, auto_log_gpu=False, **options)

        def known(self):
            return Path(f"{STORE.name}/{self.project}.db").exists()

        def select(self, query, *given):
            with closing(sqlite3.connect(f"file:{STORE.name}/{self.project}.db?mode=ro", uri=True)) as store:
                return store.execute(query, given).fetchall()

        def rows(self, name="run"):
            """Step and values of each row, in the order in which they were written; run it once finished."""
            result = self.select("SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id", name)
            return [(step, orjson.loads(metrics)) for step, metrics in result]

    yield Runs()
    if trackio.context_vars.current_run.get():
        trackio.finish()


@pytest.fixture(scope="session")
def read_wandb():
    """Reads the records of a `.wandb` file with what `wandb leet inspect` calls, which takes a second to import W&B.

    W&B writes on after `finish` has come back, on a busy machine for seconds: one that has `ended` is waited for.
    """
    from wandb.util import get_core_path

    def records_of(file, *, ended=True):
        command = [get_core_path(), "leet", "inspect", "--no-observability", "--json", "--run-file", file, file.parent]
        deadline = time.monotonic() + 60
        while True:
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            records = [json.loads(line) for line in out.stdout.splitlines()]
            if not ended or any(record["type"] == "exit" for record in records):
                return records
            assert time.monotonic() < deadline, f"after {len(records)} records it has not ended: {out.stderr}"
            time.sleep(0.1)

    return records_of


@contextlib.contextmanager
def kept_port():
    """A port on loopback that nobody else is given meanwhile: it is bound, and nothing listens there.

    A server that gets it may bind it all the same, as servers set SO_REUSEADDR, and as often as it likes.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


@pytest.fixture
def free_port():
    with kept_port() as port:
        yield port


def until_it_answers(server, address, log):
    """Until `server`, a process, answers at `address`: four minutes, or as long as it lives."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=60).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"no server: {log.read_text()}")


@pytest.fixture(scope="session")
def answers():
    return until_it_answers


@pytest.fixture(scope="session")
def start_mlflow_server(tmp_path_factory):
    """Starts an MLflow server over a store's URI, on loopback; all are stopped at the end."""
    started = []

    # Without the processes for its background jobs, each of which takes as long to start as the server.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

    def start(uri):
        port = ports.enter_context(kept_port())
        address = f"http://127.0.0.1:{port}"
        log = tmp_path_factory.mktemp("server") / "log"
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
        command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        with log.open("w") as out:
            started.append(subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True, env=environment))
        until_it_answers(started[-1], f"{address}/health", log)
        return address

    with contextlib.ExitStack() as ports:
        yield start
        for server in started:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


@pytest.fixture
def port_of_receiver():
    with kept_port() as port:
        yield port


@pytest.fixture
def receive(port_of_receiver):
    """Starts a receiver, on a port that is known before; it answers as `status` says, and while `thinks` not at all."""
    state = SimpleNamespace(got=[], paths=[], headers=[], status=[], url=f"http://127.0.0.1:{port_of_receiver}")
    state.thought, servers = threading.Event(), []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.thought.wait()
            status = state.status.pop(0) if state.status else 200
            if status == 200:
                state.got.append(body)
            state.paths.append(self.path)
            state.headers.append(dict(self.headers))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self):  # what a redirect would make of a POST
            state.paths.append(self.path)
            self.send_response(200)
            self.end_headers()

    def start(status=(), *, thinks=False):
        state.status = list(status)
        if not thinks:
            state.thought.set()
        server = ThreadingHTTPServer(("127.0.0.1", port_of_receiver), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        servers.append((server, thread))
        return state

    start.state = state
    yield start
    state.thought.set()
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join(60)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """A real browser. Until it is closed, its thread has an event loop that is running."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        pytest.fail(f"none of {', '.join(BROWSERS)} is there: apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser):
    """A page of a browser, which has nothing of another."""
    shown = browser.new_page(viewport={"width": 1600, "height": 1500})
    shown.set_default_timeout(60_000)
    yield shown
    shown.close()
