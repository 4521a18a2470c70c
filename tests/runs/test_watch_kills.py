"""`tracker-diag watch` as people run it: killed at random, with receivers and servers that disappear and come back.

Each alert that a monitor in the run would have raised arrives. Where the watch was killed while it sent one, that one
may arrive twice, with the same id.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

import tracker_diag as td
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.notify import NOTIFY

pytestmark = pytest.mark.nightly

COMMAND = [sys.executable, "-c", "from tracker_diag.cli.app import app; app()", "watch"]


def until(holds, message=lambda: ""):
    """Until `holds()`, within two minutes."""
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end, message()
        time.sleep(0.02)


def logged(seed, steps=140):
    """Rows whose reward falls and comes back, with a NaN now and then."""
    rng = np.random.default_rng(seed)
    rows = {}
    for step in range(steps):
        reward = step / 50 if step < 60 else max(1.2 - (step - 60) / 8, 0.0) if step < 110 else 1.2
        rows[step] = {"reward": reward + 0.02 * rng.normal(), "kl": 0.01 * rng.uniform(0.5, 2), "entropy": 1.0}
        if step in {20 + seed, 125}:
            rows[step]["kl"] = float("nan")
    return rows


def raised_live(rows):
    """Step, level and title of the alerts of a monitor in the run."""
    live = CapturingTracker()
    monitor = td.Monitor([live], source="test")
    for step, row in rows.items():
        monitor.log(row, step)
    return [(notice.step, notice.level, notice.title) for notice in live.notices]


def alerts_from(receiver, run):
    """Step, level and title of the alerts of `run`, each once, in the order in which they came."""
    alerts = {
        alert["id"]: (alert["step"], alert["level"], alert["title"]) for alert in receiver.got if alert["run"] == run
    }
    return list(alerts.values())


def repeated(receiver):
    """How often each alert came that came more than once."""
    return {name: n for name, n in Counter(alert["id"] for alert in receiver.got).items() if n > 1}


@pytest.fixture
def receiver(receive):
    return receive()


@pytest.fixture
def watch(tmp_path, receiver):
    """Starts watches of the command line; all are killed at the end."""
    started = []

    def start(*arguments):
        log = tmp_path / f"watch-{len(started)}.log"
        environment = os.environ | {NOTIFY: receiver.url, "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
        with log.open("w") as out:
            command = [*COMMAND, *map(str, arguments), "--every", "0.1", "--state", str(tmp_path / "state")]
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=tmp_path)
        process.log = log
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(60)


def write(file, rows):
    with file.open("a") as out:
        out.writelines(json.dumps({"step": step, **row}) + "\n" for step, row in rows)


@pytest.mark.parametrize("seed", [0, 1])
def test_kills_at_random_lose_nothing_and_repeat_at_most_the_alert_in_flight(seed, tmp_path, receiver, watch):
    dice = random.Random(seed)
    folder = tmp_path / "runs"
    folder.mkdir()
    runs = {f"run-{i}.jsonl": logged(i) for i in range(4)}
    expected = {name: raised_live(rows) for name, rows in runs.items()}
    assert sum(map(len, expected.values())) >= 12
    for name, rows in runs.items():
        write(folder / name, list(rows.items())[:2])
    watcher = watch(folder, "--project")
    kills = 0
    for at in range(2, 140, 6):
        for name, rows in runs.items():
            write(folder / name, list(rows.items())[at : at + 6])
        if dice.random() < 0.35:
            until(watcher.log.read_text, lambda: "the watch did not begin")
            time.sleep(dice.uniform(0, 2))  # chance decides when it is killed
            watcher.kill()
            watcher.wait(60)
            kills += 1
            watcher = watch(folder, "--project")
    assert kills >= 3
    until(
        lambda: all(alerts_from(receiver, name) == alerts for name, alerts in expected.items()), watcher.log.read_text
    )
    assert len(repeated(receiver)) <= kills
    until(watcher.log.read_text, watcher.log.read_text)  # it has begun, and takes the signal
    watcher.send_signal(signal.SIGINT)
    assert watcher.wait(60) == 0
    assert "4 runs" in watcher.log.read_text()


def test_killed_after_a_receiver_took_an_alert_and_before_it_answered(tmp_path, receiver, watch):
    """The worst moment: nobody can know whether the alert arrived. It comes again with the same id."""
    file = tmp_path / "metrics.jsonl"
    rows = logged(0)
    write(file, rows.items())
    running = []

    class Deadly(list):
        """Kills the watch once an alert has come, before it is answered."""

        def append(self, alert):
            super().append(alert)
            running[-1].kill()
            running[-1].wait(60)

    receiver.got = Deadly()
    for _ in range(2):
        running.append(watch(file))
        assert running[-1].wait(120) == -signal.SIGKILL
    assert len(receiver.got) == 2
    assert len(repeated(receiver)) == 1
    receiver.got = list(receiver.got)
    watch(file)
    until(lambda: alerts_from(receiver, "metrics.jsonl") == raised_live(rows))
    assert len(repeated(receiver)) == 1


@pytest.fixture
def mlflow_server(tmp_path, new_mlflow_store, free_port, answers):
    """A server that can be stopped and started again at the same address."""
    uri = new_mlflow_store(tmp_path)
    running = []

    class Server:
        store, address = uri, f"http://127.0.0.1:{free_port}"

        def start(self):
            log = tmp_path / "server.log"
            command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--workers", "1"]
            command += ["--host", "127.0.0.1", "--port", str(free_port)]
            environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
            with log.open("w") as out:
                options = {"stdout": out, "stderr": out, "start_new_session": True, "env": environment}
                running.append(subprocess.Popen(command, **options))
            answers(running[-1], f"{self.address}/health", log)

        def stop(self):
            os.killpg(running[-1].pid, signal.SIGKILL)
            running.pop().wait(60)

    server = Server()
    server.start()
    yield server
    while running:
        server.stop()


def test_mlflows_server_and_the_watch_are_killed_and_come_back(mlflow_server, receiver, watch):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=mlflow_server.store)  # as a trainer would that has its own way to it
    experiment = client.create_experiment("agents")
    runs = {name: (client.create_run(experiment, run_name=name).info.run_id, logged(i)) for i, name in enumerate("ab")}
    client.create_run(experiment, run_name="never a row")

    begun = int(1000 * time.time()) - 500_000

    def train(first, last):
        for run_id, rows in runs.values():
            points = [
                mlflow.entities.Metric(key, value, begun + 1000 * step, step)
                for step, row in list(rows.items())[first:last]
                for key, value in row.items()
            ]
            client.log_batch(run_id, metrics=points)

    expected = {name: raised_live(rows) for name, (_, rows) in runs.items()}
    train(0, 30)
    source = f"mlflow:agents@{mlflow_server.address}"
    watcher = watch(source, "--project")
    until(lambda: all(alerts_from(receiver, name) for name in runs), watcher.log.read_text)
    mlflow_server.stop()
    until(lambda: "cannot be reached" in watcher.log.read_text())
    watcher.kill()
    watcher.wait(60)
    watcher = watch(source, "--project")  # while nobody is there
    until(lambda: "cannot be reached" in watcher.log.read_text(), watcher.log.read_text)
    train(30, 100)
    mlflow_server.start()
    until(lambda: "can be reached again" in watcher.log.read_text(), watcher.log.read_text)
    train(100, 140)
    for run_id, _ in runs.values():
        client.set_terminated(run_id)
    until(
        lambda: all(alerts_from(receiver, name) == alerts for name, alerts in expected.items()), watcher.log.read_text
    )
    assert repeated(receiver) == {}
    client.delete_run(runs["b"][0])
    until(lambda: "b: " in watcher.log.read_text() and "gone" in watcher.log.read_text())
    watcher.send_signal(signal.SIGTERM)
    assert watcher.wait(60) == 0
    log = watcher.log.read_text()
    assert "Traceback" not in log
    assert "3 runs" in log
    assert "no row yet" in log
