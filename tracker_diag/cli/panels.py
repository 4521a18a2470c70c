"""`tracker-diag panels`: our panels in your tracker, by one command; and rules as automations of W&B's."""

from typing import Annotated

import typer

from tracker_diag.cli.refuse import refuse, refusing
from tracker_diag.cli.rules import Which
from tracker_diag.errors import require

panels_app = typer.Typer(help="Save our panels in your tracker, beside your own views.", no_args_is_help=True)

Project = Annotated[str, typer.Argument(metavar="ENTITY/PROJECT", help="The W&B project.")]


@panels_app.command("wandb")
def panels_wandb(project: Project) -> None:
    """A saved view in a W&B project. Once saved it is left alone, unless it is of an older version."""
    from tracker_diag.trackers.wandb.view import save_view

    with refusing():
        entity, name = _parts(project)
        url, written = save_view(entity, name)
    typer.echo(f"{'saved' if written else 'there already'}: {url}")


@panels_app.command("mlflow")
def panels_mlflow(
    experiment: Annotated[str, typer.Argument(help="Name or id of the experiment.")],
    uri: Annotated[str | None, typer.Option(help="Tracking URI; MLflow's own setting by default.")] = None,
) -> None:
    """A saved view in an MLflow experiment; a run that was wrapped makes it by itself."""
    from tracker_diag.trackers.mlflow.view import save_view, view_path

    with refusing():
        client = require("mlflow", "mlflow").MlflowClient(uri)
        experiment_id, written = save_view(client, experiment)
    server = client.tracking_uri if client.tracking_uri.startswith("http") else "<address of the MLflow server>"
    typer.echo(f"{'saved' if written else 'there already'}: {server.rstrip('/')}{view_path(experiment_id)}")


@panels_app.command("wandb-report")
def report_wandb(
    run: Annotated[str, typer.Argument(metavar="ENTITY/PROJECT/RUN", help="A finished run in W&B.")],
) -> None:
    """A report in W&B on one finished run: the verdict, and the charts that it rests on.

    Replies of W&B's own servers to this have not been seen by us: look at the report afterwards.
    """
    from tracker_diag.runs.diagnose import diagnose
    from tracker_diag.trackers.wandb.report import save_report

    entity, project, run_id = _parts(run, "ENTITY/PROJECT/RUN")
    with refusing():
        found = diagnose(f"wandb:{run}")
        keys = {key for row in found.run.rows.values() for key in row}
        url = save_report(entity, project, run_id, found.summary, keys)
    typer.echo(f"saved: {url}")


def export_wandb(
    project: Project,
    rules: Which = None,
) -> None:
    """Make W&B tell Slack when a rule fires: an automation for each rule at warn or above. Needs a paid plan of W&B's.

    Replies of W&B's own servers to this have not been seen by us: look at the project's automations afterwards.
    """
    from tracker_diag.rules.loader import chosen
    from tracker_diag.trackers.wandb.automations import export

    with refusing():
        entity, name = _parts(project)
        done = export(entity, name, [rule for rule in chosen(rules) if rule.severity != "info"])
    typer.echo(f"{len(done)} automations are in {project}: {', '.join(done)}")


def _parts(given: str, form: str = "ENTITY/PROJECT") -> list[str]:
    parts = given.split("/")
    if not all(parts) or len(parts) != len(form.split("/")):
        refuse(f"{given!r} given, expected {form}")
    return parts
