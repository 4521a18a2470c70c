"""Everything that can happen to a tracker while a run continues: nothing is lost, and nothing waits.

Against a real MLflow server and store, partly through a proxy on loopback that misbehaves as it is set to.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

import tracker_diag as td
from tests.trackers.forwarding import Forwarding
from tracker_diag import Monitor
from tracker_diag.cli.app import app
from tracker_diag.rules.loader import catalog
from tracker_diag.trackers.delivery import journal, outbox
from tracker_diag.trackers.delivery.journal import Journal
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.mlflow.write import STATES, MlflowTracker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

STEPS = 60


@pytest.fixture
def impatient(monkeypatch):
    """MLflow's own client gives up at once, so that what follows is ours."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "240")
    monkeypatch.setattr(outbox, "RETRY", 0.05)
    monkeypatch.setattr(outbox, "RETRY_AT_MOST", 0.1)
    monkeypatch.setattr(outbox, "CLOSE_WITHIN", 120.0)
    return monkeypatch


def train(monitor, steps):
    for step in steps:
        monitor.health["late_steps"] += 1  # a count that grows, and so a scalar at every step
        monitor.log({"loss": math.nan if step == 30 else 0.5, "reward": step / 10}, step)


def a_monitor(client, run_id):
    """One rule, whose state is logged from its first alarm on."""
    rules = [rule for rule in catalog() if rule.id == "NUM004"]
    return Monitor([MlflowTracker(client, run_id)], rules=rules, catalog=False)


def assert_all_arrived(client, run_id, steps=STEPS):
    points = client.get_metric_history(run_id, "diag/health/late_steps")
    assert [point.step for point in points] == list(range(steps))
    states = client.get_metric_history(run_id, "diag/rule/NUM004")
    assert {30, steps - 1} <= {point.step for point in states}
    assert client.get_run(run_id).data.tags["diag.alert.rules"] in ("NUM004", "")


@pytest.mark.nightly
@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_killed_and_comes_back(tmp_path, free_port, journals, new_mlflow_store, answers):
    import mlflow

    uri, address = new_mlflow_store(tmp_path), f"http://127.0.0.1:{free_port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", "127.0.0.1"]
    command += ["--port", str(free_port), "--workers", "1", "--artifacts-destination", str(tmp_path / "artifacts")]

    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

    def start():
        log = tmp_path / "log"
        with log.open("w") as out:
            server = subprocess.Popen(
                command, stdout=out, stderr=out, start_new_session=True, cwd=tmp_path, env=environment
            )
        answers(server, f"{address}/health", log)
        return server

    server = start()
    try:
        client = mlflow.MlflowClient(address)
        run_id = client.create_run("0").info.run_id
        monitor = a_monitor(client, run_id)
        train(monitor, range(20))
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        train(monitor, range(20, 40))
        assert any(journals.iterdir())  # training continued, and what it logged waits
        server = start()
        train(monitor, range(40, STEPS))
        monitor.close()
        assert_all_arrived(client, run_id)
        assert monitor.health["tracker_errors"] > 0
        assert list(journals.iterdir()) == []
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


class Proxy(Forwarding):
    """Answers errors while it is `down`, and late as long as it is `slow`.

    A late answer comes when `let_go` is set, and no sooner: a call that returns before that does not wait for it.
    """

    down, only = False, ""
    """Whether it answers errors, and to what alone."""
    status, text = 500, b'{"error_code": "INTERNAL_ERROR", "message": "no"}'
    errors = 0
    slow, late = 0, 0
    """Answers that are still to be late, and those that are underway."""

    def __init__(self, target):
        super().__init__(target)
        self.steps, self.let_go = [], threading.Event()

    def respond(self, path, body, forward):
        with self.lock:
            down, slow = self.down and self.only in path, self.slow > 0
            self.errors += down
            lost = self.status >= 500 and self.errors % 2 == 0  # what is refused has not been done
            self.slow -= slow
        if down and not lost:
            return self.status, self.text
        if path.endswith("/runs/log-batch"):
            metrics = json.loads(body).get("metrics", [])
            self.steps += [point["step"] for point in metrics if point["key"] == "diag/health/late_steps"]
        answer = forward()
        if down:  # done all the same: it is the answer alone that is lost
            return self.status, self.text
        if slow:
            with self.lock:
                self.late += 1
            self.let_go.wait(240)
            with self.lock:
                self.late -= 1
        return answer


@pytest.fixture(scope="module")
def server(tmp_path_factory, start_mlflow_server, new_mlflow_store):
    """Where a real server listens."""
    place = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)  # it keeps artifacts where it was started
        return start_mlflow_server(new_mlflow_store(place)).removeprefix("http://")


@pytest.fixture
def proxy(server):
    before = Proxy(server)
    thread = threading.Thread(target=before.serve_forever)
    thread.start()
    yield before
    before.let_go.set()
    before.shutdown()
    thread.join()
    before.server_close()


