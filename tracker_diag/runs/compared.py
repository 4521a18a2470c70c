"""A comparison as it is shown: what parted first with its curves, settings, incidents, and the page."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tracker_diag.report.console import cut, labelled, near
from tracker_diag.report.overlay import CELLS, POINTS, Overlay, bars, overlay
from tracker_diag.report.templates import rendered
from tracker_diag.report.timeline import STYLE
from tracker_diag.runs.arms import Setting
from tracker_diag.runs.compare import Against, Comparison, NewIncident, Parted
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.trackers.open import is_of_tracker

LABELS = 12
"""Columns of the labels."""
LINES = 25
"""Of the screen, for two arms."""
MOST_DRAWN = 4
"""Series that are drawn, 3 lines each; one alone for each of several arms."""
MOST_SETTINGS, MOST_INCIDENTS = 3, 3
MOST_CURVES = 24
"""On the page."""
ALSO_SHOWN = ("reward", "eval_score", "verifier_score", "success_rate", "loss", "kl", "entropy")
"""Series that the page draws though they have not parted."""
COLORS = ("cyan", "yellow", "magenta", "green", "blue", "red")


def on_screen(found: Comparison) -> RenderableType:
    """The comparison in 25 lines of 80 columns for two arms; each further one takes some more."""
    parts: list[RenderableType] = [_head(found), _who(found)]
    for one in found.others:
        if len(found.others) > 1:
            parts += [Text(), Text(f"{one.arm.label} against A", style="bold")]
        parts += _held(found, one)
    return Group(*parts)


def headline(found: Comparison) -> str:
    """The comparison in one line."""
    said = []
    for one in found.others:
        if not one.parted:
            said.append(f"{one.arm.label}: nothing parted, {_judged(one)} series held against A")
        else:
            first = f"first {one.parted[0].series} {_from(one, one.parted[0])}"
            said.append(f"{one.arm.label}: {len(one.parted)} of {_judged(one)} series parted, {first}")
    return "; ".join(said)


def _head(found: Comparison) -> Text:
    judged = max(_judged(one) for one in found.others)
    names = {series.series for one in found.others for series in one.parted}
    said = f"{len(names)} of {judged} series parted" if names else f"nothing parted in {judged} series"
    return Text.assemble(("tracker_diag: ", "dim"), (said, "bold yellow" if names else "bold green"))


def _who(found: Comparison) -> Table:
    rows = labelled(LABELS)
    for at, arm in enumerate([found.reference, *(one.arm for one in found.others)]):
        first, *rest = arm.sources
        more = f" and {len(rest)} more seed{'s' * (len(rest) > 1)}" if rest else ""
        label = f"{arm.label} reference" if not at else arm.label
        rows.add_row(
            Text(label, style=COLORS[at % len(COLORS)]),
            _line(f"{_named(first, 64 - len(more))}{more}", ""),
        )
    return rows


def _held(found: Comparison, one: Against) -> list[RenderableType]:
    rows = labelled(LABELS)
    rows.add_row("aligned by", cut(about_axis(one), 130))
    rows.add_row("margin", about_margin(one))
    parts: list[RenderableType] = [rows]
    few = _room(one) if len(found.others) == 1 else 1
    for heading, series in zip(("parted first", *["then"] * few), one.parted[:few], strict=False):
        parts += _drawn(found, one, series, heading)
    if one.parted[few:]:
        rest = labelled(LABELS)
        told = [f"{cut(series.series, 34)} {_from(one, series)}" for series in one.parted[few : few + 2]]
        more = len(one.parted) - few - len(told)
        rest.add_row("and", "; ".join(told) + (f"; and {more} more" if more else ""))
        parts.append(rest)
    rest = labelled(LABELS)
    for heading, setting in zip(("settings", "", ""), one.settings[:MOST_SETTINGS], strict=False):
        rest.add_row(heading, _line(in_words(setting, one), "red" if setting.evaluation else ""))
    if len(one.settings) > MOST_SETTINGS:
        rest.add_row("", Text(f"and {len(one.settings) - MOST_SETTINGS} more settings differ", style="dim"))
    for heading, incident in zip(("incidents", "", ""), one.incidents[:MOST_INCIDENTS], strict=False):
        rest.add_row(heading, _line(told_of(incident, found, one), STYLE[incident.severity]))
    if len(one.incidents) > MOST_INCIDENTS:
        rest.add_row("", Text(f"and {len(one.incidents) - MOST_INCIDENTS} more", style="dim"))
    if one.unjudged:
        rest.add_row("not judged", cut(about_unjudged(one.unjudged), 130))
    if one.left_out:
        rest.add_row("left out", _line(about_left_out(one.left_out), ""))
    return [*parts, rest]


def _room(one: Against) -> int:
    """How many series can be drawn, with what else there is to say in two lines at most."""
    below = min(len(one.settings), MOST_SETTINGS + 1) + min(len(one.incidents), MOST_INCIDENTS + 1)
    above = 6 if one.why else 5
    return max(min((LINES - above - below - 2 - 2 * bool(one.unjudged) - bool(one.left_out)) // 3, MOST_DRAWN), 1)


def _drawn(found: Comparison, one: Against, series: Parted, heading: str) -> list[RenderableType]:
    """Three lines: what parted and when, then a curve and a level for each of the two, and by how much."""
    head = labelled(LABELS)
    since = f" {_from(one, series)}"
    head.add_row(heading, _line(f"{cut(series.series, 64 - len(since))}{since}", "bold"))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=LABELS)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    curves = drawn(found, one, series.series, CELLS, means=True)
    at_most = (f"A {series.reference:.3g}", f"{one.arm.label} {series.other:.3g}")
    for at, (level, says) in enumerate(zip(at_most, (by(series), against_seeds(series)), strict=True)):
        color = COLORS[0] if at == 0 else _color(one)
        bar = bars(curves.heights[at]) if curves else ""
        table.add_row(Text(f"  {level}", style=color), Text(bar, style=color), says)
    return [head, table]


def drawn(found: Comparison, one: Against, name: str, parts: int, *, means: bool) -> Overlay | None:
    """The curves of a series: of each run, the reference's first, or of each arm's `means`."""
    runs = (*found.runs, *one.runs)
    curves = [_placed(one, at, run, name) for at, run in enumerate(runs)]
    if means:
        curves = [_merged(curves[: len(found.runs)]), _merged(curves[len(found.runs) :])]
    return overlay(curves, one.low, one.high, parts)


def _placed(one: Against, at: int, run: Diagnosis, name: str) -> dict[float, float]:
    points = run.series.get(name, {})
    return dict(zip(map(float, one.axis.places[at]([*points])), points.values(), strict=True)) if points else {}


def _merged(curves: Sequence[Mapping[float, float]]) -> dict[float, float]:
    found: dict[float, list[float]] = {}
    for one in curves:
        for at, value in one.items():
            found.setdefault(at, []).append(value)
    return {at: sum(value / len(values) for value in values) for at, values in sorted(found.items())}


def about_axis(one: Against) -> str:
    """The axis in words, and why it is none of steps."""
    ends = "" if one.unit == "share of the run" else f" {_number(one.low)} to {_number(one.high)}"
    return f"{one.unit}{ends}" + (f": {one.why}" if one.why else "")


def about_margin(one: Against) -> str:
    """What was held against what, in words."""
    if one.seeds:
        return "by the spread between seeds and the runs' noise"
    return "by the runs' noise; more seeds would tell luck from effect"


def about_unjudged(unjudged: Mapping[str, str]) -> str:
    """How many series could not be held against each other, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in unjudged.items():
        reasons.setdefault(why, []).append(name)
    told = sorted(reasons.items(), key=lambda item: -len(item[1]))
    return "; ".join(
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}" for why, names in told
    )


