"""The verdict in the terminal: what broke first, on which evidence, what to do, who could not see."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import wrap

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracker_diag.report.console import add_rows, cut, digits, labelled, unbroken
from tracker_diag.report.curves import Panel, panels
from tracker_diag.report.decision import since
from tracker_diag.report.evidence import damage, harmed_since, outcomes, spent
from tracker_diag.report.first_look import remedies, sighted
from tracker_diag.report.timeline import LABEL, STYLE, timeline
from tracker_diag.rules.alerts import Notice
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import beginning
from tracker_diag.rules.logged import LiveFinding
from tracker_diag.rules.record import tier_of
from tracker_diag.rules.triage import Summary

LABELS = 11
"""Width of the labels next to the verdict."""

COLUMNS = 78
"""Of an alert, without the two at its left."""


def alert(notice: Notice, see: str = "") -> str:
    """A notice in six lines of 80 columns at most, `see` whole as the last: what to do, what broke, since when, why."""
    head = [notice.decision, notice.title] if notice.decision else [notice.title]
    room = max(6 - len(head) - math.ceil(len(see) / COLUMNS), 1)
    lines = notice.text.splitlines()[bool(notice.decision) :][: room - (room > 2)]  # `text` begins with the decision
    body: list[str] = []
    for left, line in zip(range(len(lines) - 1, -1, -1), lines, strict=True):
        body += [_fitting(line)] if left else _cut(line, room - len(body))
    return "\n  ".join([*head, *body, *filter(None, [see])])


def _fitting(line: str) -> str:
    """The sentences of `line` that fit whole into one line. If not even the first does, as much of it as fits."""
    parts = re.split(r"(?<=[.?]) ", line)
    whole = (" ".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((text for text in whole if len(text) <= COLUMNS), None) or _cut(line, 1)[0]


def _cut(line: str, most: int) -> list[str]:
    return wrap(line, COLUMNS, max_lines=most, placeholder="…", break_on_hyphens=False)


def verdict(
    summary: Summary,
    *,
    cost: str = "",
    live: Sequence[LiveFinding] = (),
    where: Sequence[str] = (),
    again: str = "",
    explains: str = "--blind",
) -> RenderableType:
    """What broke first, since when, why we think so, what to do, and the time line; in 25 lines of 80 columns at most.

    Args:
        cost: what was spent since the onset.
        live: what the diagnostics found while the run was underway, in this order.
        where: places at which the run can be seen.
        again: the command that shows it again, later.
        explains: what says which rules cannot see, and why.
    """
    color = STYLE[summary.level] if summary.level else "green"
    head = Text.assemble(("tracker_diag: ", "dim"), (f"verdict after {_seen(summary)}", f"bold {color}"))
    parts: list[RenderableType] = [head, _broke_first(summary, color, cost, live)]
    loud = [incident for incident in summary.incidents if incident.severity != "info"]
    if loud and summary.first_step is not None and summary.last_step is not None:
        curves = [_labelled(panel) for panel in panels(summary)[:3]]
        harmed = [tuple(it.moved(onset=harmed_since(summary, it)) for it in incident.damage) for incident in loud]
        dated = [replace(incident, damage=findings) for incident, findings in zip(loud, harmed, strict=True)]
        drawn = timeline(dated, summary.first_step, summary.last_step, curves, summary.events)
        parts += [Text(), drawn, Text()] if curves else [drawn]
    parts.append(_the_rest(summary, live, explains))
    places = [("see", place) for place in where[:1]] + [("", place) for place in where[1:2]] + [("all of it", again)]
    return Group(*parts, *(unbroken(Text.assemble((label.ljust(LABELS + 2), "dim"), at)) for label, at in places if at))


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
    if first is None and summary.recommendation.action != "continue":
        return f"{summary.recommendation.action}: {summary.recommendation.says.partition('. ')[2]}"
    if first is None:
        return f"ok: no rule fired at warn or above in {summary.steps} steps"
    place = f" on {first.slice}" if first.slice != "all" else ""
    line = f"{summary.level}: {first.rule.id}{place} since {beginning(first)}: {first.rule.title}"
    return f"{line}. {summary.recommendation.in_short}"


def _broke_first(summary: Summary, color: str, cost: str, live: Sequence[LiveFinding]) -> Table:
    """What is wrong with the log itself, which is to be known before the verdict; then what broke first."""
    rows = labelled(LABELS)
    add_rows(rows, "the log", [Text(cut(line, 300), style="yellow") for line in summary.log[:2]])
    first, short = summary.first_break, summary.short
    if first is None and any(finding.severity != "info" for finding in live):
        # live the rules see the tensors, of which not all is logged
        text = "live, what is said below; nothing more in what the run logged"
        rows.add_row("found", Text(text, style="bold yellow"))
    elif first is None and short:
        add_rows(rows, "found", [Text(short[0], style="bold"), *short[1:]])
    elif first is None:
        unsure = summary.caveats or summary.log
        rows.add_row("found", Text("no rule fired at warn or above", style="bold" if unsure else "bold green"))
        advice, sight = summary.recommendation, f"Yes, as far as {len(summary.healthy)} rules could see"
        rows.add_row("continue?", sight if advice.action == "continue" else Text(cut(advice.says, 200), style="yellow"))
    else:
        place = f", on {first.slice}" if first.slice != "all" else ""
        rows.add_row("broke first", Text(cut(f"{first.rule.title}{place}", 150), style=f"bold {color}"))
        rows.add_row("since", _since(summary, first, cost or spent(summary)))
        rows.add_row("evidence", cut(f"by step {first.fired}: {first.summary}", 200))
        add_rows(rows, "damage", [Text(cut(line, 130), style="red") for line in damage(summary)[:1]])
        style = "" if summary.recommendation.go_on else "bold red"
        rows.add_row("continue?", Text(cut(summary.recommendation.says, 200), style=style))
        add_rows(rows, "do first", [cut(line, 130) for line in first.rule.remedy[:1]])
    return rows


def _since(summary: Summary, first: Finding, spending: str) -> str:
    """The onset, and what was spent since. It is an estimate, and no cause begins after the damage that it has done."""
    onsets = [it.onset for incident in summary.incidents if incident.cause is first for it in incident.damage]
    harmed = min(onsets, default=first.onset)
    early = f"step {harmed} by the damage" if harmed < first.onset else since(first)
    ago = f" ({spending} ago)" if spending and first.resolved is None else ""
    over = f"; over at step {first.resolved}, after {spending}" if spending and first.resolved is not None else ""
    return f"{early}{ago}, detected at step {first.fired} by rule {_with_tier(first)}{over}"


def _with_tier(finding: Finding) -> str:
    """The rule, marked where no record backs its alarms."""
    return f"{finding.rule.id}{' (candidate)' if tier_of(finding.rule) == 'candidate' else ''}"


def _the_rest(summary: Summary, live: Sequence[LiveFinding], explains: str) -> Table:
    """What keeps the verdict from being sure, how things are, and how many rules see."""
    rows = labelled(LABELS)
    if summary.first_break and summary.short:
        short = [f"for the rest {summary.short[0]}", *summary.short[1:]]
        add_rows(rows, "but", [Text(line, style="yellow") for line in short])
    add_rows(rows, "but", [Text(cut(caveat, 150), style="yellow") for caveat in summary.caveats[:2]])
    add_rows(rows, "tails now", [cut(line, 130) for line in summary.tails[:2]])
    add_rows(rows, "outcome", outcomes(summary)[:2])
    add_rows(rows, "said live", [cut(str(line), 66) for line in live[:2]])
    notes = [incident.cause for incident in summary.incidents if incident.severity == "info"]
    texts = [cut(f"{_with_tier(finding)} {finding.rule.title}: {finding.summary}", 130) for finding in notes[:2]]
    add_rows(rows, "notes", [Text(text, style=STYLE["info"]) for text in texts])
    rows.add_row("rules", f"{sighted(summary)}; {explains} says what")
    return rows


def blindness(summary: Summary) -> RenderableType:
    """Rules that could not see, by what to log so that they do, what opens most eyes first; then the healthy ones."""
    rows = labelled(LABELS)
    opens = remedies(summary.blind)
    add_rows(rows, "to see more", [Text.assemble(f"{what}  ", (", ".join(ids), "magenta")) for what, ids in opens])
    named = {rule for _, ids in opens for rule in ids}
    groups: dict[str, list[str]] = {}
    for rule, reasons in summary.blind.items():
        if rule not in named:
            groups.setdefault("; ".join(map(str, reasons)), []).append(rule)
    add_rows(rows, "blind", [Text.assemble((", ".join(ids), "magenta"), f"  {why}") for why, ids in groups.items()])
    for by in dict.fromkeys(summary.explained.values()):
        parts = ", ".join(rule for rule, whole in summary.explained.items() if whole == by)
        rows.add_row("explained", f"{parts}  {by} covers them")
    rows.add_row("healthy", Text(", ".join(summary.healthy) or "none", style="green"))
    return rows


def _labelled(panel: Panel) -> tuple[str, Mapping[int, float], bool]:
    """The curve of a panel, of post_tool where there are two, with its smallest and largest value in its label."""
    *_, (slice, points) = panel.lines.items()
    values = [value for value in points.values() if math.isfinite(value)]
    ends = f" (min {digits(min(values))}, max {digits(max(values))})" if values else ""
    room = LABEL - len(ends)
    if slice:
        pair, _, stat = panel.name.partition(" ")
        return cut(f"{stat} {slice}, {pair}", room) + ends, points, panel.log
    name = panel.name  # its end says which statistic it is
    return (name if len(name) <= room else f"…{name[1 - room :]}") + ends, points, panel.log
