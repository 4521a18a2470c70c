"""`tracker-diag export`: what leaves for people and trackers: a postmortem, a checklist, panels, a report."""

import json
from pathlib import Path
from typing import Annotated, cast

import typer

from tracker_diag.cli.diagnose import judged
from tracker_diag.cli.options import AsJson, Framework, Run, refuse, refusing
from tracker_diag.errors import require
from tracker_diag.report.console import near

export_app = typer.Typer(help="Write a postmortem, a checklist, panels or a report.", no_args_is_help=True)

PANELS = "wandb:<entity>/<project> or mlflow:<experiment name or id>[@tracking uri]"


@export_app.command()
def postmortem(
    run: Run,
    *,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; by default one in TRACKER_DIAG_DIR or .tracker_diag.")
    ] = None,
    framework: Framework = None,
) -> None:
    """Write a folder on how a run ended.

    It says what ended the run, what broke first, its last windows, and from what to repeat it.
    """
    from tracker_diag.health import folder
    from tracker_diag.runs.postmortem.folder import NAME, PAGE, write
    from tracker_diag.runs.postmortem.read import remains_of
    from tracker_diag.trackers.delivery.journal import file_name

    with refusing():
        remains = remains_of(judged(run, framework=framework))
    place = out or folder() / NAME / file_name(Path(run.partition("@")[0] if run.startswith("mlflow:") else run).name)
    try:
        made = write(remains, place)
    except OSError as error:
        refuse(f"{place}: cannot be written: {error.strerror or error}")
    typer.echo(near(made / PAGE))


@export_app.command()
def checklist(
    when: Annotated[str, typer.Argument(metavar="before|during|after", help="Before, during or after training.")],
    run: Run,
    *,
    as_json: AsJson = False,
    framework: Framework = None,
) -> None:
    """Print a checklist, answered from a run's record.

    It is Markdown for a pull request. What the record cannot answer stays as a question.
    """
    from tracker_diag.runs.postmortem.checklist import When, answers, page, to_json

    wanted = cast("When", when)
    with refusing():
        diagnosis = judged(run, framework=framework)
        given = answers(wanted, diagnosis)
    source = diagnosis.run.source
    typer.echo(json.dumps(to_json(wanted, source, given), indent=1) if as_json else page(wanted, source, given))


@export_app.command()
def panels(project: Annotated[str, typer.Argument(metavar="PROJECT", help=f"Where to: {PANELS}.")]) -> None:
    """Save a view with our panels in W&B or MLflow.

    It is saved once, and again only when ours is newer. A wrapped run makes MLflow's by itself.
    """
    tracker, _, name = project.partition(":")
    with refusing():
        if tracker == "mlflow" and name:
            where, written = _mlflow_view(name)
        elif tracker == "wandb":
            from tracker_diag.trackers.wandb.view import save_view

            where, written = save_view(*_parts(project, "wandb:ENTITY/PROJECT"))
        else:
            refuse(f"{project!r} given, expected {PANELS}")
    typer.echo(f"{'saved' if written else 'there already'}: {where}")


@export_app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="wandb:ENTITY/PROJECT/RUN", help="A finished run in W&B.")],
) -> None:
    """Save a report in W&B on one finished run.

    It has the decision and the charts that it rests on. We have tested it without W&B's own servers: check the report.
    """
    from tracker_diag.trackers.wandb.view import save_report

    entity, project, run_id = _parts(run, "wandb:ENTITY/PROJECT/RUN")
    with refusing():
        result = judged(run)
        keys = {key for row in result.run.rows.values() for key in row}
        url = save_report(entity, project, run_id, result.summary, keys)
    typer.echo(f"saved: {url}")


def _mlflow_view(name: str) -> tuple[str, bool]:
    from tracker_diag.trackers.mlflow.read import split
    from tracker_diag.trackers.mlflow.view import save_view, view_path

    experiment, uri = split(name)
    client = require("mlflow", "mlflow").MlflowClient(uri or None)
    experiment_id, written = save_view(client, experiment)
    server = client.tracking_uri if client.tracking_uri.startswith("http") else "<address of the MLflow server>"
    return f"{server.rstrip('/')}{view_path(experiment_id)}", written


def _parts(given: str, form: str) -> list[str]:
    """The names in `given`, which has the form `wandb:ENTITY/PROJECT`, or with a run."""
    tracker, _, name = given.partition(":")
    parts = name.split("/")
    if tracker != "wandb" or not all(parts) or len(parts) != len(form.split("/")):
        refuse(f"{given!r} given, expected {form}")
    return parts