def about_left_out(keys: Sequence[str]) -> str:
    """How many metrics were not compared as their names are nobody's but the user's."""
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    many = f"{len(keys)} metric{'s' * (len(keys) > 1)} of unknown name{'s' * (len(keys) > 1)}"
    return f"{many}: {', '.join(cut(key, 24) for key in keys[:3])}{more}"


def by(series: Parted) -> str:
    """By how much it parted, with the interval."""
    if series.scale == "ratio":
        return f"×{series.by:.3g} ({series.low:.3g} to {series.high:.3g})"
    return f"{series.by:+.3g} ({series.low:+.3g} to {series.high:+.3g})"


def against_seeds(series: Parted) -> str:
    """The same against the spread between seeds; empty if that is not known."""
    return (
        ""
        if series.times_spread is None
        else f"{series.times_spread:,.{int(series.times_spread < 10)}f} times the seeds' spread"
    )


def in_words(setting: Setting, one: Against) -> str:
    """A setting that differs."""
    before, after = (", ".join(values) or "not told" for values in (setting.reference, setting.other))
    text = f"{cut(setting.name, 36)}: A {cut(before, 40)}, {one.arm.label} {cut(after, 40)}"
    return f"{text} (scores do not compare)" if setting.evaluation else text


def told_of(incident: NewIncident, found: Comparison, one: Against) -> str:
    """An incident that one arm alone has."""
    runs = len(found.runs) if incident.arm == "A" else len(one.runs)
    many = f" in {incident.runs} of {runs} runs" if runs > 1 else ""
    place = f" on {incident.slice}" if incident.slice != "all" else ""
    return f"{incident.arm} alone{many}, from step {incident.onset}: {incident.rule} {incident.title}{place}"


