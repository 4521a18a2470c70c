"""`tracker-diag postmortem` and `checklist`: what a run that is over leaves to people."""

import json
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import Progress

from tracker_diag.cli.refuse import refuse, refusing
from tracker_diag.report.console import near
from tracker_diag.runs.diagnose import Diagnosis

Source = Annotated[str, typer.Argument(metavar="RUN", help="A run, as `diagnose` takes it.")]
Framework = Annotated[str | None, typer.Option(help="Whose metric names these are, if not recognised.")]


def postmortem(
    run: Source,
    *,
    out: Annotated[
        Path | None, typer.Option(help="The folder to make; one in .tracker_diag/postmortem by default.")
    ] = None,
    framework: Framework = None,
) -> None:
    """Write down in one folder what ended a run, what broke first, its last windows, and from what to repeat it."""
    from tracker_diag.runs.postmortem.folder import NAME, PAGE, write
    from tracker_diag.runs.postmortem.read import remains_of
    from tracker_diag.trackers.delivery.journal import file_name, folder

    with refusing():
        remains = remains_of(_read(run, framework))
    place = out or folder() / NAME / file_name(Path(run).name)
    try:
        made = write(remains, place)
    except OSError as error:
        refuse(f"{place}: cannot be written: {error.strerror or error}")
    typer.echo(near(made / PAGE))


def checklist(
    when: Annotated[str, typer.Argument(metavar="before|during|after", help="Which of the lists.")],
    run: Source,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as JSON.")] = False,
    framework: Framework = None,
) -> None:
    """Answer a checklist from a run's own record, as Markdown for a pull request; the rest stays as questions."""
    from tracker_diag.runs.postmortem.checklist import When, answers, page, to_json

    with refusing():
        found = answers(cast("When", when), _read(run, framework))
    typer.echo(json.dumps(to_json(found), indent=1) if as_json else page(found))


def _read(source: str, framework: str | None) -> Diagnosis:
    from tracker_diag.runs.diagnose import diagnose
    from tracker_diag.trackers.open import read_run

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("reading", total=1.0)
        return diagnose(read_run(source, lambda share: bar.update(task, completed=share)), framework=framework)