@pytest.fixture
def behind(proxy):
    """A client of a real server behind the proxy."""
    import mlflow

    return mlflow.MlflowClient(proxy.address)


def wait_for(what, seconds=120):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


def assert_the_same(client, run_id, folder):
    """Every number that a file next to the tracker has got is there, once, and no other; states where they change."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = {}
    for row in rows:
        for name, value in row.items():
            if name.startswith("diag/"):
                logged.setdefault(name, []).append((row["step"], value))
    histories = {name: client.get_metric_history(run_id, name) for name in client.get_run(run_id).data.metrics}
    arrived = {name: [(point.step, point.value) for point in points] for name, points in histories.items()}
    assert {name: turns(name, points) for name, points in arrived.items()} == {
        name: turns(name, points) for name, points in logged.items()
    }


def turns(name, points):
    """The `points`; those of a state without the ones that have the value of both neighbours."""
    around = zip([None, *points], points, [*points[1:], None], strict=False)
    stays = [before and after and before[1] == point[1] == after[1] for before, point, after in around]
    return [point for point, alike in zip(points, stays, strict=True) if not (alike and name.startswith(STATES))]


PASSING = {
    "an expired token": (401, b"<html>log in</html>"),
    "no permission": (403, b'{"error_code": "PERMISSION_DENIED", "message": "no"}'),
    "a gateway without its service": (404, b"<html>not found</html>"),
    "a gateway that does not understand": (400, b"<html>bad request</html>"),
    "a run that is not there for a while": (404, b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"}'),
}


@pytest.mark.nightly
@pytest.mark.parametrize("answer", PASSING)
@pytest.mark.usefixtures("impatient")
def test_what_passes_costs_nothing(answer, behind, proxy, journals, tmp_path):
    run_id = behind.create_run("0").info.run_id
    monitor = a_monitor(behind, run_id)
    monitor.add_tracker(JsonlTracker(tmp_path))
    proxy.status, proxy.text = PASSING[answer]
    train(monitor, range(10))
    proxy.down = True
    train(monitor, range(10, 20))
    wait_for(lambda: proxy.errors >= 3)
    proxy.down = False
    train(monitor, range(20, 30))
    monitor.close()
    assert_the_same(behind, run_id, tmp_path)
    assert list(journals.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.usefixtures("impatient")
def test_an_alert_does_not_wait_for_a_quota_of_metrics(behind, proxy, journals):
    run_id = behind.create_run("0").info.run_id
    monitor = a_monitor(behind, run_id)
    proxy.status, proxy.text = 429, b'{"error_code": "RESOURCE_LIMIT_EXCEEDED", "message": "quota of metrics"}'
    proxy.only, proxy.down = "/runs/log-batch", True
    train(monitor, range(40))
    wait_for(lambda: behind.get_run(run_id).data.tags.get("diag.alert.rules") == "NUM004")
    assert behind.get_metric_history(run_id, "diag/health/late_steps") == []
    proxy.down = False
    train(monitor, range(40, STEPS))
    monitor.close()
    assert_all_arrived(behind, run_id)
    assert list(journals.iterdir()) == []


def test_a_server_that_stays_slow_holds_up_no_end_and_flush_brings_the_rest(behind, proxy, impatient, tmp_path):
    client, journals = behind, journal.folder()
    run_id = client.create_run("0").info.run_id
    monitor = a_monitor(client, run_id)
    monitor.add_tracker(JsonlTracker(tmp_path))
    impatient.setattr(outbox, "CLOSE_WITHIN", 1.0)
    proxy.slow = 10**6
    train(monitor, range(2))
    wait_for(lambda: proxy.late)
    train(monitor, range(2, STEPS))
    monitor.close()
    assert proxy.late  # all that takes less than one answer
    assert any(journals.iterdir())
    assert any("tracker-diag flush" in failure for failure in monitor.failures)
    proxy.slow = 0
    proxy.let_go.set()

    def flushed():  # left alone as long as our thread waits for its last answer
        CliRunner().invoke(app, ["flush", "--to", proxy.address])
        return not list(journals.glob("*.journal"))

    wait_for(flushed)
    assert [file.suffix for file in journals.iterdir()] == [".html"]  # the report, which no line of a journal holds
    assert_all_arrived(client, run_id)
    assert_the_same(client, run_id, tmp_path)
    assert list(dict.fromkeys(proxy.steps)) == list(range(STEPS))


def test_flush_leaves_alone_what_is_alive_and_says_what_it_could_not_send(mlflow_store, journals, impatient):
    import mlflow

    client = mlflow.MlflowClient()
    monitor = a_monitor(client, client.create_run("0").info.run_id)
    train(monitor, range(3))
    gone = left_for(mlflow_store)
    other = Journal.new("other-1", {"tracker": "other", "address": {}})
    other.append({"event": "x", "step": 1, "n": 1})
    other.close(keep=True)
    (journals / "torn.journal").write_text("{")
    done = CliRunner().invoke(app, ["flush"])
    assert done.exit_code == 2
    lines = dict(line.split(": ", 1) for line in done.output.splitlines())
    assert lines[gone.name].startswith("kept: run_id: ")
    assert "'other' given, expected one of" in lines[other.path.name]
    assert any("is alive and delivers it itself" in line for line in lines.values())
    assert lines["torn.journal"].startswith("left alone: ")
    assert gone.exists()
    monitor.close()
    done = CliRunner().invoke(app, ["flush", str(journals / "nowhere")])
    assert done.exit_code == 2
    assert "no such folder" in done.output


def left_for(uri):
    """Where a dead process has left a journal for a run on the server at `uri`."""
    journal = Journal.new("mlflow-gone", {"tracker": "mlflow", "address": {"run": "f" * 32, "uri": uri}})
    journal.append({"scalars": {"diag/x": 1.0}, "step": 0, "at": 1.0, "n": 1})
    journal.close(keep=True)
    return journal.path


@pytest.mark.nightly
def test_flush_sends_no_credentials_to_whom_the_caller_has_not_named(proxy, journals, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret-token-of-mine")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    asked = []
    monkeypatch.setattr(proxy, "respond", lambda path, body, forward: (asked.append(1), (404, b"{}"))[1])
    left_for(proxy.address)
    done = CliRunner().invoke(app, ["flush"])
    assert done.exit_code == 2
    assert f"tracker-diag flush --to {proxy.address}" in " ".join(done.output.split())
    assert asked == []
    done = CliRunner().invoke(app, ["flush", "--seconds", "1", "--to", proxy.address])
    assert asked
    assert "secret-token-of-mine" not in done.output


@pytest.mark.usefixtures("journals")
def test_a_run_is_watched_whose_server_is_down_at_the_first_steps(proxy, impatient, rng, make_batch):
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(proxy.address)
    watcher = td.watch()
    try:
        run_id = mlflow.start_run().info.run_id
        proxy.status, proxy.down = 502, True
        for step in range(6):
            proxy.down = step < 3
            watcher.observe(**make_batch(rng))
            with contextlib.suppress(mlflow.MlflowException):  # your own call, which fails without us too
                mlflow.log_metric("loss", 1.0, step=step)
        mlflow.end_run()
        steps = mlflow.MlflowClient().get_metric_history(run_id, "diag/policy/text_only/p95")
    finally:
        watcher.close()
        mlflow.set_tracking_uri(before)
    assert {3, 4, 5} <= {point.step for point in steps}


@pytest.mark.usefixtures("journals")
def test_a_run_is_wrapped_whose_server_is_down_at_the_first_steps(proxy, impatient, rng, make_batch):
    import mlflow

    client = mlflow.MlflowClient(proxy.address)
    run_id = client.create_run("0").info.run_id
    proxy.status, proxy.down = 502, True
    run = td.wrap(client, run_id=run_id)
    for step in range(6):
        proxy.down = step < 3
        run.diag.observe(**make_batch(rng))
        with contextlib.suppress(mlflow.MlflowException):  # your own call, which fails without us too
            run.log_metric(run_id, "loss", 1.0, step=step)
    run.diag.close()
    of_ours = client.get_metric_history(run_id, "diag/policy/text_only/p95")
    assert {3, 4, 5} <= {point.step for point in of_ours}


@pytest.mark.usefixtures("journals", "impatient")
def test_flush_waits_no_longer_than_it_is_allowed_to_for_a_server_that_is_down(behind, proxy):
    monitor = a_monitor(behind, behind.create_run("0").info.run_id)
    proxy.down = True
    train(monitor, range(3))
    before = time.monotonic()
    assert not monitor.flush(0.5)
    assert 0.5 <= time.monotonic() - before < 10
    proxy.down = False
    assert monitor.flush(60)
    monitor.close()


def test_a_password_in_the_address_is_written_nowhere(proxy, journals, impatient, caplog, capsys):
    import mlflow

    address = proxy.address.replace("http://", "http://me:a-password@")
    client = mlflow.MlflowClient(address)
    monitor = a_monitor(client, client.create_run("0").info.run_id)
    impatient.setattr(outbox, "CLOSE_WITHIN", 1.0)
    proxy.down = True
    train(monitor, range(5))
    wait_for(lambda: proxy.errors)
    monitor.record("tracker_errors", OSError(f"no answer from {address}"))
    left = "".join(file.read_text() for file in journals.iterdir())
    monitor.close()
    shown = [left, caplog.text, capsys.readouterr().err, repr(monitor.failures), json.dumps(monitor.state_dict())]
    assert "me:***" not in left
    assert "***@" in left
    for text in shown:
        assert "a-password" not in text
    proxy.down = False
    impatient.setenv("MLFLOW_TRACKING_URI", address)
    done = CliRunner().invoke(app, ["flush"])
    assert "a-password" not in done.output
    assert done.exit_code == 0, done.output
