"""MLflow: a run's full history, from any tracking URI."""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

from tracker_diag.errors import SourceError, require
from tracker_diag.scrub import without_password
from tracker_diag.trackers.finished import FinishedRun, Gone, Listed, Progress, one_line
from tracker_diag.trackers.keys import plain
from tracker_diag.trackers.mlflow.listen import SYSTEM
from tracker_diag.trackers.rows import Rows

LARGEST = sys.float_info.max
"""What MLflow stores for infinity."""
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
"""If a server does not answer within seconds, that is an error; MLflow would wait for minutes."""
FINDINGS, CONTEXT, FINDINGS_TAG = "diag/findings.json", "diag/context.json", "diag.alert.state"
ACKNOWLEDGED = "diag.acknowledged."
"""Begins the tags by which a person says that she knows of what a rule has found; see `rules.acknowledged`."""
UNDERWAY = {"RUNNING", "SCHEDULED"}
MISSING = "RESOURCE_DOES_NOT_EXIST"
ELSEWHERE = "add @<tracking uri> to the source, or set MLFLOW_TRACKING_URI"
"""What to do if MLflow's store is not where it is looked for."""
PAGE = 1000
"""Runs of an experiment that are asked for at once."""


def split(name: str) -> tuple[str, str]:
    """What `<run or experiment>[@tracking uri]` names, and the URI; without one it is that which MLflow would use."""
    # An address may hold another "@", before its host.
    match = re.fullmatch(r"(.*?)@(\w+:.*)", name) or re.fullmatch("(.*)@(.*)", name)
    return (match[1], match[2]) if match else (name, "")


def read_mlflow(name: str, source: str, progress: Progress | None = None) -> FinishedRun:
    """The run `<run id>[@tracking uri]`."""
    rows = Rows()
    with asking(name, source, "run id") as (client, run_id, _):
        run = client.get_run(run_id)
        keys = sorted(key for key in run.data.metrics if not key.startswith(SYSTEM))
        if of_machine := len(run.data.metrics) - len(keys):
            rows.note(f"{of_machine} metrics under {SYSTEM} have steps of their own: left out")
        stepless: list[str] = []
        for at, key in enumerate(keys):
            history = client.get_metric_history(run_id, key)
            counted = len(history) > 1 and {point.step for point in history} == {0}
            if counted:
                stepless.append(key)
                history = sorted(history, key=lambda point: point.timestamp)
            for count, point in enumerate(history):
                step = count if counted else point.step
                value = math.copysign(math.inf, point.value) if abs(point.value) >= LARGEST else point.value
                rows.put_row(step, {key: value}, f"step {step}", point.timestamp / 1000)
            if progress:
                progress((at + 1) / len(keys))
        if stepless:
            many = f"{len(stepless)} metrics were logged without steps, first {stepless[0]!r}"
            rows.note(f"{many}: their values are counted")
        acknowledged = {key: value for key, value in run.data.tags.items() if key.startswith(ACKNOWLEDGED)}
        finished = rows.finish(source, {key: plain(value) for key, value in run.data.params.items()} | acknowledged)
        left = _left(client, run)
        findings = tuple(json.loads(left[FINDINGS])["findings"]) if FINDINGS in left else ()
        ended = None if run.info.status in UNDERWAY else run.info.status.lower()
        return replace(finished, findings=findings, context=left.get(CONTEXT), ended=ended)


def list_mlflow(name: str, source: str, *, project: bool = False) -> list[Listed]:
    """The state of `<run id>[@tracking uri]`, as a list of one, or of all runs of an experiment, by name or id.

    Runs of an experiment that are deleted are left out.
    """
    with asking(name, source, "experiment name or id" if project else "run id") as (client, wanted, uri):
        if project:
            experiment = experiment_called(client, wanted, source).experiment_id
            return [_listed(run, uri) for run in paged(client.search_runs, [experiment], max_results=PAGE)]
        run = client.get_run(wanted)
        if run.info.lifecycle_stage == "deleted":
            raise Gone(f"{source}: the run was deleted")
        return [_listed(run, uri)]


