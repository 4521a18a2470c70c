"""`tracker-diag audit`: what the reward pays for that it should not; `traces`: how tools do in agents' traces."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tracker_diag.cli.options import AsJson, Html, Which, refusing, save, show


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
    show(result, on_screen, as_json=as_json)


def traces(
    source: Annotated[
        str,
        typer.Argument(
            help="A file of OpenTelemetry spans (OTLP or SDK JSON), Weave calls, traces of MLflow or another tracker, "
            "or messages; or mlflow:<run id or experiment>[@tracking uri], or <tracker>:<project> of another tracker."
        ),
    ],
    *,
    run: Annotated[
        str | None, typer.Option(help="The training run, as `diagnose` takes it; its clock gives the steps.")
    ] = None,
    as_json: AsJson = False,
    samples: Annotated[Path | None, typer.Option(help="Write the sample records: JSON Lines, for `audit`.")] = None,
    essential: Annotated[
        list[str] | None, typer.Option(help="A tool without which tasks cannot be solved; repeat it for several.")
    ] = None,
    rules: Which = None,
) -> None:
    """Show how each tool does in traces of agents."""
    from tracker_diag.rules.loader import chosen
    from tracker_diag.samples.traces.report import read_traces
    from tracker_diag.samples.traces.shown import on_screen
    from tracker_diag.trackers.open import read_run

    with refusing():
        trained = read_run(run) if run else None
        report = read_traces(
            source,
            trained,
            rules=chosen(rules),
            catalog=False,
            essential_tools=essential or (),
            texts=samples is not None,
        )
        if samples:
            lines = [json.dumps(record, default=repr) for record in report.records]
            save("--samples", samples, "".join(f"{line}\n" for line in lines))
            typer.echo(f"--samples: {len(lines)} rows in {samples}", err=True)
    show(report, on_screen, as_json=as_json)
