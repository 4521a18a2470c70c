"""Compare: which series of two arms parted, when and by how much, which settings differ, which incidents are new."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from tracker_diag.detect.noise import noise_of
from tracker_diag.detect.parting import FEWEST, PARTS, levels, parting
from tracker_diag.errors import SourceError
from tracker_diag.metrics.series import StatKey
from tracker_diag.metrics.statistics import OF_STEP, declared
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES
from tracker_diag.rules.model import Severity
from tracker_diag.runs.align import Axis, Unit, aligned
from tracker_diag.runs.arms import Setting, arms, differing, each_once
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.stats.arrays import Float64Array

Scale: TypeAlias = Literal["ratio", "difference"]
Points: TypeAlias = Mapping[int, float]

MACHINE_METRICS = frozenset({
    "throughput", "step_seconds", "rollout_seconds", "reward_seconds", "tool_seconds", "tool_timeouts", "wait_share",
    "memory_reserved", "memory_limit", "utilisation", "rank_time_ratio", "concurrency",
})  # fmt: skip
"""Metrics of the machine and its load. They differ between two runs with the same settings."""
SCHEDULED = frozenset({"learning_rate", "kl_target", "length_limit"})
"""Metrics that follow a schedule, which is a setting."""
FEWEST_OF_OUTCOME = 6
"""Values of a reward or an evaluation, at least: three parts with two values each."""
MAY_DIFFER = 3.0
"""Standard errors by which the ends of two outcomes differ that nobody can call alike."""
SAME = 0.01
"""Two schedules are the same if their median difference is at most this part of the larger."""


@dataclass(frozen=True)
class Arm:
    """Runs of the same settings."""

    label: str
    """A for the reference, then B, C, ..."""
    sources: tuple[str, ...]
    """One source for each seed."""


@dataclass(frozen=True)
class Parted:
    """A series that parts from the reference by more than seeds or noise explain."""

    series: str
    onset: float
    """Where on the axis the levels begin to part, accurate to one part of the axis."""
    step: int
    """The same place as a step of the reference."""
    parted: float
    """Where they have parted by the margin."""
    end: float | None
    """Where they are together again; None if that does not happen."""
    reference: float
    other: float
    """Mean levels from `parted` to `end`; geometric means on a logarithmic scale."""
    scale: Scale
    by: float
    """Ratio or difference of the levels, as `scale` says."""
    low: float
    high: float
    """95 % interval of `by`: from the spread between seeds if known, otherwise from the noise of the runs only."""
    times_spread: float | None
    """The difference in standard deviations between seeds; None where neither arm has two."""
    margins: float
    """The difference in margins."""


@dataclass(frozen=True)
class NewIncident:
    """A rule that fired at warn or above in only one of two arms."""

    rule: str
    title: str
    slice: str
    severity: Severity
    arm: str
    """Label of the arm in which it fired."""
    runs: int
    """Number of runs of that arm in which it fired."""
    onset: int
    """The earliest onset, a step of the run in which it fired."""


@dataclass(frozen=True)
class Against:
    """One arm compared with the reference."""

    arm: Arm
    unit: Unit
    low: float
    high: float
    """Ends of the axis."""
    why: str
    """Why the unit of the axis is not steps; empty if it is."""
    seeds: bool
    """Whether the spread between seeds is known."""
    parted: tuple[Parted, ...]
    """The earliest first."""
    alike: tuple[str, ...]
    """Series that were compared and have not parted."""
    unjudged: Mapping[str, str]
    """Series that could not be compared, and why."""
    left_out: tuple[str, ...]
    """Keys that all runs have and no alias maps. Their scale is unknown, and they may describe the machine."""
    settings: tuple[Setting, ...]
    """Settings that differ, those of the evaluation first."""
    incidents: tuple[NewIncident, ...]
    axis: Axis = field(repr=False)
    """It places the runs of the reference first, then those of this arm."""
    runs: tuple[Diagnosis, ...] = field(repr=False)


@dataclass(frozen=True)
class Comparison:
    """A reference arm and the arms compared with it."""

    reference: Arm
    others: tuple[Against, ...]
    runs: tuple[Diagnosis, ...] = field(repr=False)
    """The runs of the reference."""

    def to_json(self) -> dict[str, Any]:
        """The JSON of `tracker-diag compare --json`."""
        return {"reference": asdict(self.reference), "others": [_json(against) for against in self.others]}


def compare(reference: Diagnosis | Sequence[Diagnosis], *others: Diagnosis | Sequence[Diagnosis]) -> Comparison:
    """Compare each of the `others` with the `reference`.

    A sequence of runs is one arm with several seeds. Without any sequence, runs whose settings differ only in the seed
    form one arm. The error rate covers all series of a pair of arms: see `detect.parting`.

    Raises:
        SourceError: one run is given twice, or has no series in common with the reference.
    """
    groups = [(runs,) if isinstance(runs, Diagnosis) else tuple(runs) for runs in (reference, *others)]
    each_once([run for group in groups for run in group])
    if all(len(group) == 1 for group in groups):
        groups = arms([group[0] for group in groups])
    if len(groups) < 2 or not all(groups):
        raise SourceError("one run given, to compare it takes two or more")
    labels = [Arm(_label(index), tuple(run.run.source for run in group)) for index, group in enumerate(groups)]
    first = groups[0]
    against = tuple(_against(first, group, arm) for arm, group in zip(labels[1:], groups[1:], strict=True))
    return Comparison(labels[0], against, first)


def _label(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def _against(reference: tuple[Diagnosis, ...], other: tuple[Diagnosis, ...], arm: Arm) -> Against:
    whole = (*reference, *other)
    common = _shared(whole)
    if not common:
        ours, theirs = (", ".join([*group[0].series][:3]) or "none that is known" for group in (reference, other))
        raise SourceError(
            f"{other[0].run.source}: no series in common with {reference[0].run.source} ({theirs}; {ours})"
        )
    axis = aligned([run.run for run in whole])
    parted, alike, unjudged = list[Parted](), list[str](), _only_one(reference, other)
    for name in common:
        if name.partition(":")[0] in MACHINE_METRICS | SCHEDULED or _repeats_another(name, common):
            continue
        points = [run.series[name] for run in whole]
        inside = [_rows_inside(axis, index, series) for index, series in enumerate(points)]
        fewest = FEWEST_OF_OUTCOME if declared(name).outcome else FEWEST
        if min(inside) < fewest:
            unjudged[name] = f"{min(inside)} values, it takes {fewest}"
            continue
        result = _parted(name, points, axis, len(reference), parts=min(PARTS, min(inside) // 2))
        if result is not None:
            parted.append(result)
        elif unsure := declared(name).outcome and _unsure(points, axis, len(reference), few=min(inside) < FEWEST):
            unjudged[name] = unsure
        else:
            alike.append(name)
    return Against(
        arm, axis.unit, axis.low, axis.high, axis.why,
        seeds=len(whole) > 2,
        parted=tuple(sorted(parted, key=lambda series: (series.onset, -series.margins))),
        alike=tuple(alike),
        unjudged=unjudged,
        left_out=tuple(key for key in whole[0].keys.unmapped if all(key in run.keys.unmapped for run in whole[1:])),
        settings=(*differing(reference, other), *_schedules(reference, other, axis)),
        incidents=(*_new(other, reference, arm.label), *_new(reference, other, "A")),
        axis=axis,
        runs=other,
    )  # fmt: skip


def _shared(runs: Sequence[Diagnosis]) -> list[str]:
    return [name for name in runs[0].series if all(name in run.series for run in runs[1:])]


def _repeats_another(name: str, names: Collection[str]) -> bool:
    """Whether a series is a count of tokens, or a statistic of single steps whose windowed form is there too."""
    key = StatKey.parse(name)
    if key is None:
        return False
    windowed = StatKey(key.pair, key.slice, key.stat.removesuffix("_step"))
    return key.stat == "count" or (key.stat in OF_STEP and windowed in names)


def _only_one(reference: Sequence[Diagnosis], other: Sequence[Diagnosis]) -> dict[str, str]:
    """Series that not every run has."""
    names = dict.fromkeys(name for run in (*reference, *other) for name in run.series if not name.endswith("/count"))
    counts = {name: [sum(name in run.series for run in group) for group in (reference, other)] for name in names}
    return {
        name: "only some runs have it" if min(have) else f"only the {'reference' if have[0] else 'other'} has it"
        for name, have in counts.items()
        if have != [len(reference), len(other)]
    }


def _rows_inside(axis: Axis, run: int, points: Points) -> int:
    places = axis.places[run]([*points])
    return int(((places >= axis.low) & (places <= axis.high)).sum())


def _parted(name: str, points: Sequence[Points], axis: Axis, references: int, parts: int) -> Parted | None:
    metric = declared(name)
    log = metric.scale == "log" and min(min(series.values()) for series in points) > 0
    runs = [_levels(axis, index, series, parts, log=log) for index, series in enumerate(points)]
    matters = metric.matters if metric.unit == "share" and not log else 0.0
    result = parting(np.array(runs[:references]), np.array(runs[references:]), log=log, matters=matters)
    if result is None:
        return None
    width = (axis.high - axis.low) / parts
    onset, difference = axis.low + result.onset * width, result.other - result.reference
    return Parted(
        series=name,
        onset=onset,
        step=_step_at(axis, points[0], onset),
        parted=axis.low + (result.parted + 1) * width,
        end=None if result.end == parts - 1 else axis.low + (result.end + 1) * width,
        reference=_back(result.reference, log=log),
        other=_back(result.other, log=log),
        scale="ratio" if log else "difference",
        by=_back(difference, log=log),
        low=_back(result.low, log=log),
        high=_back(result.high, log=log),
        times_spread=abs(difference) / result.spread if result.spread else None,
        margins=result.beyond,
    )


def _unsure(points: Sequence[Points], axis: Axis, references: int, *, few: bool) -> str:
    """That an outcome is too seldom logged to say whether its end differs, with both levels; empty if it is not so.

    A level is the mean over the last third of the axis. The levels may differ if they do by `MAY_DIFFER` standard
    errors, as the changes from value to value tell them. With few values no two levels are surely alike.
    """
    late = axis.high - (axis.high - axis.low) / 3
    levels, variances = list[float](), list[float]()
    for index, series in enumerate(points):
        values, places = np.clip([*series.values()], -1e100, 1e100), axis.places[index]([*series])
        last = values[(places >= late) & (places <= axis.high)]
        if not len(last):
            return "no value in its last third"
        levels.append(float(last.mean()))
        variances.append(noise_of(values) ** 2 / len(last))
    before, after = float(np.mean(levels[:references])), float(np.mean(levels[references:]))
    error = math.sqrt(sum(variances)) / min(references, len(points) - references)
    if not few and abs(after - before) <= MAY_DIFFER * error:
        return ""
    why = f"too few {'values' if few else 'runs'} to tell"
    return f"{why}: {before:.3g} against {after:.3g} over the last third"


def _back(level: float, *, log: bool) -> float:
    """`level` on the scale of the series; capped, since exp overflows above 709."""
    return math.exp(min(level, 700.0)) if log else level


def _levels(axis: Axis, run: int, points: Points, parts: int, *, log: bool) -> Float64Array:
    values = np.clip(np.fromiter(points.values(), np.float64), -1e100, 1e100)
    return levels(axis.places[run]([*points]), np.log(values) if log else values, axis.low, axis.high, parts)


def _step_at(axis: Axis, points: Points, place: float) -> int:
    steps = [*points]
    later = np.flatnonzero(axis.places[0](steps) >= place)
    return steps[int(later[0])] if len(later) else steps[-1]


def _schedules(reference: Sequence[Diagnosis], other: Sequence[Diagnosis], axis: Axis) -> Iterable[Setting]:
    """Scheduled settings that were logged, where the schedules of the two arms differ."""
    whole = (*reference, *other)
    for name in sorted(SCHEDULED & {*_shared(whole)}):
        runs = [_levels(axis, index, run.series[name], PARTS, log=False) for index, run in enumerate(whole)]
        with np.errstate(all="ignore"):
            before, after = np.mean(runs[: len(reference)], axis=0), np.mean(runs[len(reference) :], axis=0)
            difference = np.abs(after - before) / np.maximum(np.abs(before), np.abs(after))
        difference = np.nan_to_num(difference[np.isfinite(before) & np.isfinite(after)])
        if len(difference) and float(np.median(difference)) > SAME:
            first, second = (f"{float(np.nanmedian(levels)):.3g}, as logged" for levels in (before, after))
            yield Setting(name, (first,), (second,), evaluation=False)


def _new(having: Sequence[Diagnosis], lacking: Sequence[Diagnosis], label: str) -> list[NewIncident]:
    """Causes of incidents in `having` whose rule fired in no run of `lacking`, the earliest first."""
    known = {finding.rule.id for run in lacking for finding in _loud(run)}
    causes_of: dict[tuple[str, str], list[tuple[Finding, Severity]]] = {}
    for run in having:
        for incident in run.summary.incidents:
            if incident.severity != "info" and incident.cause.rule.id not in known:
                key = incident.cause.rule.id, incident.cause.slice
                causes_of.setdefault(key, []).append((incident.cause, incident.severity))
    new = list[NewIncident]()
    for (rule, slice), causes in causes_of.items():
        severities: set[Severity] = {severity for _, severity in causes}
        worst, onset = max(severities, key=SEVERITIES.index), min(cause.onset for cause, _ in causes)
        new.append(NewIncident(rule, causes[0][0].rule.title, slice, worst, label, len(causes), onset))
    return sorted(new, key=lambda incident: incident.onset)


def _loud(run: Diagnosis) -> list[Finding]:
    return [finding for finding in run.summary.findings if finding.fired is not None and finding.severity != "info"]


def _json(against: Against) -> dict[str, Any]:
    return {
        **asdict(against.arm),
        "axis": {"unit": against.unit, "low": against.low, "high": against.high, "why": against.why},
        "spread": "between seeds" if against.seeds else "unknown",
        "parted": [asdict(series) for series in against.parted],
        "alike": list(against.alike),
        "unjudged": dict(against.unjudged),
        "left_out": list(against.left_out),
        "settings": [asdict(setting) for setting in against.settings],
        "incidents": [asdict(incident) for incident in against.incidents],
    }
