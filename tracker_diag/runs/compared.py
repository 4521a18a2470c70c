"""A comparison in words and in the terminal: the consequence, what differs first, settings and incidents."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracker_diag.metrics.statistics import declared
from tracker_diag.report.blocks import CELLS, bars, heights
from tracker_diag.report.console import add_rows, cut, labelled, near, one_line
from tracker_diag.report.tiles import name_of, times
from tracker_diag.report.timeline import STYLE
from tracker_diag.runs.arms import Axis, Setting
from tracker_diag.runs.compare import Against, Arm, Comparison, NewIncident, Parted
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.trackers.open import is_of_tracker

LABELS = 12
"""Columns of the labels."""
LINES = 25
"""Lines of the screen for two arms."""
MOST_DRAWN = 4
"""Series drawn for two arms, 3 lines each; with more arms, one series for each."""
ABOVE = 9
"""Lines of the screen above the first series and, of further ones, below the last."""
MOST = 3
"""Settings and incidents that are listed."""
NAME = 30
"""Characters of a run's name in a sentence."""
COLORS = ("cyan", "yellow", "magenta", "green", "blue", "red")


def on_screen(comparison: Comparison) -> RenderableType:
    """The comparison in 25 lines of 80 columns for two arms; each further arm takes some more."""
    color = "bold yellow" if any(against.parted for against in comparison.others) else "bold green"
    heading = "\n".join(cut(consequence(against), 150) for against in comparison.others)
    parts: list[RenderableType] = [Text.assemble(("tracker_diag: ", "dim"), (heading, color)), _arms(comparison)]
    for against in comparison.others:
        if len(comparison.others) > 1:
            parts += [Text(), Text(f"{against.arm.label} against A", style="bold")]
        parts += _body(comparison, against)
    return Group(*parts)


def headline(comparison: Comparison) -> str:
    """The consequence of each arm in one line: what became of the outcome, and what differs first."""
    return "; ".join(consequence(against) for against in comparison.others)


def consequence(against: Against) -> str:
    """What became of an arm against the reference, in one sentence without a full stop."""
    outcome = _outcome(against)
    when = f" since {about(against.axis, outcome)}" if outcome else ""
    return f"{harm(against)}{when}" + (f" ({began(against)})" if against.parted[:1] not in ((), (outcome,)) else "")


def harm(against: Against) -> str:
    """Which outcome parted, and by how much."""
    name = named_arm(against.arm)
    if not against.parted:
        return f"{name}: nothing parted in {len(against.alike)} series"
    outcome = _outcome(against)
    if outcome is None:
        return f"{name}: no outcome parted"
    changed = f"{abs(outcome.by):.2g} {'lower' if outcome.by < 0 else 'higher'}"
    changed = times(outcome.by) if outcome.scale == "ratio" else changed
    return f"{name}: {name_of(outcome.series)} is {changed} on average"


def began(against: Against) -> str:
    """Since when it differs, and in which series first; empty where nothing parted."""
    first = next(iter(against.parted), None)
    return f"first difference from {about(against.axis, first)}: {name_of(first.series)}" if first else ""


def _outcome(against: Against) -> Parted | None:
    """The outcome that parted most; None where none did."""
    return next((series for series in by_effect(against.parted) if declared(series.series).outcome), None)


def preferred(comparison: Comparison) -> str:
    """Which run to keep, by the outcomes that parted: the reference, or the best of the others; empty if none did."""
    gains: list[tuple[float, Arm]] = []
    for against in comparison.others:
        if outcome := _outcome(against):
            change = math.log(outcome.by) if outcome.scale == "ratio" else outcome.by
            gains.append((-change if declared(outcome.series).worse == "higher" else change, against.arm))
    gain, best = max(gains, key=lambda it: it[0], default=(0.0, comparison.reference))
    if gain > 0 or not gains:
        return f"Keep {named_arm(best)}" if gains else ""
    worse = [arm.label for change, arm in gains if change < 0]
    verb = f": {', '.join(worse)} {'is' if len(worse) == 1 else 'are'} worse" if worse else ""
    return f"Keep {named_arm(comparison.reference)}{verb}"


