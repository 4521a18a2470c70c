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
    from tracker_diag.backends.wandb_view import save_view

    with refusing():
        url, written = save_view(*_parts(project))
    typer.echo(f"{'saved' if written else 'there already'}: {url}")


@panels_app.command("mlflow")
def panels_mlflow(
    experiment: Annotated[str, typer.Argument(help="Name or id of the experiment.")],
    uri: Annotated[str | None, typer.Option(help="Tracking URI; MLflow's own setting by default.")] = None,
) -> None:
    """A saved view in an MLflow experiment; a run that was wrapped makes it by itself."""
    from tracker_diag.backends.mlflow_view import save_view, view_path

    with refusing():
        client = require("mlflow", "mlflow").MlflowClient(uri)
        experiment_id, written = save_view(client, experiment)
    server = client.tracking_uri if client.tracking_uri.startswith("http") else "<address of the MLflow server>"
    typer.echo(f"{'saved' if written else 'there already'}: {server.rstrip('/')}{view_path(experiment_id)}")


def export_wandb(
    project: Project,
    rules: Which = None,
) -> None:
    """Make W&B tell Slack when a rule fires: an automation for each rule at warn or above. Needs a paid plan of W&B's.

    Replies of W&B's own servers to this have not been seen by us: look at the project's automations afterwards.
    """
    from tracker_diag.backends.wandb_automations import export
    from tracker_diag.rules.loader import chosen

    with refusing():
        done = export(*_parts(project), [rule for rule in chosen(rules) if rule.severity != "info"])
    typer.echo(f"{len(done)} automations are in {project}: {', '.join(done)}")


def _parts(project: str) -> tuple[str, str]:
    entity, _, name = project.partition("/")
    if not entity or not name or "/" in name:
        refuse(f"{project!r} given, expected ENTITY/PROJECT")
    return entity, name
