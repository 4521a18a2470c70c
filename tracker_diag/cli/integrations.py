"""`tracker-diag integrations`: the trainers that are installed, and what each lets us see."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version

from rich.console import Console
from rich.table import Table

GROUP = "tracker_diag.integrations"
"""Entry points of this group name a package each that has `TESTED`, versions, and `SEES`, what it sees of what.

`INSTALLED_AS` has the trainer's distributions, where their name is not that of the entry point.
"""


def integrations() -> None:
    """List trainers, tested versions, and what is seen."""
    console = Console()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = import_module(entry.value)
        there = _installed(getattr(package, "INSTALLED_AS", (entry.name,)))
        console.print(f"[bold]{entry.name}[/]  {there or '[dim]not installed[/]'}  [dim]tested: {package.TESTED}[/]")
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=12)
        table.add_column()
        for what, how in package.SEES.items():
            table.add_row(f"  [yellow]{what}[/]" if what == "not" else f"  {what}", how)
        console.print(table)


def _installed(names: tuple[str, ...]) -> str:
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # noqa: PERF203  # one of several names
            continue
    return ", ".join(versions)
