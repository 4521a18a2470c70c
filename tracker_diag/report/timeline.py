"""The time line in a terminal: what was found from onset to end, and curves, over one axis of steps."""

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from tracker_diag.metrics.series import any_of
from tracker_diag.report.blocks import bars, heights
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES, Incident

STYLE = {"info": "cyan", "warn": "yellow", "error": "red"}

LABEL = 42
"""Columns of the names next to it."""
WIDTH = 36
"""Columns of the axis."""

MOST_LANES = 5
"""Lines of findings; the cause comes first, then its damage."""

QUIET, PENDING, FIRING, DONE = "·", "░", "█", "◆"


def timeline(
    incidents: Sequence[Incident],
    first: int,
    last: int,
    curves: Sequence[tuple[str, Mapping[int, float], bool]] = (),
    events: Sequence[tuple[int, str]] = (),
) -> Table:
    """A line for each rule and slice, the first incident's cause on top, then one for each curve.

    Between the two is a line with a mark for each of `events`, if there are any.

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
    main, *others = incidents
    ranked = [main.cause, *main.damage, *main.symptoms, *(incident.cause for incident in others)]
    by_place: dict[tuple[str, str | None, str], list[Finding]] = {}
    for finding in ranked:
        by_place.setdefault((finding.rule.id, finding.pair, finding.slice), []).append(finding)
    everything, room = [*by_place.values()], MOST_LANES - bool(events)
    drawn, damage = everything[:room], main.damage
    lanes_of = Counter(findings[0].rule.id for findings in drawn)
    for findings in drawn:
        worst = max((finding.severity for finding in findings), key=SEVERITIES.index)
        color = STYLE["error" if findings[0] in damage else worst]
        name = _named(findings[0], alone=lanes_of[findings[0].rule.id] == 1)
        table.add_row(Text(name, style=color), _colored(findings, first, last, color))
    if everything[room:]:
        table.add_row(Text(f"and {len(everything) - room} more", style="dim"), "")
    if events:
        marked = {_column(step, first, last) for step, _ in events}
        table.add_row("events", "".join(DONE if at in marked else QUIET for at in range(WIDTH)))
    for name, points, log in curves:
        table.add_row(name, curve(points, first, last, log=log))
    return table


def lane(findings: Sequence[Finding], first: int, last: int) -> str:
    """Findings of one rule and slice on the axis: pending from the onset, firing from its detection to its end."""
    cells = [QUIET] * WIDTH
    for finding in findings:
        fired = _column(last if finding.fired is None else finding.fired, first, last)
        end = last if finding.resolved is None else finding.resolved
        for at in range(_column(finding.onset, first, last), _column(end, first, last) + 1):
            if cells[at] != FIRING:
                cells[at] = FIRING if at >= fired else PENDING
    return "".join(cells)


def _colored(findings: Sequence[Finding], first: int, last: int, color: str) -> Text:
    """The lane in `color`; what was a note until it was raised has the color of a note until then."""
    drawn = Text(lane(findings, first, last), style=color)
    for finding in findings:
        if finding.raised is not None:
            drawn.stylize(STYLE["info"], *(_column(step, first, last) for step in (finding.onset, finding.raised)))
    return drawn


def curve(points: Mapping[int, float], first: int, last: int, *, log: bool = False) -> str:
    """`points` on the axis, from their smallest mean in a column to their largest; a column without any repeats."""
    drawn = heights([points.items()], first, last + 1, WIDTH, log=log)
    return bars(drawn[0], WIDTH) if drawn else ""


def _column(step: int, first: int, last: int) -> int:
    return min(max((step - first) * WIDTH // max(last - first + 1, 1), 0), WIDTH - 1)


def _named(finding: Finding, *, alone: bool) -> str:
    """The rule, by its title, with the slice where that does not say it: of several, or one tool."""
    slice = "" if finding.slice == "all" or (alone and any_of(finding.slice) is None) else f"{finding.slice} "
    return f"{finding.rule.id} {slice}{finding.rule.title}"
