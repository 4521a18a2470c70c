"""`tracker-diag audit`: what the reward of samples pays for that it should not, and prompts that are met twice."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tracker_diag.cli.refuse import refusing, save
from tracker_diag.cli.rules import Which
from tracker_diag.report.console import Terminal


def audit(
    samples: Annotated[
        Path,
        typer.Argument(
            help="JSON Lines or Parquet, a sample each: reward, and any of components, prompt, completion, group, "
            "success, verifier, human, judge, length, calls, step. `traces --samples` writes such a file."
        ),
    ],
    *,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Prompts of the evaluation, which should not be among the samples'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, without texts.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained page with histograms and samples to read, with texts.")
    ] = None,
    rules: Which = None,
) -> None:
    """Audit samples: the reward against labels and parts, what it pays for, what to read."""
    from tracker_diag.rules.loader import chosen
    from tracker_diag.samples.audit.audit import audit as look
    from tracker_diag.samples.audit.shown import on_screen, page

    with refusing():
        found = look(samples, evaluation, rules=chosen(rules), catalog=False)
        if html:
            save("--html", html, page(found))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        Terminal().print(on_screen(found))
