"""The time line in a terminal: what was found from onset to end, and curves, over one axis of steps."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from rich.table import Table
from rich.text import Text

from tracker_diag.metrics.series import any_of
from tracker_diag.report.blocks import bars, heights
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, Incident

STYLE = {"info": "cyan", "warn": "yellow", "error": "red"}

LABEL = 42
"""Columns of the names beside it."""
WIDTH = 36
"""Columns of the axis."""

MOST_LANES = 5
"""Lines of findings; those of the first incident's cause and damage are always among them."""

QUIET, PENDING, FIRING, DONE = "·", "░", "█", "◆"


def timeline(
    incidents: Sequence[Incident],
    first: int,
    last: int,
    curves: Sequence[tuple[str, Mapping[int, float], bool]] = (),
    events: Sequence[tuple[int, str]] = (),
) -> Table:
    """A line for each rule and slice, the first incident's cause on top and its damage below, then one for each curve.

    Between the two stands a line with a mark for each of `events`, if there are any.

    Args:
        incidents: at least one.
        first, last: steps of the run's first and last row.
        curves: the name that each is shown with, values by step, and whether its scale is logarithmic.
        events: step and text.
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=LABEL, max_width=LABEL, overflow="ellipsis")
    table.add_column(no_wrap=True)
    ends = f"{first:<{WIDTH - len(str(last))}}{last}"
    table.add_row(Text(f"step  ({PENDING} onset, {FIRING} detected)", style="dim"), Text(ends, style="dim"))
    drawn, left_out = _lanes(incidents, MOST_LANES - bool(events))
    lanes_of = Counter(findings[0].rule.id for _, _, findings in drawn)
    for mark, role, findings in drawn:
        color = STYLE["error" if role == "damage" else max((one.severity for one in findings), key=SEVERITIES.index)]
        name = f"{mark}{_named(findings[0], alone=lanes_of[findings[0].rule.id] == 1)}"
        table.add_row(Text(name, style=color), Text(lane(findings, first, last), style=color))
    if left_out:
        table.add_row(Text(f"and {left_out} more", style="dim"), "")
    if events:
        marked = {_column(step, first, last) for step, _ in events}
        table.add_row("events", "".join(DONE if at in marked else QUIET for at in range(WIDTH)))
    for name, points, log in curves:
        table.add_row(name, curve(points, first, last, log=log))
    return table


def lane(findings: Sequence[Finding], first: int, last: int) -> str:
    """Findings of one rule and slice on the axis: pending from the onset, firing from when it was told to its end."""
    cells = [QUIET] * WIDTH
    for one in findings:
        fired = _column(last if one.fired is None else one.fired, first, last)
        end = last if one.resolved is None else one.resolved
        for at in range(_column(one.onset, first, last), _column(end, first, last) + 1):
            if cells[at] != FIRING:
                cells[at] = FIRING if at >= fired else PENDING
    return "".join(cells)


def curve(points: Mapping[int, float], first: int, last: int, *, log: bool = False) -> str:
    """`points` on the axis, from their smallest mean in a column to their largest; a column without any repeats."""
    drawn = heights([points], first, last + 1, WIDTH, log=log)
    return bars(drawn[0], WIDTH) if drawn else ""


def _column(step: int, first: int, last: int) -> int:
    return min(max((step - first) * WIDTH // max(last - first + 1, 1), 0), WIDTH - 1)


def _named(finding: Finding, *, alone: bool) -> str:
    """The rule, by its title, with the slice where that does not say it: of several, or one tool."""
    slice = "" if finding.slice == "all" or (alone and any_of(finding.slice) is None) else f"{finding.slice} "
    return f"{finding.rule.id} {slice}{finding.rule.title}"


Role: TypeAlias = Literal["cause", "symptom", "damage", "other"]
"""Of a finding in the first incident; `other` is the cause of another one."""

MARKS: Mapping[Role, str] = {"cause": "", "symptom": "├ ", "damage": "├ ", "other": ""}


def grouped(incidents: Sequence[Incident]) -> list[tuple[Role, Sequence[Finding]]]:
    """The first incident's cause, its symptoms, its damage, then the others' causes; one for each rule and slice."""
    if not incidents:
        return []
    first, *others = incidents
    parts: tuple[tuple[Role, Sequence[Finding]], ...] = (
        ("cause", (first.cause,)),
        ("symptom", first.symptoms),
        ("damage", first.damage),
        ("other", [other.cause for other in others]),
    )
    found: dict[tuple[str, str | None, str], tuple[Role, list[Finding]]] = {}
    for role, findings in parts:
        for one in findings:
            found.setdefault((one.rule.id, one.pair, one.slice), (role, []))[1].append(one)
    return [*found.values()]


def _lanes(incidents: Sequence[Incident], most: int) -> tuple[list[tuple[str, Role, Sequence[Finding]]], int]:
    """What is drawn, each with its part in the incident and the mark of it, and how many lines are left out."""
    whole = grouped(incidents)
    parts = [one for one in whole[1:] if one[0] != "other"]
    rest = [one for one in whole[1:] if one[0] == "other"]
    # The last part, that is the damage if there is any, always has a line, and so has what else began by itself.
    room = most - 1 - bool(rest)
    shown = parts if len(parts) <= room else [*parts[: room - 1], parts[-1]]
    drawn = [*whole[:1], *shown, *rest[: most - 1 - len(shown)]]
    lanes: list[tuple[str, Role, Sequence[Finding]]] = [(MARKS[role], role, one) for role, one in drawn]
    if shown:
        lanes[len(shown)] = ("└ ", *shown[-1])
    return lanes, len(whole) - len(drawn)
