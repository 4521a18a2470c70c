"""`tracker-diag audit`: what the reward of samples pays for that it should not, and prompts of its evaluation."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tracker_diag.cli.options import AsJson, Html, Which
from tracker_diag.cli.refuse import refusing, save
from tracker_diag.report.console import Terminal


def audit(
    samples: Annotated[
        Path,
        typer.Argument(
            help="JSON Lines or Parquet, one sample a row: reward, and any of components, prompt, completion, group, "
            "success, verifier, human, judge, length, calls, step. `traces --samples` writes such a file."
        ),
    ],
    *,
    evaluation: Annotated[
        Path | None, typer.Option("--eval", help="Prompts of the evaluation, to find among the samples.")
    ] = None,
    as_json: AsJson = False,
    html: Html = None,
    rules: Which = None,
) -> None:
    """Find what the reward pays for that it should not.

    The page of --html shows texts of samples; --json has none.
    """
    from tracker_diag.rules.loader import chosen
    from tracker_diag.samples.audit.audit import audit as check
    from tracker_diag.samples.audit.shown import on_screen, page

    with refusing():
        result = check(samples, evaluation, rules=chosen(rules), catalog=False)
        if html:
            save("--html", html, page(result))
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=1))
    else:
        Terminal().print(on_screen(result))
