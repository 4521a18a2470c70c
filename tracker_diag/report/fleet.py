"""The fleet: how each of several runs stands, as a table in the terminal and as a page that refreshes itself."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from tracker_diag.report.templates import rendered
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
    rule: str = ""
    """Of what broke first."""
    first_break: str = ""
    """What broke first: its rule, where and what."""
    since: int | None = None
    """The step of its onset."""
    when: str = ""
    """The time of its onset, if it is known."""
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


WIDE, WIDEST = 112, 150
"""Columns of a terminal from which on the table says more than the least, and all of it."""


class FleetTable:
    """The table for a terminal, with `most` runs at most, the worst ones; it says as much as there is room for."""

    def __init__(self, fleet: Fleet, most: int | None = None) -> None:
        self._fleet = fleet
        self._rows = fleet.sorted[: None if most is None else max(most, 1)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fleet = self._fleet
        yield Text.assemble(("tracker_diag: ", "dim"), (fleet.counts, "bold"), (f", at {fleet.at:%H:%M:%S}", "dim"))
        if fleet.note:
            yield Text(one_line(fleet.note), style="yellow")
        if self._rows:
            yield self._table(options.max_width)
        noted = [row for row in self._rows if row.note]
        for row in noted[:MOST_NOTES]:
            yield Text(f"{_short(one_line(row.run))}: {one_line(row.note)}", "dim", no_wrap=True, overflow="ellipsis")
        if len(noted) > MOST_NOTES:
            yield Text(f"and {len(noted) - MOST_NOTES} more notes", style="dim")
        if len(fleet.rows) > len(self._rows):
            yield Text(f"and {len(fleet.rows) - len(self._rows)} more", style="dim")

    def _table(self, width: int) -> Table:
        columns: dict[str, list[Text]] = {}
        for row in self._rows:
            for heading, cell in _cells(row, width).items():
                columns.setdefault(heading, []).append(cell)
        columns = {heading: cells for heading, cells in columns.items() if any(cells)}
        gap = 2 if width >= WIDE else 1
        widths = {
            heading: max(cell_len(heading), *map(cell_len, map(str, cells))) for heading, cells in columns.items()
        }
        over = sum(widths.values()) + gap * (len(widths) - 1) - width
        for heading, least in LEAST:
            less = max(min(over, widths.get(heading, 0) - least), 0)
            if less:
                widths[heading], over = widths[heading] - less, over - less
        table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, gap, 0, 0))
        for heading in columns:
            right = heading in NUMBERS
            table.add_column(heading, width=widths[heading], no_wrap=True, justify="right" if right else "left")
        for cells in zip(*columns.values(), strict=True):
            for cell in cells:
                cell.no_wrap, cell.overflow = True, "ellipsis"
            table.add_row(*cells)
        return table


MOST_NOTES = 5
"""Notes that are shown below the table."""
NUMBERS = {"step", "since", "best", "last"}
LEAST = (("run", 32), ("broke first", 30), ("run", 12), ("activity", 7), ("cost", 9), ("run", 5))
"""Columns that give way where there is no room, in this order, and how wide they remain."""


def _cells(row: FleetRow, width: int) -> dict[str, Text]:
    """What stands in the row of a run, by the headings of the columns."""
    color = COLORS[row.level]
    loud = row.level in {"warn", "error"}
    broke = row.first_break if width >= WIDEST else row.rule
    since = "" if row.since is None else f"{row.since:,}"
    when = {"at": row.when} if width >= WIDE else {}
    outcome = {"best": row.best, "last": row.last} if width >= WIDE else {"reward": _from_to(row.best, row.last)}
    words = {
        "activity": row.activity if width >= WIDE else row.activity.replace(" since", ""),
        "step": "" if row.step is None else f"{row.step:,}",
        "broke first": broke,
        "since": since,
        **when,
        "cost": row.cost if width >= WIDE else row.cost.partition(", ")[2] or row.cost,
        **outcome,
    }
    styled = {heading: Text(one_line(text)) for heading, text in words.items()}
    styled["broke first"].stylize(color if loud else "")
    styled["activity"].stylize("" if row.goes_on else "dim")
    return {
        "state": Text(row.level, style=f"bold {color}" if loud else color),
        "run": Text(one_line(row.run)),
        **styled,
    }


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:29]}…"


def _from_to(best: str, last: str) -> str:
    return f"{best}→{last}" if best else ""


def one_line(text: str) -> str:
    """`text` without line breaks and tabs: names of runs may hold anything."""
    return " ".join(text.split())


def render_fleet(fleet: Fleet, every: float | None = None) -> str:
    """The page. All texts are escaped; it loads nothing from anywhere.

    Args:
        every: seconds after which it loads itself again; None if it will not change any more.
    """
    again = None if every is None else max(round(every), 1)
    return rendered("fleet.html.j2", {}, fleet=fleet, rows=fleet.sorted, every=again)
