"""The command line: `tracker-diag demo | replay`."""

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from tracker_diag.errors import DiagError
from tracker_diag.report.terminal import verdict
from tracker_diag.rules.triage import SEVERITIES, Summary

app = typer.Typer(
    help="See which slice of an agent-RL run goes unstable, which link broke first, and what to do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class FailOn(str, Enum):
    """Severities that `--fail-on` takes."""

    warn = "warn"
    error = "error"


@app.callback()
def main() -> None:
    """The entry point; it has no options of its own."""


@app.command()
def demo(
    arm: Annotated[
        str, typer.Option(help="What goes wrong: healthy, constrained, widen, drift-aware, collapse, stale-narrow.")
    ] = "collapse",
    seed: Annotated[int, typer.Option(help="Seed of prompts, tool and sampling.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Training steps; things go wrong from step 80 on.")] = 300,
    out: Annotated[
        Path, typer.Option(help="Folder for MLflow's and W&B's files, tokens, findings and verdict.")
    ] = Path("demo-out"),
) -> None:
    """Train a small tool-using agent on the CPU, with the diagnostics in MLflow and W&B."""
    console = Console(stderr=True)
    try:
        from tracker_diag.demo.grpo import ARMS
        from tracker_diag.demo.run import run_demo
    except ImportError as error:
        _refuse(f'{error.name} is not installed: pip install "tracker-diag[demo]"')
    if arm not in ARMS:
        _refuse(f"--arm: {arm!r} given, expected one of {', '.join(ARMS)}")
    if out.exists() and not out.is_dir():
        _refuse(f"--out: {out} is a file, expected a folder")
    console.print(f"[bold]{arm}[/], seed {seed}: {ARMS[arm].says}")
    run_demo(arm, seed, steps, out, console)


@app.command()
def replay(
    tokens: Annotated[Path, typer.Argument(help="Token table: Parquet, one row a token.")],
    metrics: Annotated[Path | None, typer.Option(help="The run's own metrics: JSON Lines, one object a step.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="Exit with 1 if a finding of this severity or worse fired.")
    ] = None,
) -> None:
    """Diagnose logged per-token tensors, as if the run were live."""
    from tracker_diag.replay import replay as replay_table

    try:
        summary = replay_table(tokens, metrics)
    except DiagError as error:
        _refuse(str(error))
    _report(summary, as_json=as_json)
    if fail_on and summary.level and SEVERITIES.index(summary.level) >= SEVERITIES.index(fail_on.value):
        raise typer.Exit(1)


def _report(summary: Summary, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary.to_json(), indent=1))
    else:
        Console().print(verdict(summary))


def _refuse(message: str) -> NoReturn:
    typer.echo(f"tracker-diag: {' '.join(message.split())}", err=True)
    raise typer.Exit(2)
