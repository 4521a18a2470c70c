"""A bar with rate and time left, for what takes seconds; it is shown in a terminal only, and gone at the end."""

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    """How much of the task is done in a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.1f} {task.fields['unit']}/s", style="dim")


def bar(console: Console | None = None) -> Progress:
    """The bar; each task of it names its `unit`."""
    screen = console or Console(stderr=True)
    fields = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*fields, console=screen, transient=True, disable=not screen.is_terminal)
