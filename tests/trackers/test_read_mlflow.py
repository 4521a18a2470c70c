import math
import socketserver
import threading

import pytest

from tracker_diag.errors import SourceError
from tracker_diag.scrub import without_password
from tracker_diag.trackers.mlflow.read import read_mlflow, split

pytestmark = pytest.mark.slow


def test_a_run_with_its_full_history(mlflow_store):
    import mlflow

    with mlflow.start_run() as active:
        mlflow.log_params({"learning_rate": 1e-5, "algorithm": "grpo", "beta": "None", "bf16": True})
        for step in range(30):
            kl = {5: math.nan, 6: math.inf, 7: -math.inf}.get(step, 0.5)
            mlflow.log_metrics({"reward": step / 2, "kl": kl}, step=step, synchronous=True)
        mlflow.log_metric("eval_reward", 0.25, step=29)
        mlflow.log_metric("reward", 9.0, step=3)
        mlflow.log_metric("system/cpu", 50.0, step=1000)
    messages = []
    run = read_mlflow(f"{active.info.run_id}@{mlflow_store}", "it", messages.append)
    assert list(run.rows) == list(range(30))
    assert run.rows[29] == {"eval_reward": 0.25, "kl": 0.5, "reward": 14.5}
    assert math.isnan(run.rows[5]["kl"])
    assert (run.rows[6]["kl"], run.rows[7]["kl"]) == (math.inf, -math.inf)
    assert run.rows[3]["reward"] == 9.0
    assert run.config == {"learning_rate": 1e-5, "algorithm": "grpo", "beta": None, "bf16": True}
    assert run.seconds[0] == 0.0
    assert run.notes[0] == "1 metrics under system/ have steps of their own: left out"
    assert messages[-1] == 1.0
    assert read_mlflow(active.info.run_id, "it").rows.keys() == run.rows.keys(), "the URI that MLflow would use"


def test_metrics_without_steps_are_counted(mlflow_store):
    import mlflow

    with mlflow.start_run() as active:
        for at, value in enumerate((1.0, 2.0, 3.0)):
            mlflow.log_metric("loss", value, timestamp=1_000_000 + at)
        mlflow.log_metric("final", 7.0)
    run = read_mlflow(active.info.run_id, "it")
    assert run.rows == {0: {"final": 7.0, "loss": 1.0}, 1: {"loss": 2.0}, 2: {"loss": 3.0}}
    assert run.notes == ("1 metrics were logged without steps, first 'loss': their values are counted",)


def test_a_folder_of_runs_is_read_and_none_is_made(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("e"))
    client.log_metric(run.info.run_id, "loss", 0.5, step=3)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    for place in (uri, str(tmp_path / "mlruns")):
        assert read_mlflow(f"{run.info.run_id}@{place}", "it").rows == {3: {"loss": 0.5}}
    for place, message in (("none", "no folder none; add .*"), (f"sqlite:///{tmp_path}/none.db", "no SQLite file .*")):
        with pytest.raises(SourceError, match=f"^it: {message}$"):
            read_mlflow(f"{run.info.run_id}@{place}", "it")
    assert [file.name for file in tmp_path.iterdir()] == ["mlruns"]


def test_what_cannot_be_read(mlflow_store, free_port):
    import mlflow

    with mlflow.start_run() as active:
        pass
    for name, message in {
        active.info.run_id: "it: no metrics: not one number was logged",
        "none": "it: Run with id=none not found",
        "": "it: expected mlflow:<run id>",
        "x@nonsense://host": "it: ",
        f"x@http://user:secret@127.0.0.1:{free_port}": f"it: no answer from http://***@127.0.0.1:{free_port} (",
    }.items():
        with pytest.raises(SourceError) as error:
            read_mlflow(name, "it")
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)
        assert "secret" not in str(error.value)


def test_a_server_that_hangs_up_is_asked_twice_and_no_more(hangs_up):
    """MLflow itself would continue for minutes."""
    address, asked = hangs_up
    with pytest.raises(SourceError, match=f"^it: no answer from {address} "):
        read_mlflow(f"x@{address}", "it")
    assert len(asked) == 2


@pytest.fixture
def hangs_up():
    """A server that hangs up on all clients; its address, and who has asked."""
    asked = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            asked.append(self.client_address)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_passwords_are_not_reported():
    assert without_password("mlflow:x@https://me:pw@host/a, then http://host/b@c") == (
        "mlflow:x@https://***@host/a, then http://host/b@c"
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("agents 5", ("agents 5", "")),
        ("x@mlruns", ("x", "mlruns")),
        ("x@https://me:pw@host/a", ("x", "https://me:pw@host/a")),
        ("team@lab@sqlite:///a.db", ("team@lab", "sqlite:///a.db")),
    ],
)
def test_a_name_may_hold_an_at_sign_and_an_address_a_password(name, parts):
    assert split(name) == parts