def named_arm(arm: Arm) -> str:
    """The label with the name of its first run, a file's without its ending: "B (lr-high)"."""
    source = arm.sources[0]
    name = source.rpartition("/")[2] if is_of_tracker(source) else Path(near(source)).stem or source
    return f"{arm.label} ({cut(name, NAME)})"


def by_effect(parted: Sequence[Parted]) -> list[Parted]:
    """Outcomes first, then the others; of each the largest difference first."""
    return sorted(parted, key=lambda series: (not declared(series.series).outcome, -series.margins))


def _arms(comparison: Comparison) -> Table:
    rows = labelled(LABELS)
    for index, arm in enumerate([comparison.reference, *(against.arm for against in comparison.others)]):
        first, *rest = arm.sources
        more = f" and {len(rest)} more seed{'s' * (len(rest) > 1)}" if rest else ""
        source, room = first if is_of_tracker(first) else near(first), 64 - len(more)
        source = cut(source, room) if is_of_tracker(first) or len(source) <= room else f"…{source[1 - room :]}"
        label = f"{arm.label}{' reference' * (not index)}"
        rows.add_row(Text(label, style=COLORS[index % len(COLORS)]), one_line(f"{source}{more}"))
    return rows


def _body(comparison: Comparison, against: Against) -> list[RenderableType]:
    heading = labelled(LABELS)
    heading.add_row("aligned by", cut(about_axis(against.axis), 130))
    heading.add_row("margin", about_margin(against))
    rest = labelled(LABELS)
    settings = [one_line(in_words(it, against), "red" if it.evaluation else "") for it in against.settings]
    _add_first(rest, "settings", settings, "more settings differ")
    incidents = [one_line(describe_incident(it, comparison, against), STYLE[it.severity]) for it in against.incidents]
    _add_first(rest, "incidents", incidents, "more")
    if against.unjudged:
        rest.add_row("not judged", cut(about_unjudged(against.unjudged), 130))
    if against.left_out:
        rest.add_row("left out", one_line(about_left_out(against.left_out)))
    taken = ABOVE + bool(against.axis.why) + rest.row_count + bool(against.unjudged)  # these may have two lines
    few = max(min((LINES - taken) // 3, MOST_DRAWN), 1) if len(comparison.others) == 1 else 1
    parts: list[RenderableType] = [heading]
    for series in against.parted[:few]:
        parts += _drawn(comparison, against, series, "then" if len(parts) > 1 else "first")
    if later := against.parted[few:]:
        next_two = [f"{cut(series.series, 34)} since {about(against.axis, series)}" for series in later[:2]]
        more = labelled(LABELS)
        parts.append(more)
        more.add_row("and", "; ".join([*next_two, *([f"and {len(later) - 2} more"] if len(later) > 2 else ())]))
    return [*parts, rest]


def _add_first(rows: Table, heading: str, lines: Sequence[Text], more: str) -> None:
    add_rows(rows, heading, lines[:MOST])
    if len(lines) > MOST:
        rows.add_row("", Text(f"and {len(lines) - MOST} {more}", style="dim"))


def _drawn(comparison: Comparison, against: Against, series: Parted, heading: str) -> list[RenderableType]:
    """Three lines: what parted and when, then mean curve and level of each arm, and by how much they differ."""
    head = labelled(LABELS)
    when = f" since {about(against.axis, series)}"
    head.add_row(heading, one_line(f"{cut(series.series, 64 - len(when))}{when}", "bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=LABELS)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    axis, log = against.axis, declared(series.series).scale == "log"
    seeds = [placed(axis, arm.runs, series.series) for arm in (comparison.reference, against.arm)]
    points = [[point for curve in curves for point in curve.items()] for curves in seeds]
    curves = heights(points, axis.low, axis.high, CELLS, log=log)
    levels = (f"A {series.reference:.3g}", f"{against.arm.label} {series.other:.3g}")
    colors = (COLORS[0], COLORS[(ord(against.arm.label[0]) - ord("A")) % len(COLORS)])
    for index, (level, says) in enumerate(zip(levels, (by(series), against_seeds(series)), strict=True)):
        bar = bars(curves[index]) if curves else ""
        table.add_row(Text(f"  {level}", style=colors[index]), Text(bar, style=colors[index]), says)
    return [head, table]


def placed(axis: Axis, runs: Sequence[Diagnosis], name: str) -> list[dict[float, float]]:
    """The values of a series by their place on the axis, for each of `runs`."""
    series = [run.series.get(name, {}) for run in runs]
    places = [axis.places(run.run, points).tolist() for run, points in zip(runs, series, strict=True)]
    return [dict(zip(at, points.values(), strict=True)) for at, points in zip(places, series, strict=True)]


def about_axis(axis: Axis) -> str:
    """The axis in words, and why its unit is not steps."""
    ends = "" if axis.unit == "share of the run" else f" {round(axis.low):,} to {round(axis.high):,}"
    return f"{axis.unit}{ends}" + (f": {axis.why}" if axis.why else "")


def about_margin(against: Against) -> str:
    """What the margin rests on, in words."""
    if against.seeds:
        return "by the spread between seeds and the runs' noise"
    return "by the runs' noise; more seeds would tell luck from effect"


def about_unjudged(unjudged: Mapping[str, str]) -> str:
    """How many series could not be compared, by reason."""
    first = {why: name for name, why in [*unjudged.items()][::-1]}
    return "; ".join(
        f"{first[why]}{f' and {n - 1} more' if n > 1 else ''}: {why}"
        for why, n in Counter(unjudged.values()).most_common()
    )


def about_left_out(keys: Sequence[str]) -> str:
    """How many metrics were not compared because no alias has their names."""
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    many = f"{len(keys)} metric{'s' * (len(keys) > 1)} of unknown name{'s' * (len(keys) > 1)}"
    return f"{many}: {', '.join(cut(key, 24) for key in keys[:3])}{more}"


def by(series: Parted) -> str:
    """By how much it parted, with the interval."""
    if series.scale == "ratio":
        return f"×{series.by:.3g} ({series.low:.3g} to {series.high:.3g})"
    return f"{series.by:+.3g} ({series.low:+.3g} to {series.high:+.3g})"


def against_seeds(series: Parted) -> str:
    """The difference in units of the spread between seeds; empty if that is unknown."""
    times_spread = series.times_spread
    return "" if times_spread is None else f"{times_spread:,.{int(times_spread < 10)}f} times the seeds' spread"


def in_words(setting: Setting, against: Against) -> str:
    """A setting that differs."""
    before, after = (", ".join(values) or "not logged" for values in (setting.reference, setting.other))
    text = f"{cut(setting.name, 36)}: A {cut(before, 40)}, {against.arm.label} {cut(after, 40)}"
    return f"{text} (scores do not compare)" if setting.evaluation else text


def describe_incident(incident: NewIncident, comparison: Comparison, against: Against) -> str:
    """An incident that only one arm has, in words."""
    runs = len((comparison.reference if incident.arm == "A" else against.arm).runs)
    many = f" in {incident.runs} of {runs} runs" if runs > 1 else ""
    place = f" on {incident.slice}" if incident.slice != "all" else ""
    return f"{incident.arm} alone{many}, from step {incident.onset}: {incident.rule} {incident.title}{place}"


def place(axis: Axis, series: Parted) -> str:
    """Where it began to part, accurate to a twentieth of the axis: "99" or "12 %"."""
    return f"{round(series.onset):,}" if axis.unit == "step" else f"{100 * series.onset:.0f} %"


def about(axis: Axis, series: Parted) -> str:
    """The same in a sentence: "about step 99"."""
    at = place(axis, series)
    return f"about step {at}" if axis.unit == "step" else f"about {at} of the run"
