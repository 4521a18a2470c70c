"""Compare: which series of two arms parted, when and by how much; which settings differ; which incidents are new."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

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

THE_MACHINES = frozenset({
    "throughput", "step_seconds", "rollout_seconds", "reward_seconds", "tool_seconds", "tool_timeouts", "wait_share",
    "memory_reserved", "memory_limit", "utilisation", "rank_time_ratio", "concurrency",
})  # fmt: skip
"""Metrics that tell the machine and its load, and differ between two runs of the same settings."""
SCHEDULED = frozenset({"learning_rate", "kl_target", "length_limit"})
"""Metrics that are settings: whatever they are at a step, they are by decision."""
SAME = 0.01
"""Part by which two schedules differ at most, at half of the steps, and are the same."""


@dataclass(frozen=True)
class Arm:
    """Runs of the same settings."""

    label: str
    """A for the reference, then B, C, ..."""
    sources: tuple[str, ...]
    """One a seed."""


@dataclass(frozen=True)
class Parted:
    """A series that parts from the reference, and does so by more than seeds or noise explain."""

    series: str
    onset: float
    """Where on the axis the levels begin to part, exact to one part of it."""
    step: int
    """The same as a step of the reference."""
    parted: float
    """Where they have parted by the margin."""
    end: float | None
    """Where they have come together again; None if they stay apart."""
    reference: float
    other: float
    """Mean levels from where they have parted to there; on a logarithmic scale geometric ones."""
    scale: Scale
    by: float
    """Ratio of the levels, or difference, as `scale` says."""
    low: float
    high: float
    """95 % interval of `by`: of seeds where `spread` is known, else of the runs' own noise alone."""
    times_spread: float | None
    """The difference in standard deviations between seeds; None where neither arm has two."""
    margins: float
    """By how many margins they are apart."""


@dataclass(frozen=True)
class NewIncident:
    """A rule that fired at warn or above in one arm alone."""

    rule: str
    title: str
    slice: str
    severity: Severity
    arm: str
    """Label of the arm that has it."""
    runs: int
    """Runs of that arm that have it."""
    onset: int
    """The earliest, as a step of the run that has it."""


@dataclass(frozen=True)
class Against:
    """One arm held against the reference."""

    arm: Arm
    unit: Unit
    low: float
    high: float
    """Ends of the axis."""
    why: str
    """Why the axis is not that of steps; empty if it is."""
    seeds: bool
    """Whether the spread between seeds is known."""
    parted: tuple[Parted, ...]
    """The earliest first."""
    alike: tuple[str, ...]
    """Series that were held against each other and have not parted."""
    unjudged: Mapping[str, str]
    """Series that could not be, and why."""
    left_out: tuple[str, ...]
    """Keys that all runs have and no alias maps: nobody knows their scale, or whether they tell of the machine."""
    settings: tuple[Setting, ...]
    """Those of the evaluation first."""
    incidents: tuple[NewIncident, ...]
    axis: Axis = field(repr=False)
    """Places of the reference's runs, then of this arm's."""
    runs: tuple[Diagnosis, ...] = field(repr=False)


@dataclass(frozen=True)
class Comparison:
    """A reference arm and what was held against it."""

    reference: Arm
    others: tuple[Against, ...]
    runs: tuple[Diagnosis, ...] = field(repr=False)
    """Of the reference."""

    def to_json(self) -> dict[str, Any]:
        """The JSON of `tracker-diag compare --json`."""
        return {"reference": asdict(self.reference), "others": [_json(one) for one in self.others]}


def compare(reference: Diagnosis | Sequence[Diagnosis], *others: Diagnosis | Sequence[Diagnosis]) -> Comparison:
    """Hold one or several `others` against the `reference`.

    Several runs in a sequence are seeds of one arm. Where none is given so, runs whose settings agree but for the seed
    are taken for one. The error is held over all series of a pair of arms: see `detect.parting`.

    Raises:
        SourceError: one run is given twice, or has no series in common with the reference.
    """
    given = [(one,) if isinstance(one, Diagnosis) else tuple(one) for one in (reference, *others)]
    each_once([run for group in given for run in group])
    groups = arms([group[0] for group in given]) if all(len(group) == 1 for group in given) else given
    if len(groups) < 2 or not all(groups):
        raise SourceError("one run given, to compare it takes two or more")
    labels = [Arm(_label(at), tuple(run.run.source for run in group)) for at, group in enumerate(groups)]
    first = groups[0]
    held = tuple(_against(first, group, arm) for arm, group in zip(labels[1:], groups[1:], strict=True))
    return Comparison(labels[0], held, first)


