"""`tracker-diag skill`: what a coding agent should know of tracker_diag, put where it looks."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from tracker_diag.cli.options import refuse
from tracker_diag.health import private

skill_app = typer.Typer(help="Teach a coding agent to use tracker-diag.", no_args_is_help=True)


@skill_app.callback()
def _group() -> None:
    """Keep `install` a word of its own, though it is the only command."""


@skill_app.command()
def install(
    to: Annotated[
        Path | None, typer.Option(help="Folder of skills, such as ~/.claude/skills; by default two in this folder.")
    ] = None,
) -> None:
    """Write SKILL.md into .claude/skills and .agents/skills.

    A file that is already there is replaced.
    """
    text = files("tracker_diag.cli").joinpath("SKILL.md").read_text(encoding="utf-8")
    usual = (Path(".claude/skills"), Path(".agents/skills"))  # where coding agents look for skills in a project
    for folder in usual if to is None else (to.expanduser(),):
        file = folder / "tracker-diag" / "SKILL.md"
        try:
            private(file, text)
        except OSError as error:
            refuse(f"--to: {file}: {error.strerror}; give a folder that you may write to")
        typer.echo(file)
