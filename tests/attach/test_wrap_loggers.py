"""`wrap` on the loggers of real frameworks: what is inside is found, and their own use of it continues."""

import numpy as np
import pytest

from tracker_diag import wrap

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore::UserWarning:(lightning|accelerate)"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # of lightning about torch
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
]


def test_a_lightning_logger_in_a_real_fit(tmp_path, monkeypatch, make_batch):
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.loggers import MLFlowLogger
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    logger = wrap(MLFlowLogger("test", tracking_uri=uri))

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, number):
            logger.diag.observe(**make_batch(np.random.default_rng(number)))
            loss = self.layer(batch).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = Trainer(max_steps=12, log_every_n_steps=1, logger=logger, accelerator="cpu", **quiet)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(48, 2), batch_size=4))
    summary = logger.diag.close()
    assert summary.steps == 12
    client = MlflowClient(uri)
    assert len(client.get_metric_history(logger.run_id, "loss")) == 12
    assert [point.step for point in client.get_metric_history(logger.run_id, "diag/policy/text_only/p95")]
    assert client.list_artifacts(logger.run_id, "diag")


def test_trackers_of_accelerate_in_a_real_loop(tmp_path, monkeypatch, make_batch):
    import mlflow
    from accelerate import Accelerator
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    accelerator = Accelerator(cpu=True, log_with=["mlflow", "tensorboard"], project_dir=str(tmp_path / "tb"))
    accelerator.init_trackers("test", config={"lr": 0.1})
    run_id = accelerator.get_tracker("mlflow", unwrap=True).info.run_id
    accelerator.trackers = [wrap(tracker) for tracker in accelerator.trackers]
    for step in range(5):
        for tracker in accelerator.trackers:
            tracker.diag.observe(**make_batch(np.random.default_rng(step)))
        accelerator.log({"loss": 1.0 / (step + 1)}, step=step)
    for tracker in accelerator.trackers:
        tracker.diag.close()
    accelerator.end_training()
    client = mlflow.MlflowClient()
    assert [point.step for point in client.get_metric_history(run_id, "loss")] == list(range(5))
    assert len(client.get_metric_history(run_id, "diag/policy/all/p95")) == 5
    folder = next((tmp_path / "tb").rglob("diag"))
    assert len(EventAccumulator(str(folder)).Reload().Scalars("diag/policy/all/p95")) == 5
    assert len(EventAccumulator(str(folder.parent)).Reload().Scalars("loss")) == 5
