"""`tracker-diag flush`: what is in the journals of runs that ended before all of it was delivered."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tracker_diag.cli.options import refuse
from tracker_diag.trackers.open import held


def flush(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the journals are: TRACKER_DIAG_DIR or .tracker_diag by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds for each journal.")] = 60.0,
    to: Annotated[
        str | None,
        typer.Option(help="Send credentials only to this MLflow server; MLFLOW_TRACKING_URI by default."),
    ] = None,
) -> None:
    """Send its tracker what a run could not send before it ended."""
    from tracker_diag.health import folder as default
    from tracker_diag.trackers.delivery.deliver import deliver

    place = folder or default()
    if not place.exists():
        refuse(f"{place}: no such folder, expected one with journals")
    if to:
        os.environ["MLFLOW_TRACKING_URI"] = to
    whole = True
    for path, outcome, well in deliver(place, seconds, held):
        typer.echo(f"{path.name}: {outcome}")
        whole &= well
    if not whole:
        raise typer.Exit(2)