def paged(search: Callable[..., Any], *given: Any, **named: Any) -> Iterator[Any]:
    """All that a `search` of MLflow finds, page by page."""
    page = search(*given, **named)
    yield from page
    while page.token:
        page = search(*given, **named, page_token=page.token)
        yield from page


def experiment_called(client: Any, wanted: str, source: str) -> Any:
    """The experiment with this name or id."""
    experiment = client.get_experiment_by_name(wanted)
    experiment = experiment or (client.get_experiment(wanted) if wanted.isdecimal() else None)
    if experiment is None or experiment.lifecycle_stage == "deleted":
        raise SourceError(f"{source}: no experiment {wanted!r}")
    return experiment


def _listed(run: Any, uri: str) -> Listed:
    last = [(metric.key, metric.step, metric.timestamp, str(metric.value)) for metric in run.data._metric_objs]  # noqa: SLF001  # `metrics` has values alone
    info, tags = run.info, run.data.tags
    times = [at for _, _, at, _ in last] or [info.start_time or 0]
    over = "" if info.status in UNDERWAY else info.status.lower()
    return Listed(
        f"mlflow:{info.run_id}{f'@{uri}' if uri else ''}",
        info.run_name or info.run_id,
        sha256(repr((sorted(last), info.status)).encode()).hexdigest() if last else "",
        over,
        max(*times, info.end_time or 0 if over else 0) / 1000,
        last=max((step for key, step, _, _ in last if not key.startswith(SYSTEM)), default=0) or None,
        state=tags.get(FINDINGS_TAG, ""),
        first_break=tags.get("diag.first_break", ""),
    )


@contextmanager
def asking(name: str, source: str, form: str) -> Generator[tuple[Any, str, str]]:
    """A client of the store that `name` names, or MLflow would use; what is asked for there; and the URI as given.

    What is raised inside is a SourceError.
    """
    wanted, given = split(name)
    if not wanted:
        raise SourceError(f"{source}: expected mlflow:<{form}>[@tracking uri]")
    mlflow: Any = require("mlflow", "mlflow")
    uri = given or mlflow.get_tracking_uri()
    with _patient(_local(uri, source)):
        try:
            yield mlflow.MlflowClient(tracking_uri=uri), wanted, given
        except SourceError:
            raise
        except Exception as error:  # each kind of store raises what its library has
            text = without_password(one_line(error))
            if "failed with exception" in text and (cause := re.search(r"Caused by (\w+)", str(error))):
                text = f"no answer from {without_password(uri)} ({cause[1]})"
            raise (Gone if getattr(error, "error_code", "") == MISSING else SourceError)(f"{source}: {text}") from error


def _left(client: Any, run: Any) -> dict[str, str]:
    """What the diagnostics left in the run, by path: their record of the context, and at its end the findings."""
    if FINDINGS_TAG not in run.data.tags and not any(key.startswith("diag/") for key in run.data.metrics):
        return {}
    run_id = run.info.run_id
    there = {artifact.path for artifact in client.list_artifacts(run_id, FINDINGS.partition("/")[0])}
    with TemporaryDirectory() as folder:
        return {
            path: Path(client.download_artifacts(run_id, path, folder)).read_text(encoding="utf-8")
            for path in (FINDINGS, CONTEXT)
            if path in there
        }


def _local(uri: str, source: str) -> bool:
    """Whether `uri` is a folder; MLflow would make one, or a database, where there is none."""
    parts = urlsplit(uri)
    file = Path(unquote(uri.removeprefix("sqlite:///").partition("?")[0]))
    if parts.scheme == "sqlite" and not file.is_file():
        raise SourceError(f"{source}: no SQLite file {file}; {ELSEWHERE}")
    folder = Path(unquote(parts.path) if parts.scheme else uri)
    is_folder = parts.scheme in {"", "file"}
    if is_folder and not folder.is_dir():
        raise SourceError(f"{source}: no folder {folder}; {ELSEWHERE}")
    return is_folder


@contextmanager
def _patient(folder: bool) -> Generator[None, None, None]:
    """Short waits for a server, and leave to read an MLflow folder, unless the environment says otherwise."""
    wanted = PATIENCE | ({"MLFLOW_ALLOW_FILE_STORE": "true"} if folder else {})
    mine = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name in mine:
            os.environ.pop(name, None)
