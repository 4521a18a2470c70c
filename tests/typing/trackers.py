"""Read by type checkers alone: trackers that we know."""
# pyright: strict, reportUnknownMemberType=false

import mlflow
import wandb
from torch.utils.tensorboard.writer import SummaryWriter
from trackio.run import Run
from typing_extensions import reveal_type

import tracker_diag as td


def wandb_run(given: wandb.Run) -> None:
    run = td.wrap(given, clip=(0.2, 0.28))
    reveal_type(run.diag)
    reveal_type(run.log)
    reveal_type(td.wrap(run))
    with run as entered:
        reveal_type(entered.diag)


def mlflow_module() -> None:
    run = td.wrap(mlflow)
    reveal_type(run.diag)
    reveal_type(run.log_metrics)


def mlflow_run(given: mlflow.ActiveRun) -> None:
    run = td.wrap(given)
    reveal_type(run.diag)
    reveal_type(run.log_metrics)
    reveal_type(run.info.run_id)


def mlflow_client(given: mlflow.MlflowClient) -> None:
    client = td.wrap(given, run_id="0")
    reveal_type(client.diag)
    reveal_type(client.log_batch)


def trackio_run(given: Run) -> None:
    run = td.wrap(given)
    reveal_type(run.diag)
    reveal_type(run.finish)


def summary_writer(given: SummaryWriter) -> None:
    writer = td.wrap(given)
    reveal_type(writer.diag)
    reveal_type(writer.add_scalar)
    with writer as entered:
        reveal_type(entered.diag)
