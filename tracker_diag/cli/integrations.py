"""`tracker-diag integrations`: the trainers that are installed, what each lets us see, and what names are read."""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Option

from tracker_diag.cli.options import refuse
from tracker_diag.errors import UnknownName
from tracker_diag.metrics.alias_files import Aliases, file_of, frameworks

GROUP = "tracker_diag.integrations"
"""Entry points of this group name a package each that has `TESTED`, versions, and `SEES`, what it sees of what.

`INSTALLED_AS` has the trainer's distributions, where their name is not that of the entry point.
"""


def integrations(
    names: Annotated[
        str, Option("--names", metavar="FRAMEWORK", help="List which metrics of this framework are read; or `all`.")
    ] = "",
) -> None:
    """List trainers, tested versions, and what is seen."""
    console = Console()
    if names:
        try:
            files = [file_of(name) for name in (frameworks() if names == "all" else (names,))]
        except UnknownName as error:
            refuse(str(error))
        for file in files:
            _names(console, file)
        return
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = import_module(entry.value)
        there = _installed(getattr(package, "INSTALLED_AS", (entry.name,)))
        console.print(f"[bold]{entry.name}[/]  {there or '[dim]not installed[/]'}  [dim]tested: {package.TESTED}[/]")
        console.print(
            _table([("[yellow]not[/]" if what == "not" else what, how) for what, how in package.SEES.items()])
        )


def _names(console: Console, file: Aliases) -> None:
    """The keys of one framework: what each is read as, or why it is not."""
    there = _installed((file.package,)) if file.package else ""
    newer = f"; installed is {there}" if there and there.split()[-1] not in file.read_at else ""
    console.print(f"[bold]{file.framework}[/]  [dim]names of {file.read_at}{newer}[/]", highlight=False)
    rows = [(name, escape(", ".join(alias.keys))) for name, alias in file.metrics.items()]
    rows += [("[yellow]not read[/]", escape(f"{key}: {why}")) for key, why in file.ignore.items()]
    console.print(_table(rows), highlight=False)


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=12, overflow="fold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(f"  {name}", text)
    return table


def _installed(names: tuple[str, ...]) -> str:
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:  # noqa: PERF203  # one of several names
            continue
    return ", ".join(versions)