def _label(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else str(at + 1)


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
        if name.partition(":")[0] in THE_MACHINES | SCHEDULED or _says_no_more(name, common):
            continue
        points = [run.series[name] for run in whole]
        inside = [_inside(axis, at, one) for at, one in enumerate(points)]
        if min(inside) < FEWEST:
            unjudged[name] = f"{min(inside)} values, it takes {FEWEST}"
            continue
        found = _parted(name, points, axis, len(reference), parts=min(PARTS, min(inside) // 2))
        if found is None:
            alike.append(name)
        else:
            parted.append(found)
    return Against(
        arm, axis.unit, axis.low, axis.high, axis.why,
        seeds=len(whole) > 2,
        parted=tuple(sorted(parted, key=lambda one: (one.onset, -one.margins))),
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


def _says_no_more(name: str, among: Collection[str]) -> bool:
    """Whether a series is a count of tokens, or a statistic of single steps of which there is that of the window."""
    key = StatKey.parse(name)
    if key is None:
        return False
    of_window = StatKey(key.pair, key.slice, key.stat.removesuffix("_step"))
    return key.stat == "count" or (key.stat in OF_STEP and of_window in among)


def _only_one(reference: Sequence[Diagnosis], other: Sequence[Diagnosis]) -> dict[str, str]:
    """Series that not every run has."""
    names = dict.fromkeys(name for run in (*reference, *other) for name in run.series if not name.endswith("/count"))
    have = {name: [sum(name in run.series for run in group) for group in (reference, other)] for name in names}
    return {
        name: "only some runs have it" if min(of) else f"only {'the reference has' if of[0] else 'the other has'} it"
        for name, of in have.items()
        if of != [len(reference), len(other)]
    }


def _inside(axis: Axis, run: int, points: Points) -> int:
    places = axis.places[run]([*points])
    return int(((places >= axis.low) & (places <= axis.high)).sum())


def _parted(name: str, points: Sequence[Points], axis: Axis, references: int, parts: int) -> Parted | None:
    metric = declared(name)
    log = metric.scale == "log" and min(min(one.values()) for one in points) > 0
    of = [_levels(axis, at, one, parts, log=log) for at, one in enumerate(points)]
    matters = metric.matters if metric.unit == "share" and not log else 0.0
    found = parting(np.array(of[:references]), np.array(of[references:]), log=log, matters=matters)
    if found is None:
        return None
    width = (axis.high - axis.low) / parts
    onset, apart = axis.low + found.onset * width, found.other - found.reference
    return Parted(
        series=name,
        onset=onset,
        step=_step_at(axis, points[0], onset),
        parted=axis.low + (found.parted + 1) * width,
        end=None if found.end == parts - 1 else axis.low + (found.end + 1) * width,
        reference=_back(found.reference, log=log),
        other=_back(found.other, log=log),
        scale="ratio" if log else "difference",
        by=_back(apart, log=log),
        low=_back(found.low, log=log),
        high=_back(found.high, log=log),
        times_spread=abs(apart) / found.spread if found.spread else None,
        margins=found.beyond,
    )


def _back(level: float, *, log: bool) -> float:
    return math.exp(min(level, 700.0)) if log else level


def _levels(axis: Axis, run: int, points: Points, parts: int, *, log: bool) -> Float64Array:
    values = np.clip(np.fromiter(points.values(), np.float64), -1e100, 1e100)
    return levels(axis.places[run]([*points]), np.log(values) if log else values, axis.low, axis.high, parts)


def _step_at(axis: Axis, points: Points, place: float) -> int:
    steps = [*points]
    later = np.flatnonzero(axis.places[0](steps) >= place)
    return steps[int(later[0])] if len(later) else steps[-1]


def _schedules(reference: Sequence[Diagnosis], other: Sequence[Diagnosis], axis: Axis) -> Iterable[Setting]:
    """What is set by a schedule and logged, where the two are not the same at half of the steps."""
    whole = (*reference, *other)
    for name in sorted(SCHEDULED & {*_shared(whole)}):
        of = [_levels(axis, at, run.series[name], PARTS, log=False) for at, run in enumerate(whole)]
        with np.errstate(all="ignore"):
            before, after = np.mean(of[: len(reference)], axis=0), np.mean(of[len(reference) :], axis=0)
            apart = np.abs(after - before) / np.maximum(np.abs(before), np.abs(after))
        apart = np.nan_to_num(apart[np.isfinite(before) & np.isfinite(after)])
        if len(apart) and float(np.median(apart)) > SAME:
            told = [f"{float(np.nanmedian(one)):.3g}, as logged" for one in (before, after)]
            yield Setting(name, (told[0],), (told[1],), evaluation=False)


def _new(having: Sequence[Diagnosis], lacking: Sequence[Diagnosis], label: str) -> list[NewIncident]:
    """Causes of incidents in `having` whose rule has fired in no run of `lacking`; the earliest first."""
    known = {one.rule.id for run in lacking for one in _loud(run)}
    found: dict[tuple[str, str], list[tuple[Finding, Severity]]] = {}
    for run in having:
        for incident in run.summary.incidents:
            if incident.severity != "info" and incident.cause.rule.id not in known:
                key = incident.cause.rule.id, incident.cause.slice
                found.setdefault(key, []).append((incident.cause, incident.severity))
    new = list[NewIncident]()
    for (rule, slice), causes in found.items():
        severities: set[Severity] = {severity for _, severity in causes}
        worst, onset = max(severities, key=SEVERITIES.index), min(cause.onset for cause, _ in causes)
        new.append(NewIncident(rule, causes[0][0].rule.title, slice, worst, label, len(causes), onset))
    return sorted(new, key=lambda one: one.onset)


def _loud(run: Diagnosis) -> list[Finding]:
    return [one for one in run.summary.findings if one.fired is not None and one.severity != "info"]


def _json(one: Against) -> dict[str, Any]:
    return {
        **asdict(one.arm),
        "axis": {"unit": one.unit, "low": one.low, "high": one.high, "why": one.why},
        "spread": "between seeds" if one.seeds else "unknown",
        "parted": [asdict(series) for series in one.parted],
        "alike": list(one.alike),
        "unjudged": dict(one.unjudged),
        "left_out": list(one.left_out),
        "settings": [asdict(setting) for setting in one.settings],
        "incidents": [asdict(incident) for incident in one.incidents],
    }
