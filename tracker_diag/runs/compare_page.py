"""A comparison as one self-contained page: the consequence, the curves of all runs under one cursor, what differs."""

from collections.abc import Sequence
from dataclasses import dataclass

from tracker_diag.metrics.statistics import declared
from tracker_diag.report.charts import Chart, Mark, axis_ticks, chart, place
from tracker_diag.report.curves import DASHBOARD
from tracker_diag.report.decision import name_of
from tracker_diag.report.palette import RUNS
from tracker_diag.report.templates import rendered
from tracker_diag.runs import compared as words
from tracker_diag.runs.compare import Against, Comparison, Parted

MOST_CURVES = 24
"""Series that are drawn, those with the largest difference."""


@dataclass(frozen=True)
class Curves:
    """Charts over one axis: the reference and all arms that are aligned with it by the same unit."""

    unit: str
    ends: tuple[float, float]
    ticks: Sequence[tuple[float, str]]
    parted: Sequence[tuple[Chart, Sequence[Mark], Sequence[str]]]
    """Each chart with where arms part, and by how much in words."""
    alike: Sequence[Chart]


def page(comparison: Comparison) -> str:
    """One self-contained page."""
    arms = (comparison.reference, *(against.arm for against in comparison.others))
    return rendered(
        "compare.html.j2",
        {},
        arms=[(words.named_arm(arm), _color(index), arm.sources) for index, arm in enumerate(arms)],
        consequences=[words.consequence(against) for against in comparison.others],
        parted=any(against.parted for against in comparison.others),
        groups=[_curves(comparison, unit) for unit in dict.fromkeys(against.unit for against in comparison.others)],
        sections=[_section(comparison, against) for against in comparison.others],
    )


def _color(arm: int) -> str:
    return f"run{arm % len(RUNS)}"


def _curves(comparison: Comparison, unit: str) -> Curves:
    others = [(index, against) for index, against in enumerate(comparison.others, 1) if against.unit == unit]
    ends = (min(against.low for _, against in others), max(against.high for _, against in others))
    largest: dict[str, Parted] = {}
    for _, against in others:
        for series in against.parted:
            if series.series not in largest or largest[series.series].margins < series.margins:
                largest[series.series] = series
    parted = []
    for name in [series.series for series in words.by_effect([*largest.values()])][:MOST_CURVES]:
        apart = [
            (index, against, series) for index, against in others for series in against.parted if series.series == name
        ]
        marks = [_mark(index, against, series, ends) for index, against, series in apart]
        drawn = _chart(comparison, others, name, ends)
        if drawn is not None:
            parted.append((drawn, marks, [_says(against, series) for _, against, series in apart]))
    shown = [name for name in comparison.runs[0].series if declared(name).outcome or name in DASHBOARD]
    alike = [_chart(comparison, others, name, ends) for name in shown if name not in largest]
    ticks = axis_ticks(ends) if unit != "share of the run" else [(0.0, "0 %"), (50.0, "50 %"), (100.0, "100 %")]
    return Curves(unit, ends, ticks, parted, [drawn for drawn in alike if drawn])


def _mark(index: int, against: Against, series: Parted, ends: tuple[float, float]) -> Mark:
    return Mark(
        place(series.onset, ends), f"{against.arm.label} {words.since(against, series)}", _color(index), index - 1
    )


def _chart(
    comparison: Comparison, others: Sequence[tuple[int, Against]], name: str, ends: tuple[float, float]
) -> Chart | None:
    """One line for each run, of the reference first."""
    first = others[0][1]
    lines = [
        (_label("A", seed, len(comparison.runs)), _color(0), words.placed(first, seed, run, name))
        for seed, run in enumerate(comparison.runs)
    ]
    for index, against in others:
        for seed, run in enumerate(against.runs):
            points = words.placed(against, len(comparison.runs) + seed, run, name)
            lines.append((_label(against.arm.label, seed, len(against.runs)), _color(index), points))
    metric = declared(name)
    unit = "" if metric.unit in (name, "reward", "score", "loss") else metric.unit
    return chart(name_of(name), unit, lines, ends, log=metric.scale == "log")


def _label(arm: str, seed: int, seeds: int) -> str:
    return arm if seeds == 1 else f"{arm}{seed + 1}"


def _says(against: Against, series: Parted) -> str:
    parts = (words.since(against, series), words.by(series), words.against_seeds(series))
    return f"{against.arm.label} parts {', '.join(filter(None, parts))}"


def _section(comparison: Comparison, against: Against) -> dict[str, object]:
    return {
        "against": against,
        "name": words.named_arm(against.arm),
        "judged": words.judged(against),
        "axis": words.about_axis(against),
        "margin": words.about_margin(against),
        "rows": [
            (series, words.since(against, series), words.by(series), words.against_seeds(series))
            for series in words.by_effect(against.parted)
        ],
        "settings": [(setting, words.in_words(setting, against)) for setting in against.settings],
        "incidents": [
            (incident, words.describe_incident(incident, comparison, against)) for incident in against.incidents
        ],
        "unjudged": words.about_unjudged(against.unjudged) if against.unjudged else "",
        "left_out_keys": words.about_left_out(against.left_out) if against.left_out else "",
    }