def page(found: Comparison) -> str:
    """One self-contained page."""
    return rendered(
        "compare.html.j2",
        {},
        found=found,
        arms=(found.reference, *(one.arm for one in found.others)),
        sections=[_section(found, one) for one in found.others],
        headline=headline(found),
    )


def _section(found: Comparison, one: Against) -> dict[str, object]:
    shown = [series.series for series in one.parted[:MOST_CURVES]]
    also = [name for name in ALSO_SHOWN if name in one.alike]
    by_name = {series.series: series for series in one.parted}
    curves = [_curve(found, one, name, by_name.get(name)) for name in (*shown, *also)]
    return {
        "against": one,
        "judged": _judged(one),
        "axis": about_axis(one),
        "margin": about_margin(one),
        "curves": [curve for curve in curves if curve["lines"]],
        "references": len(found.runs),
        "left_out": len(one.parted) - len(shown),
        "rows": [(series, _from(one, series), by(series), against_seeds(series)) for series in one.parted],
        "settings": [(setting, in_words(setting, one)) for setting in one.settings],
        "incidents": [(incident, told_of(incident, found, one)) for incident in one.incidents],
        "unjudged": about_unjudged(one.unjudged) if one.unjudged else "",
        "left_out_keys": about_left_out(one.left_out) if one.left_out else "",
    }


def _curve(found: Comparison, one: Against, name: str, series: Parted | None) -> dict[str, object]:
    lines, span = drawn(found, one, name, POINTS, means=False), one.high - one.low or 1.0
    if series is None:
        return {"name": name, "lines": lines, "says": "has not parted", "left": None}
    left, end = series.onset - one.low, one.high if series.end is None else series.end
    width = 100 * (end - series.onset) / span
    return {"name": name, "lines": lines, "says": _says(one, series), "left": 100 * left / span, "width": width}


def _says(one: Against, series: Parted) -> str:
    return ", ".join(filter(None, (_from(one, series), by(series), against_seeds(series))))


def _color(one: Against) -> str:
    return COLORS[(ord(one.arm.label[0]) - ord("A")) % len(COLORS)]


def _from(one: Against, series: Parted) -> str:
    if one.unit == "step":
        return f"from step {_number(series.onset)}"
    if one.unit == "tokens":
        return f"from {_number(series.onset)} tokens"
    return f"from {100 * series.onset:.0f} % of the run"


def _judged(one: Against) -> int:
    return len(one.parted) + len(one.alike)


def _number(value: float) -> str:
    return f"{round(value):,}"


def _line(text: str, style: str) -> Text:
    """One line of `text`, cut where the screen ends."""
    return Text(" ".join(text.split()), style=style, no_wrap=True, overflow="ellipsis")


def _named(source: str, most: int) -> str:
    """A source in so many characters: of a path its end says most, of a tracker's run its beginning."""
    if is_of_tracker(source):
        return cut(source, most)
    path = near(source)
    return path if len(path) <= most else f"…{path[1 - most :]}"
