"""`tracker-diag compare`: runs held against a reference."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from tracker_diag.cli.refuse import refuse, refusing, save
from tracker_diag.report.console import Terminal

SEEDS = ","
"""Between the sources of one arm."""


def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C]...",
            help="Sources as `diagnose` takes them; the first is the reference. Seeds of one arm stand with commas: "
            "A1,A2 B1,B2.",
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page with the curves.")] = None,
    framework: Annotated[str | None, typer.Option(help="Whose metric names these are, if not recognised.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say it in one line.")] = False,
) -> None:
    """Compare runs: which slices and metrics parted, when, by how much; which settings and incidents differ."""
    from tracker_diag.runs.compare import compare as hold
    from tracker_diag.runs.compared import headline, on_screen, page
    from tracker_diag.runs.diagnose import diagnose
    from tracker_diag.trackers.open import read_run

    groups = [_seeds(source) for source in sources]
    if sum(map(len, groups)) < 2:
        refuse("one run given, expected two or more: compare A B")
    with refusing():
        screen = Console(stderr=True)
        with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
            task = bar.add_task("reading", total=float(sum(map(len, groups))))
            given = []
            for group in groups:
                runs = []
                for source in group:
                    runs.append(diagnose(read_run(source), framework=framework))
                    bar.advance(task)
                given.append(runs)
        found = hold(*given)
        if html:
            save("--html", html, page(found))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        Terminal().print(headline(found) if quiet else on_screen(found))


def _seeds(source: str) -> list[str]:
    """The sources of one arm; a file whose name has a comma is one source."""
    if Path(source).exists():
        return [source]
    return [part.strip() for part in source.split(SEEDS) if part.strip()]
