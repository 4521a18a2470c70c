"""The verdict in the terminal: what broke first, on which evidence, what to do, who could not see."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracker_diag.report.console import cut, labelled, unbroken
from tracker_diag.report.curves import Panel, panels
from tracker_diag.report.evidence import damage, outcomes, spent
from tracker_diag.report.first_look import remedies, sighted
from tracker_diag.report.timeline import LABEL, STYLE, timeline
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.triage import Summary

LABELS = 11
"""Width of the labels beside the verdict."""

CURVES = 3
"""Of those of the summary that are drawn."""


def verdict(
    summary: Summary,
    *,
    cost: str = "",
    live: Sequence[object] = (),
    alarmed: bool = False,
    where: Sequence[str] = (),
    again: str = "",
    explains: str = "--blind",
) -> RenderableType:
    """What broke first, since when, why we think so, what to do, and the time line; in 25 lines of 80 columns at most.

    Args:
        cost: what was spent since the onset.
        live: what the diagnostics found while the run was underway, one after another.
        alarmed: whether any of that is at warn or above.
        where: places at which the run can be seen.
        again: the command that shows it again, later.
        explains: what says which rules cannot see, and why.
    """
    color = STYLE[summary.level] if summary.level else "green"
    head = Text.assemble(("tracker_diag: ", "dim"), (f"verdict after {_seen(summary)}", f"bold {color}"))
    parts: list[RenderableType] = [head, *_of_the_log(summary), _broke_first(summary, color, cost, alarmed=alarmed)]
    loud = [one for one in summary.incidents if one.severity != "info"]
    if loud and summary.first_step is not None and summary.last_step is not None:
        curves = [_labelled(panel) for panel in panels(summary)[:CURVES]]
        drawn = timeline(loud, summary.first_step, summary.last_step, curves, summary.events)
        parts += [Text(), drawn, Text()] if curves else [drawn]
    parts.append(_the_rest(summary, live, explains))
    places = [
        (label, place) for label, place in (*zip(("see", ""), where, strict=False), ("all of it", again)) if place
    ]
    return Group(*parts, *(unbroken(Text.assemble((label.ljust(LABELS + 2), "dim"), place)) for label, place in places))


def _seen(summary: Summary) -> str:
    """How much was seen: steps, or rows of a trainer that does not log each of its steps."""
    first, last, many = summary.first_step, summary.last_step, summary.steps
    if first is None or last is None or last - first < many:
        return f"{many} step{'s' * (many != 1)}"
    return f"{many} row{'s' * (many != 1)}, up to step {last}"


def headline(summary: Summary) -> str:
    """The verdict in one line."""
    first = summary.first_break
    if first is None and not summary.judged:
        return " ".join([summary.short[0].removesuffix(" more"), *summary.short[1:2]])
    if first is None:
        return f"ok: no rule fired at warn or above in {summary.steps} steps"
    place = f" on {first.slice}" if first.slice != "all" else ""
    said = f"{summary.level}: {first.rule.id}{place} since step {first.onset}: {first.rule.title}"
    back = None if summary.recommendation is None else summary.recommendation.last_good_step
    return said if back is None else f"{said}; last good step {back}"


def _of_the_log(summary: Summary) -> list[Table]:
    """What is wrong with the log itself, which is to be known before the verdict."""
    rows = labelled(LABELS)
    for heading, line in zip(("the log", ""), summary.log, strict=False):
        rows.add_row(heading, Text(cut(line, 300), style="yellow"))
    return [rows] if summary.log else []


def _broke_first(summary: Summary, color: str, cost: str, *, alarmed: bool) -> Table:
    rows = labelled(LABELS)
    first = summary.first_break
    if first is None and alarmed:  # live the rules see the tensors, of which not all is logged
        rows.add_row(
            "found", Text("live, what is said below; nothing more in what the run logged", style="bold yellow")
        )
        return rows
    short = summary.short
    if first is None and short:
        rows.add_row("found", Text(short[0], style="bold"))
        for line in short[1:]:
            rows.add_row("", line)
        return rows
    if first is None:
        unsure = summary.caveats or summary.log
        rows.add_row("found", Text("no rule fired at warn or above", style="bold" if unsure else "bold green"))
        rows.add_row("continue?", f"Yes, as far as {len(summary.healthy)} rules could see")
        return rows
    place = f", on {first.slice}" if first.slice != "all" else ""
    rows.add_row("broke first", Text(cut(f"{first.rule.title}{place}", 150), style=f"bold {color}"))
    # An onset is an estimate, and no cause begins after the damage that it has done.
    harmed = min((one.onset for of in summary.incidents if of.cause is first for one in of.damage), default=first.onset)
    early = f"step {harmed} by the damage" if harmed < first.onset else f"step {first.onset}"
    told = f"{early}, detected at step {first.fired}; rule {first.rule.id}"
    spending = cost or spent(summary)
    if spending:
        told += (
            f"; {spending} since" if first.resolved is None else f"; over at step {first.resolved}, after {spending}"
        )
    rows.add_row("since", told)
    rows.add_row("evidence", cut(f"by step {first.fired}: {first.summary}", 200))
    for said in damage(summary)[:1]:
        rows.add_row("damage", Text(cut(said, 130), style="red"))
    if summary.recommendation:
        style = "" if summary.recommendation.go_on else "bold red"
        rows.add_row("continue?", Text(cut(summary.recommendation.says, 134), style=style))
    if first.rule.remedy:
        rows.add_row("do first", cut(first.rule.remedy[0], 130))
    return rows


def _the_rest(summary: Summary, live: Sequence[object], explains: str) -> Table:
    """What keeps the verdict from being sure, how things stand, and how many rules see."""
    rows = labelled(LABELS)
    for heading, line in zip(("but", *[""] * len(summary.short)), summary.short if summary.first_break else ()):  # noqa: B905
        rows.add_row(heading, Text(f"for the rest {line}" if heading else line, style="yellow"))
    for heading, caveat in zip(("but", ""), summary.caveats, strict=False):
        rows.add_row(heading, Text(cut(caveat, 150), style="yellow"))
    for heading, line in zip(("tails now", ""), summary.tails, strict=False):
        rows.add_row(heading, cut(line, 130))
    for heading, level in zip(("outcome", ""), outcomes(summary), strict=False):
        rows.add_row(heading, level)
    for heading, one in zip(("said live", ""), live, strict=False):
        rows.add_row(heading, cut(str(one), 66))
    for heading, finding in zip(("to know", ""), _of_info(summary), strict=False):
        rows.add_row(heading, Text(cut(f"{finding.rule.id} {finding.summary}", 66), style=STYLE["info"]))
    rows.add_row("rules", f"{sighted(summary)}; {explains} says what")
    return rows


def _of_info(summary: Summary) -> list[Finding]:
    """Causes of what harmed nothing."""
    return [one.cause for one in summary.incidents if one.severity == "info"]


def blindness(summary: Summary) -> RenderableType:
    """Rules that could not see, by what to log so that they do, what opens most eyes first; then the healthy ones."""
    rows = labelled(LABELS)
    told: set[str] = set()
    for heading, (remedy, rules) in zip(("to see more", *[""] * len(summary.blind)), remedies(summary.blind)):  # noqa: B905
        told |= {*rules}
        rows.add_row(heading, Text.assemble(f"{remedy}  ", (", ".join(rules), "magenta")))
    groups: dict[str, list[str]] = {}
    for rule, reasons in summary.blind.items():
        if rule not in told:
            groups.setdefault("; ".join(map(str, reasons)), []).append(rule)
    for heading, (why, rules) in zip(("blind", *[""] * len(groups)), groups.items()):  # noqa: B905
        rows.add_row(heading, Text.assemble((", ".join(rules), "magenta"), f"  {why}"))
    for by in dict.fromkeys(summary.explained.values()):
        parts = ", ".join(rule for rule, whole in summary.explained.items() if whole == by)
        rows.add_row("explained", f"{parts}  {by} covers them")
    rows.add_row("healthy", Text(", ".join(summary.healthy) or "none", style="green"))
    return rows


def _labelled(panel: Panel) -> tuple[str, Mapping[int, float], bool]:
    """The curve of a panel, of post_tool where there are two, with its smallest and largest value in its label."""
    *_, (slice, points) = panel.lines.items()
    values = [value for value in points.values() if math.isfinite(value)]
    ends = f" {_short(min(values))} to {_short(max(values))}" if values else ""
    room = LABEL - len(ends)
    if slice:
        pair, _, stat = panel.name.partition(" ")
        return cut(f"{stat} {slice}, {pair}", room) + ends, points, panel.log
    name = panel.name  # the statistic, if it is one, stands at its end
    return (name if len(name) <= room else f"…{name[1 - room :]}") + ends, points, panel.log


def _short(value: float) -> str:
    return f"{value:.0f}" if 100 <= abs(value) < 1e5 else f"{value:.2g}"
