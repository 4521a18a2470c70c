"""How a command reads a run: with a bar in a terminal, while it takes long."""

from rich.console import Console
from rich.progress import Progress

from tracker_diag.trackers.finished import FinishedRun


def read_with_bar(source: str) -> FinishedRun:
    """The run `source`, as `read_run` reads it."""
    from tracker_diag.trackers.open import read_run

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("reading", total=1.0)
        return read_run(source, lambda share: bar.update(task, completed=share))
