"""The trackers that are underway in this process, for an integration whose framework has started them."""

import sys
from typing import Any

from tracker_diag.backends.base import Backend


def active_backends() -> list[Backend]:
    """One backend for each run that is underway here: that of W&B, and the active one of MLflow.

    Looks only at libraries that are loaded already, and starts nothing.
    """
    found: list[Backend] = []
    wandb: Any = sys.modules.get("wandb")
    if wandb is not None and getattr(wandb, "run", None) is not None:
        from tracker_diag.backends.wandb import WandbBackend

        found.append(WandbBackend(wandb.run))
    mlflow: Any = sys.modules.get("mlflow")
    if mlflow is not None and (run := mlflow.active_run()) is not None:
        from tracker_diag.backends.mlflow import MlflowBackend

        found.append(MlflowBackend(mlflow.MlflowClient(), run.info.run_id))
    return found
