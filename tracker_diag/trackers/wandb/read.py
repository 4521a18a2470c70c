"""W&B online runs, through the public API."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError, require
from tracker_diag.trackers.finished import FinishedRun, Gone, Listed, Progress, one_line
from tracker_diag.trackers.keys import clock_of, flat, integer
from tracker_diag.trackers.rows import Rows
from tracker_diag.trackers.tracker import Address
from tracker_diag.trackers.wandb.rows import STEP, Axis
from tracker_diag.trackers.wandb.summary import OF

TIMEOUT = 10
"""Seconds that each request to the server may take."""
PAGE = 200
"""Runs of a project that are asked for at once."""
PROJECT = "<entity>/<project>"
RUN = f"{PROJECT}/<run>"
UNDERWAY = {"running", "pending", "preempting"}


def read_wandb_api(name: str, source: str, progress: Progress | None = None) -> FinishedRun:
    """The run `<entity>/<project>/<run>` on the server that W&B is logged in to, all of its rows."""
    rows, axis = Rows(), Axis()
    with _asking(name, source) as api:
        run = api.run(name)
        for metric, step_metric in definitions_in(run.rawconfig):
            axis.define(metric, step_metric)
        count = max(int(run.lastHistoryStep) + 1, 1)
        for row in run.scan_history():
            axis.put_record(rows, row)
            if progress and isinstance(at := row.get("_step"), int):
                progress(min((at + 1) / count, 1.0))
        for other in api.runs(f"{run.entity}/{run.project}", filters={f"config.{OF}": run.id}):
            for row in other.scan_history():
                axis.put_diagnostics(rows, row)
        axis.note_on(rows)
        return rows.finish(source, dict(flat(run.config, ".")))


def finished_address(name: str, source: str) -> Address:
    """Where the diagnostics of the finished run `<entity>/<project>/<run>` go: a run next to it, the same each time."""
    with _asking(name, source) as api:
        run = api.run(name)
        return Address(
            run=run.id, name=run.name or run.id, project=run.project, entity=run.entity,
            group=getattr(run, "group", None) or "", folder=str(Path.cwd()), mode="online", source=source,
            beside=f"{run.id}-diag-replay",
        )  # fmt: skip


def list_wandb(name: str, source: str, *, project: bool = False) -> list[Listed]:
    """The state of `<entity>/<project>/<run>`, as a list of one, or of all runs of a project, the newest first.

    Runs that the diagnostics keep next to another one are left out of a project.
    """
    with _asking(name, source, PROJECT if project else RUN) as api:
        if not project:
            run = api.run(name)
            return [_listed(run, int(run.lastHistoryStep))]
        # Newer clients would ask for the summary of each run by itself.
        whole = {"lazy": False} if "lazy" in signature(api.runs).parameters else {}
        runs = (run for run in api.runs(name, per_page=PAGE, order="-created_at", **whole) if OF not in run.config)
        return [_listed(run, integer(run.summary.get(STEP))) for run in runs]


def _listed(run: Any, last: int | None) -> Listed:
    """The state of `run`, whose last row is number `last`; None or below 0 if it has none."""
    logged = run.summary.get("_timestamp")
    return Listed(
        f"wandb:{run.entity}/{run.project}/{run.id}",
        run.name or run.id,
        f"{last} {run.state} {logged}" if last is not None and last >= 0 else "",
        "" if run.state in UNDERWAY else run.state,
        float(logged) if isinstance(logged, int | float) else clock_of({"timestamp": run.created_at}),
    )


@contextmanager
def _asking(name: str, source: str, form: str = RUN) -> Generator[Any]:
    """W&B's public API, for what is called `name`; what it raises inside is a SourceError."""
    require("wandb", "wandb")
    import wandb

    if len([part for part in name.split("/") if part]) != len(form.split("/")):
        raise SourceError(f"{source}: expected wandb:{form}")
    try:
        yield wandb.Api(timeout=TIMEOUT)
    except SourceError:
        raise
    except Exception as error:  # the client raises its own errors, those of its service and of pydantic
        text = one_line(error)
        if "did not respond in time" in text:  # the client speaks of its own service, which waits for the server
            address = re.search(r"https?://\S+[^\s:.,]", text)
            text = f"no answer from {address[0] if address else 'the server'} within {TIMEOUT} s"
        raise (Gone if text.startswith("Could not find run") else SourceError)(f"{source}: {text}") from error


def definitions_in(config: dict[str, Any]) -> list[tuple[str, str]]:
    """The run's `define_metric`s: the server keeps them as numbered fields of W&B's MetricRecord, 5 an index from 1."""
    settings = config.get("_wandb", {})
    metrics = settings.get("value", settings).get("m", []) if isinstance(settings, dict) else []
    definitions = []
    for metric in metrics:
        index = metric.get("5", 0)
        step_metric = metric.get("4") or (metrics[index - 1].get("1") if 0 < index <= len(metrics) else "")
        if step_metric:
            definitions.append((metric.get("2") or metric.get("1", ""), step_metric))
    return definitions
