"""The fleet: the state of several runs, as a table in the terminal and as a page that reloads itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from tracker_diag.report.blocks import heights
from tracker_diag.report.console import cut, one_line
from tracker_diag.report.curves import main_finding, panels
from tracker_diag.report.templates import rendered
from tracker_diag.report.timeline import STYLE
from tracker_diag.rules.triage import Summary

LEVELS = ("error", "warn", "info", "unknown", "ok")
"""States of a run, the worst first. `info`: a note, to be watched. `unknown`: too few rows to judge."""
LOUD = ("error", "warn")
COLORS = {**STYLE, "ok": "green", "unknown": "dim"}
MOST_NOTES = 5
"""Notes below the table."""
ROOMY = 100
"""Columns from which on the table has wide gaps and the title of each rule."""
SPARK = 40
"""Parts of a run that a small curve has."""
SHOWN, ROWS, OPEN = 6, 14, 5
"""On the page before the fold: runs of a group, runs in all, groups. It has 1,500 pixels then, whatever is ill."""
NAME = 30
"""Characters of a run's name before its note."""


Small: TypeAlias = tuple[float | None, ...]
"""Heights of a small curve from 0 to 1, by part of the run; None where it has no value."""


@dataclass(frozen=True)
class FleetRow:
    """The state of one run, in words; empty where there is nothing to say."""

    run: str
    level: str
    """One of `LEVELS`."""
    activity: str
    """For example "running", "finished" or "silent since 14:02"."""
    step: int | None = None
    """The last step that was judged."""
    rule: str = ""
    """Id of the rule that broke first."""
    first_break: str = ""
    """What broke first: the rule, the slice and the title."""
    since: int | None = None
    """The step of its onset."""
    cost: str = ""
    """What was spent since: steps, then time where it is known."""
    reward: str = ""
    """The best and the last level of the reward, or of an evaluation: "0.91→0.4"."""
    active: bool = True
    """More rows are expected."""
    note: str = ""
    """What keeps this row from being complete: why the run cannot be read, for example."""
    decision: str = ""
    """What to do with it, in a few words."""
    remedy: str = ""
    """What to do first about the cause."""
    outcome_curve: Small = ()
    """Of the reward; of an evaluation where there is no reward."""
    tail_curve: Small = ()
    """Of what the first break rests on, or of the tail after tool results."""

    @property
    def broke(self) -> str:
        """What broke first, without rule and slice."""
        return self.first_break.partition(": ")[2].removesuffix(", over")


@dataclass(frozen=True)
class Fleet:
    """All runs of a watch at one moment."""

    source: str
    at: datetime
    rows: tuple[FleetRow, ...]
    note: str = ""
    """What is wrong with the tracker or the disk."""

    @property
    def sorted(self) -> list[FleetRow]:
        """The worst first; at each level the active ones first."""
        return sorted(self.rows, key=lambda row: (LEVELS.index(row.level), not row.active))

    @property
    def headline(self) -> tuple[str, str, str]:
        """How many runs to stop, why, the usual reason first, and the tone: "Stop 3 of 12 runs", "2 × NaN", "error"."""
        for verb, tone in (("Stop", "error"), ("Watch", "warn")):
            rows = [row for row in self.rows if row.decision.startswith(verb)]
            why = Counter(row.broke or row.first_break for row in rows)
            if rows:
                reasons = "; ".join(f"{number} × {title}" for title, number in why.most_common(3) if title)
                return f"{verb} {len(rows)} of {len(self.rows)} runs", reasons, tone
        return "No run is to be stopped", "", "ok"

    @property
    def counts(self) -> str:
        """One line: "12 runs: 1 error, 2 warn, 9 ok"."""
        number = Counter(row.level for row in self.rows)
        parts = ", ".join(f"{number[level]} {level}" for level in LEVELS if number[level])
        return f"{len(self.rows)} run{'s' * (len(self.rows) != 1)}" + (f": {parts}" if parts else "")


def grouped(fleet: Fleet) -> list[tuple[str, str, list[FleetRow]]]:
    """Title, level and runs of each rule that broke first, the worst on top; what is unknown or ok comes last."""
    by_rule: dict[tuple[str, str], list[FleetRow]] = {}
    for row in fleet.sorted:
        loud = row.level in LOUD
        by_rule.setdefault((row.rule, "") if loud else ("", row.level), []).append(row)
    groups = []
    for (rule, level), rows in by_rule.items():
        places = ", or elsewhere" if rule and len({row.broke for row in rows}) > 1 else ""
        title = f"{rows[0].broke or rule}{places}" if rule else level
        groups.append((title or rows[0].level, rows[0].level, rows))
    return groups


def notes_of(rows: Sequence[FleetRow]) -> list[str]:
    """The notes of `rows`, each once, with the runs that it is about."""
    runs: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            runs.setdefault(row.note, []).append(cut(row.run, NAME))
    return [f"{names[0] if len(names) == 1 else f'{len(names)} runs'}: {note}" for note, names in runs.items()]


