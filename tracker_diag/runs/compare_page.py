"""A comparison as one self-contained page: the consequence, the curves of all runs under one cursor, what differs."""

from collections.abc import Sequence

from tracker_diag.metrics.statistics import declared
from tracker_diag.report.charts import Chart, axis_ticks, chart, drawn_marks
from tracker_diag.report.console import cut
from tracker_diag.report.curves import DASHBOARD
from tracker_diag.report.templates import RUNS, rendered
from tracker_diag.report.tiles import name_of
from tracker_diag.runs import compared as words
from tracker_diag.runs.compare import Against, Comparison

MOST_CURVES = 24
"""Series that are drawn, those with the largest difference."""


def page(comparison: Comparison) -> str:
    """One self-contained page."""
    arms = (comparison.reference, *(against.arm for against in comparison.others))
    return rendered(
        "compare.html.j2",
        {},
        arms=[(words.named_arm(arm), _color(index), arm.sources) for index, arm in enumerate(arms)],
        preferred=words.preferred(comparison),
        consequences=[
            (words.harm(it), words.began(it), _color(index), [cut(setting.name, words.NAME) for setting in it.settings])
            for index, it in enumerate(comparison.others, 1)
        ],
        parted=any(against.parted for against in comparison.others),
        groups=[
            _curves(comparison, unit) for unit in dict.fromkeys(against.axis.unit for against in comparison.others)
        ],
        comparison=comparison,
        words=words,
    )


def _color(arm: int) -> str:
    return f"run{arm % len(RUNS)}"


def _curves(comparison: Comparison, unit: str) -> dict[str, object]:
    """Charts over one axis: the reference and all arms that are aligned with it by the same unit."""
    others = [(index, it) for index, it in enumerate(comparison.others, 1) if it.axis.unit == unit]
    ends = (min(it.axis.low for _, it in others), max(it.axis.high for _, it in others))
    by_effect = words.by_effect([series for _, it in others for series in it.parted])
    names = [*dict.fromkeys(series.series for series in by_effect)]
    parted = []
    for name in names[:MOST_CURVES]:
        if drawn := _chart(comparison, others, name, ends):
            arms = [(index, it, series) for index, it in others for series in it.parted if series.series == name]
            marks = [
                (series.onset, f"{it.arm.label} from {words.place(it.axis, series)}", _color(index))
                for index, it, series in arms
            ]
            says = [
                f"{it.arm.label} {', '.join(filter(None, (words.by(series), words.against_seeds(series))))}"
                for _, it, series in arms
            ]
            alike = [it for _, it in others if all(series.series != name for series in it.parted)]
            says += [f"{it.arm.label} {it.unjudged.get(name, 'no sure difference')}" for it in alike]
            parted.append((drawn, drawn_marks(marks, ends), says))
    calm = [name for name in comparison.reference.runs[0].series if declared(name).outcome or name in DASHBOARD]
    charts = [_chart(comparison, others, name, ends) for name in calm if name not in names]
    ticks = axis_ticks(ends) if unit != "share of the run" else [(0.0, "0 %"), (50.0, "50 %"), (100.0, "100 %")]
    return {"unit": unit, "ends": ends, "ticks": ticks, "parted": parted, "alike": [*filter(None, charts)]}


def _chart(
    comparison: Comparison, others: Sequence[tuple[int, Against]], name: str, ends: tuple[float, float]
) -> Chart | None:
    """One line for each run, of the reference first."""
    arms = [(0, others[0][1].axis, comparison.reference), *((index, it.axis, it.arm) for index, it in others)]
    lines = [
        (arm.label if len(arm.runs) == 1 else f"{arm.label}{seed}", _color(index), points)
        for index, axis, arm in arms
        for seed, points in enumerate(words.placed(axis, arm.runs, name), 1)
    ]
    metric = declared(name)
    unit = "" if metric.unit in (name, "reward", "score", "loss") else metric.unit
    return chart(name_of(name), unit, lines, ends, log=metric.scale == "log")
