"""`tracker-diag compare`: runs against a reference."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tracker_diag.cli.diagnose import judged
from tracker_diag.cli.options import AsJson, Framework, Html, Quiet, refuse, refusing, save
from tracker_diag.report.console import Terminal


def compare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C]...",
            help="Runs as `diagnose` takes them; the first is the reference. Commas join seeds: A1,A2 B1,B2.",
        ),
    ],
    *,
    as_json: AsJson = False,
    html: Html = None,
    framework: Framework = None,
    quiet: Quiet = False,
) -> None:
    """Show where and when runs differ from a reference.

    It lists slices, metrics, settings and incidents that differ, and by how much.
    """
    from tracker_diag.runs.compare import compare as against_reference
    from tracker_diag.runs.compare_page import page
    from tracker_diag.runs.compared import headline, on_screen

    groups = [_seeds(source) for source in sources]
    if sum(map(len, groups)) < 2:
        refuse("one run given, expected two or more: compare A B")
    with refusing():
        arms = [[judged(it, framework=framework) for it in group] for group in groups]
        result = against_reference(*arms)
        if html:
            save("--html", html, page(result))
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=1))
    else:
        Terminal().print(headline(result) if quiet else on_screen(result), soft_wrap=quiet)


def _seeds(source: str) -> list[str]:
    """The sources of one arm; a file whose name has a comma is one source."""
    if Path(source).exists():
        return [source]
    return [part.strip() for part in source.split(",") if part.strip()]