def curves_of(summary: Summary, series: Mapping[str, Mapping[int, float]]) -> tuple[Small, Small]:
    """The small curves of a run's row: of its outcome, and of what broke first or the tail."""
    outcome = next((name for name in ("reward", "eval_score") if name in series), None)
    hero = next((panel for panel in panels(summary) if panel.role == "hero"), None)
    calm = series.get("policy/post_tool/p95", {}) if main_finding(summary) is None else {}
    tail = calm if hero is None else hero.lines.get("post_tool") or next(iter(hero.lines.values()))
    ends = (summary.first_step or 0, summary.last_step or 0)
    return spark(series[outcome], ends) if outcome else (), spark(tail, ends, log=hero is None or hero.log)


def spark(curve: Mapping[int, float], ends: tuple[int, int], *, log: bool = False) -> Small:
    """Heights of a curve from 0 to 1 in `SPARK` parts of the run."""
    drawn = heights([curve.items()], *ends, SPARK, log=log)
    return tuple(round(drawn[0][at], 2) if at in drawn[0] else None for at in range(SPARK)) if drawn else ()


class FleetTable:
    """The table for a terminal, of the `most` worst runs; runs of which nothing is to be said share a line.

    Long names give way where there is no room.
    """

    def __init__(self, fleet: Fleet, most: int | None = None) -> None:
        self._fleet, self._most = fleet, most if most is None else max(most, 1)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fleet = self._fleet
        yield Text.assemble(("tracker_diag: ", "dim"), (fleet.counts, "bold"), (f", at {fleet.at:%H:%M:%S}", "dim"))
        if fleet.note:
            yield Text(" ".join(fleet.note.split()), style="yellow")
        groups = grouped(fleet)
        loud = [row for _, level, rows in groups if level in LOUD for row in rows]
        if loud:
            yield _table(loud[: self._most], roomy=options.max_width >= ROOMY)
        for _, level, rows in groups:
            if level not in LOUD:
                names = ", ".join(cut(row.run, NAME) for row in rows)
                yield one_line(f"{level}: {len(rows)} run{'s' * (len(rows) != 1)}: {names}", COLORS[level])
        notes = notes_of(fleet.sorted)
        for note in notes[:MOST_NOTES]:
            yield one_line(note, "dim")
        for hidden, what in ((len(notes) - MOST_NOTES, "more notes"), (len(loud) - len(loud[: self._most]), "more")):
            if hidden > 0:
                yield Text(f"and {hidden} {what}", style="dim")


def _table(rows: Sequence[FleetRow], *, roomy: bool) -> Table:
    """A line for each run, the title of a rule where it comes first; headings without a word are left out."""
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1 + roomy, 0, 0))
    firsts = {row.first_break: row.run for row in reversed(rows)}
    lines = [_cells(row, roomy=roomy, titled=roomy and firsts[row.first_break] == row.run) for row in rows]
    shown = [heading for heading in lines[0] if any(line[heading] for line in lines)]
    for heading in shown:
        # rich narrows the widest of the columns that may wrap; their cells do not wrap, but end with an ellipsis.
        wraps = heading in {"run", "activity", "broke first"}
        number = heading in {"step", "since"}
        table.add_column(Text(heading, no_wrap=True), no_wrap=not wraps, justify="right" if number else "left")
    for line in lines:
        table.add_row(*(line[heading] for heading in shown))
    return table


def _cells(row: FleetRow, *, roomy: bool, titled: bool) -> dict[str, Text]:
    """The cells of a run by the headings of the columns."""
    color = COLORS[row.level]
    texts = {
        "state": (row.level, f"bold {color}"),
        "run": (row.run, ""),
        "activity": (row.activity, "" if row.active else "dim"),
        "step": ("" if row.step is None else f"{row.step:,}", ""),
        "broke first": (row.first_break if titled else row.rule, color),
        "since": ("" if row.since is None else f"{row.since:,}", ""),
        "cost": (row.cost.partition(", ")[2] or row.cost, ""),
        "reward": (row.reward, ""),
        "decision": (row.decision if roomy else "", ""),
    }
    return {heading: one_line(text, style) for heading, (text, style) in texts.items()}


def render_fleet(fleet: Fleet, every: float | None = None) -> str:
    """The page; it reloads itself after `every` seconds, or not at all where the watch has ended."""
    reload = None if every is None else max(round(every), 1)
    groups = grouped(fleet)
    ill = min(sum(level in LOUD for _, level, _ in groups), OPEN)
    given = {"fleet": fleet, "groups": groups, "most": min(SHOWN, ROWS // max(ill, 1)), "open": OPEN, "every": reload}

    def path(curve: Small) -> str:  # of an SVG of 100 by 20
        points = [(100 * at / (SPARK - 1), height) for at, height in enumerate(curve) if height is not None]
        return "M" + "L".join(f"{x:.0f} {18.5 - 17 * height:.1f}" for x, height in points)

    return rendered("fleet.html.j2", {"path": path, "notes": notes_of}, **given)
