"""`tracker-diag demo`: a real run of the small agent, watched in MLflow and W&B side by side."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from tracker_diag.attach.wrap import wrap
from tracker_diag.demo.grpo import ARMS, TrainingStep, train
from tracker_diag.demo.leads import Lead, leads
from tracker_diag.demo.world import PROMPT_LENGTH
from tracker_diag.errors import require
from tracker_diag.health import own_folder, private
from tracker_diag.report.bar import bar
from tracker_diag.rules.triage import Summary
from tracker_diag.trackers.files.write import JsonlTracker
from tracker_diag.trackers.mlflow.view import view_path
from tracker_diag.trackers.mlflow.write import MlflowTracker

LEAVES = ("mlflow.db", "mlartifacts", "wandb", "findings.jsonl", "metrics.jsonl", "tokens.parquet", "verdict.json")


def run_demo(arm: str, seed: int, steps: int, out: Path, console: Console) -> None:
    """Train `arm` for `steps` steps, and leave in `out` the files of `LEAVES`, replacing earlier ones."""
    mlflow, wandb = require("mlflow", "demo"), require("wandb", "demo")
    for name in ("alembic", "mlflow"):
        logging.getLogger(name).setLevel(logging.WARNING)
    _clear(out)

    mlflow.set_tracking_uri(f"sqlite:///{out.absolute() / 'mlflow.db'}")
    experiment = mlflow.create_experiment("tracker-diag demo", (out.absolute() / "mlartifacts").as_uri())
    config = {"arm": arm, "seed": seed, "steps": steps}
    name = f"{arm}-{seed}"
    settings = wandb.Settings(mode="offline", silent=True, x_disable_stats=True)
    with (
        mlflow.start_run(experiment_id=experiment, run_name=name) as mlflow_run,
        wandb.init(
            project="tracker-diag-demo", name=name, dir=out.absolute(), config=config, settings=settings
        ) as wandb_run,
    ):
        mlflow.log_params(config)
        also = [MlflowTracker(mlflow.MlflowClient(), mlflow_run.info.run_id), JsonlTracker(out)]
        run, tokens = wrap(wandb_run, also=also), list[pa.Table]()
        with bar(console) as progress:
            task = progress.add_task("training", total=steps, unit="steps")
            for step in progress.track(train(ARMS[arm], seed, steps), task_id=task):
                run.diag.observe(**step.tensors)
                run.log(step.metrics, step=step.step)
                mlflow.log_metrics(step.metrics, step=step.step, synchronous=False)
                tokens.append(_tokens_of(step))
        parquet.write_table(pa.concat_tables(tokens), out / "tokens.parquet", row_group_size=1 << 16)
        summary = run.diag.close()
        mlflow.flush_async_logging()
    with (out / "metrics.jsonl").open() as lines:
        compared = leads(json.loads(line) for line in lines)
    steps_of = {name: lead.step for name, lead in compared.items()}
    private(out / "verdict.json", json.dumps(summary.to_json() | {"leads": steps_of}, indent=1) + "\n")

    _show(console, summary, compared)
    store = f"sqlite:///{out / 'mlflow.db'}"
    console.print("\nSee it in MLflow:", style="dim")
    console.print(f"  mlflow server --backend-store-uri {store}", style="bold", soft_wrap=True)
    console.print(f"  then open http://127.0.0.1:5000{view_path(experiment)}", style="dim", soft_wrap=True)


def _tokens_of(step: TrainingStep) -> pa.Table:
    """All tokens of `step` but the padding, one row a token: of the prompt, the model and the tool."""
    rollout = step.rollout
    real = rollout.is_response.numpy().copy()
    real[:, :PROMPT_LENGTH] = True
    sequence, position = np.nonzero(real)
    columns = {
        "step": np.full(len(sequence), step.step, np.int32),
        "sequence": sequence.astype(np.int32),
        "position": position.astype(np.int32),
        "is_model": rollout.is_model.numpy()[real],
        "logprob": step.logprobs.numpy()[real],
        "old_logprob": rollout.sampler_logprobs.numpy()[real],
        "ref_logprob": step.ref_logprobs.numpy()[real],
    }
    return pa.table(columns)


def _show(console: Console, summary: Summary, compared: dict[str, Lead]) -> None:
    """How much later the same alarm goes off on each signal that people usually watch."""
    first = summary.first_break
    title = "When the same alarm goes off on other signals"
    title += f", against {first.rule.id} at step {first.fired}:" if first else ":"
    table = RichTable(box=None, padding=(0, 2, 0, 0))
    for column in ("signal", "alarm at step", "later by"):
        table.add_column(column, justify="left" if column == "signal" else "right")
    for name, lead in compared.items():
        later = "" if first is None or first.fired is None or lead.step is None else f"{lead.step - first.fired:+d}"
        table.add_row(name, lead.note if lead.step is None else str(lead.step), later)
    console.print(Text(f"\n{title}", style="dim"), table, sep="\n")


def _clear(out: Path) -> None:
    own_folder(out)
    for name in LEAVES:
        left = out / name
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
