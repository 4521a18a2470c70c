"""The command line: one file for each command or group of commands."""

import os
from importlib.metadata import version
from typing import Annotated

import typer

from tracker_diag.cli.compare import compare
from tracker_diag.cli.demo import demo
from tracker_diag.cli.diagnose import diagnose
from tracker_diag.cli.export import export_app
from tracker_diag.cli.flush import flush
from tracker_diag.cli.integrations import integrations
from tracker_diag.cli.mcp import mcp
from tracker_diag.cli.preflight import preflight
from tracker_diag.cli.replay import replay
from tracker_diag.cli.rules import rules_app
from tracker_diag.cli.samples import audit, traces
from tracker_diag.cli.skill import skill_app
from tracker_diag.cli.watch import watch

app = typer.Typer(
    help="See which slice of an agent-RL run becomes unstable, which part of training broke first, and what to do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it takes `[@tracking uri]` in a help text for markup, and drops it or crashes
    context_settings={"max_content_width": 120},
)
for command in (demo, preflight, diagnose, replay, compare, watch, traces, audit, flush, integrations, mcp):
    app.command()(command)
app.add_typer(rules_app, name="rules")
app.add_typer(export_app, name="export")
app.add_typer(skill_app, name="skill")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"tracker-diag {version('tracker-diag')}")
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """The entry point."""
    # MLflow draws a bar for each file that is read: of many runs that is all that one would see.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
