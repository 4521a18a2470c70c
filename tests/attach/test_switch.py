"""TRACKER_DIAG_DISABLED=1: nothing is asked, started, hooked, written or raised."""

import copy
import threading

import mlflow
import pytest

from tests.trackers.forwarding import Forwarding
from tracker_diag import Monitor, watch, wrap
from tracker_diag.attach.kit import add_active, resume
from tracker_diag.attach.saved import Saved
from tracker_diag.attach.shares import together
from tracker_diag.testing import CapturingTracker


class Asked(Forwarding):
    def __init__(self):
        super().__init__("127.0.0.1:0")
        self.paths = []

    def respond(self, path, body, forward):
        self.paths.append(path)
        return 502, b"no"


@pytest.fixture
def server():
    with Asked() as asked:
        thread = threading.Thread(target=asked.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield asked
        asked.shutdown()
        thread.join(60)


def test_the_diagnostics_can_be_turned_off_from_outside(server, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACKER_DIAG_DISABLED", "1")
    monkeypatch.setenv("TRACKER_DIAG_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("TRACKER_DIAG_RULES", "/none")
    before, hook = {*threading.enumerate()}, mlflow.MlflowClient.log_batch
    heard, given, client = [], {"loss": float("nan")}, mlflow.MlflowClient(server.address)
    runs = [
        wrap(client, run_id="a" * 32, baseline="mlflow:none", rules="/none", clip=None),
        wrap(client),
        wrap(None),
        wrap(lambda metrics, step: heard.append((metrics, step))),
        wrap(3),
    ]
    assert runs[0] is runs[1] is client
    watcher = watch(baseline="mlflow:none", rules="/none")
    for run in runs:
        run.diag.observe(logprobs="no tensor at all")
        watcher.observe(logprobs="no tensor at all")
        run.diag.log(given, 0)
        run.diag.samples(reward="none")
        run.diag.checkpoint(tmp_path)
        run.diag.load_state_dict({"version": "another"})
        run.diag.expect(3, mismatch="none")
        assert not run.diag.decide()
        assert run.diag.flush(1.0)
        assert run.diag.close().findings == ()
    runs[3](given, 0)
    assert heard == [(given, 0)]
    seen = CapturingTracker()
    with Monitor([seen], rules="/none", guards="/none", expected_runs_between_false_alarms=-1.0) as monitor:
        monitor.log(given, 0)
        assert not add_active(monitor, client, sees={})
        assert not resume(monitor, None, "nothing")
        Saved(monitor).put(tmp_path)
        assert not Saved(monitor).find(tmp_path)
    assert together(0, 2) is None
    watcher.close()
    assert (seen.own, seen.summary, server.paths) == ({}, None, [])
    # The server's own threads end by themselves.
    assert {thread for thread in threading.enumerate() if "tracker_diag" in thread.name} <= before
    assert mlflow.MlflowClient.log_batch is hook
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrapped_can_be_copied_as_when_the_switch_is_off(monkeypatch):
    monkeypatch.setenv("TRACKER_DIAG_DISABLED", "1")
    wrapped = copy.copy(wrap(print))
    assert wrapped.__self__ is print.__self__
