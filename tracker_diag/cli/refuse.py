"""How a command says no: one line on stderr, and exit code 2."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

import typer

from tracker_diag.errors import DiagError
from tracker_diag.report.console import clean


def refuse(message: str) -> NoReturn:
    """End the command with `message`."""
    typer.echo(f"tracker-diag: {clean(' '.join(message.split()))}", err=True)
    raise typer.Exit(2)


@contextmanager
def refusing() -> Generator[None]:
    """What tracker_diag raises inside ends the command, as one line and not as a traceback."""
    try:
        yield
    except DiagError as error:
        refuse(str(error))
