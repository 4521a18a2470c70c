"""`tracker-diag traces`: how tools do in traces of agents, what the rules say, and data made of the traces."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tracker_diag.cli.options import AsJson, Which
from tracker_diag.cli.refuse import refuse, refusing, save
from tracker_diag.report.console import Terminal


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
    preferences: Annotated[
        Path | None, typer.Option(help="Write pairs of the same prompt, chosen and rejected: JSON Lines.")
    ] = None,
    sft: Annotated[Path | None, typer.Option(help="Write what was solved, prompt and completion: JSON Lines.")] = None,
    write_back: Annotated[
        bool, typer.Option("--write-back", help="Tag MLflow's traces with diag.rules and diag.marks.")
    ] = False,
    essential: Annotated[
        list[str] | None, typer.Option(help="A tool without which tasks cannot be solved; repeat it for several.")
    ] = None,
    rules: Which = None,
) -> None:
    """Show how each tool does in traces of agents."""
    from tracker_diag.rules.loader import chosen
    from tracker_diag.samples.traces.pairs import demonstrations
    from tracker_diag.samples.traces.pairs import preferences as pairs
    from tracker_diag.samples.traces.report import read_traces
    from tracker_diag.samples.traces.shown import on_screen
    from tracker_diag.trackers.mlflow.traces import write_back as write
    from tracker_diag.trackers.open import read_run

    if write_back and not source.startswith("mlflow:"):
        refuse("--write-back: expected a source mlflow:...; other traces are files or cannot be tagged")
    with refusing():
        trained = read_run(run) if run else None
        report = read_traces(
            source,
            trained,
            rules=chosen(rules),
            catalog=False,
            essential_tools=essential or (),
            texts=any((samples, preferences, sft)),
        )
        for file, option, rows in (
            (samples, "--samples", lambda: report.records),
            (preferences, "--preferences", lambda: pairs(report.records)),
            (sft, "--sft", lambda: demonstrations(report.records)),
        ):
            if file:
                _write(file, option, rows())
        if write_back:
            write(source.removeprefix("mlflow:"), report.source, report.tags)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=1))
    else:
        Terminal().print(on_screen(report))


def _write(file: Path, option: str, rows: Iterable[Mapping[str, Any]]) -> None:
    text = [json.dumps(row, default=repr) for row in rows]
    save(option, file, "".join(f"{line}\n" for line in text))
    typer.echo(f"{option}: {len(text)} rows in {file}", err=True)
