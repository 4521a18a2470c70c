"""How a command says no: one line on stderr, and exit code 2."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from tracker_diag.errors import DiagError
from tracker_diag.report.console import clean
from tracker_diag.scrub import without_secrets


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


def save(option: str, file: Path, text: str) -> None:
    """Write `text` to the file that `option` names; what has no place in UTF-8 becomes a question mark."""
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        refuse(f"{option}: {file}: {error.strerror}")
