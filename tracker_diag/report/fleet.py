"""The fleet: how each of several runs stands, as a table in the terminal and as a page that refreshes itself."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracker_diag.errors import require
from tracker_diag.report.timeline import STYLE

LEVELS = ("error", "warn", "unknown", "ok")
"""How runs stand, the worst first. `unknown` is of one that no row was read of."""
COLORS = {**STYLE, "ok": "green", "unknown": "dim"}


@dataclass(frozen=True)
class FleetRow:
    """How one run stands, in words; empty where there is nothing to say."""

    run: str
    level: str
    """One of `LEVELS`."""
    activity: str
    """Such as "running", "finished" or "silent since 14:02"."""
    step: int | None = None
    """The last one that was judged."""
    first_break: str = ""
    """What broke first: its rule, where and what."""
    since: str = ""
    """The step of its onset, and how long ago that was if it is known."""
    cost: str = ""
    """What was spent since."""
    best: str = ""
    """The reward's best level, or that of an evaluation."""
    last: str = ""
    """The last one of the same."""
    goes_on: bool = True
    note: str = ""
    """What keeps this from being all: why it cannot be read, for example."""


@dataclass(frozen=True)
class Fleet:
    """All runs of a watch at one moment."""

    source: str
    at: datetime
    rows: tuple[FleetRow, ...]
    note: str = ""
    """What is wrong with the tracker, if anything is."""

    @property
    def sorted(self) -> list[FleetRow]:
        """The worst first, of these what still goes on, then in the order in which they were given."""
        return sorted(self.rows, key=lambda row: (LEVELS.index(row.level), not row.goes_on))

    @property
    def counts(self) -> str:
        """One line: "12 runs: 1 error, 2 warn, 9 ok"."""
        found = Counter(row.level for row in self.rows)
        parts = ", ".join(f"{found[level]} {level}" for level in LEVELS if found[level])
        return f"{len(self.rows)} run{'s' * (len(self.rows) != 1)}" + (f": {parts}" if parts else "")


def fleet_table(fleet: Fleet, most: int | None = None) -> RenderableType:
    """The table for a terminal, with `most` runs at most, the worst ones."""
    rows = fleet.sorted
    shown = rows if most is None else rows[: max(most, 1)]
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    with_outcome = any(row.best for row in shown)
    table.add_column("state", no_wrap=True)
    table.add_column("run", max_width=30, no_wrap=True, overflow="ellipsis")
    table.add_column("", max_width=20, no_wrap=True, overflow="ellipsis")
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("broke first", ratio=1, min_width=12, max_width=46, no_wrap=True, overflow="ellipsis")
    table.add_column("since step", no_wrap=True)
    table.add_column("cost since", no_wrap=True)
    for heading in ("best", "last") if with_outcome else ():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in shown:
        color = COLORS[row.level]
        table.add_row(
            Text(row.level, style=color if row.level in {"ok", "unknown"} else f"bold {color}"),
            one_line(row.run),
            Text(row.activity, style="" if row.goes_on else "dim"),
            "" if row.step is None else f"{row.step:,}",
            Text(one_line(row.first_break or row.note), style=color if row.first_break else "dim"),
            row.since,
            row.cost,
            *((row.best, row.last) if with_outcome else ()),
        )
    head = Text.assemble(("tracker_diag: ", "dim"), (fleet.counts, "bold"), (f", at {fleet.at:%H:%M:%S}", "dim"))
    parts: list[RenderableType] = [head]
    if fleet.note:
        parts.append(Text(one_line(fleet.note), style="yellow"))
    if rows:
        parts.append(table)
    if len(rows) > len(shown):
        parts.append(Text(f"and {len(rows) - len(shown)} more", style="dim"))
    return Group(*parts)


def one_line(text: str) -> str:
    """`text` without line breaks and tabs: names of runs may hold anything."""
    return " ".join(text.split())


def render_fleet(fleet: Fleet, every: float | None = None) -> str:
    """The page. All texts are escaped; it loads nothing from anywhere.

    Args:
        every: seconds after which it loads itself again; None if it will not change any more.
    """
    jinja2 = require("jinja2", "mlflow")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracker_diag.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    text: str = environment.get_template("fleet.html.j2").render(
        fleet=fleet, rows=fleet.sorted, every=None if every is None else max(round(every), 1)
    )
    return text.encode(errors="replace").decode()  # halves of a character, which no file takes
