import mlflow
import pytest
import wandb

from tracker_diag.attach.active import active_backends

pytestmark = pytest.mark.slow


def test_what_is_underway_is_found_and_nothing_is_started(tmp_path, new_mlflow_store):
    assert active_backends() == []
    mlflow.set_tracking_uri(new_mlflow_store(tmp_path))
    settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True, console="off")
    with wandb.init(project="p", dir=tmp_path, settings=settings), mlflow.start_run():
        assert [backend.name for backend in active_backends()] == ["wandb", "mlflow"]
    assert active_backends() == []
