"""What commands share: options, each with the same name and words everywhere, and how a command says no."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias

import typer
from rich.console import RenderableType

from tracker_diag.errors import DiagError
from tracker_diag.health import opened
from tracker_diag.report.console import Terminal, clean
from tracker_diag.scrub import without_secrets

SOURCE = (
    "A file or folder (metrics JSONL, CSV, trainer_state.json, TensorBoard, .wandb, notebook, evaluations.npz, "
    "monitor.csv, console log). Or mlflow:<run id>[@tracking uri], "
    "wandb:<entity>/<project>/<run>, or <tracker>:<run> of another tracker."
)


class FailOn(str, Enum):
    """Severities that `--fail-on` takes."""

    warn = "warn"
    error = "error"


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Blind: TypeAlias = Annotated[bool, typer.Option("--blind", help="Also list the blind rules, and what to log for them.")]
FailOnOption: TypeAlias = Annotated[
    FailOn | None, typer.Option("--fail-on", help="Exit with 1 if an incident is of this severity or worse.")
]
FalseAlarmIn: TypeAlias = Annotated[
    float,
    typer.Option(
        min=1, help="The aim: at most one healthy run in this many raises an alarm. A larger number gives later alarms."
    ),
]
Framework: TypeAlias = Annotated[
    str | None, typer.Option(help="Framework whose metric names the log has, if not recognised.")
]
Html: TypeAlias = Annotated[Path | None, typer.Option(help="Write a self-contained page to this file.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Print one line.")]
Run: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="A run, as `diagnose` takes it.")]
Which: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--rules",
        help="Ids or prefixes with commas keep only those rules: POL,REW010. A folder adds your rules; "
        "TRACKER_DIAG_RULES adds them to every run.",
    ),
]


def refuse(message: str) -> NoReturn:
    """End the command with `message`."""
    typer.echo(f"tracker-diag: {clean(without_secrets(' '.join(message.split())))}", err=True)
    raise typer.Exit(2)


@contextmanager
def refusing() -> Generator[None]:
    """What tracker_diag raises inside ends the command, as one line and not as a traceback."""
    try:
        yield
    except DiagError as error:
        refuse(str(error))


def show(result: Any, on_screen: Callable[[Any], RenderableType], *, as_json: bool) -> None:
    """Print `result` as JSON, or for a person to read."""
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=1))
    else:
        Terminal().print(on_screen(result))


def save(option: str, file: Path, text: str) -> None:
    """Write `text` to the file that `option` names; nobody else may read it, if it is new."""
    try:
        with opened(file) as written:
            written.write(text)
    except OSError as error:
        refuse(f"{option}: {file}: {error.strerror}")
