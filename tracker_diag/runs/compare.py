"""Compare: which series of two arms parted, when and by how much, which settings differ, which incidents are new."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np

from tracker_diag.detect.noise import noise_of
from tracker_diag.detect.parting import FEWEST, PARTS, levels, parting
from tracker_diag.errors import SourceError
from tracker_diag.metrics.series import StatKey
from tracker_diag.metrics.statistics import OF_STEP, declared
from tracker_diag.rules.incidents import SEVERITIES, Incident
from tracker_diag.rules.model import Severity
from tracker_diag.runs.arms import Axis, Setting, aligned, differing
from tracker_diag.runs.diagnose import Diagnosis
from tracker_diag.stats.arrays import Float64Array

Points: TypeAlias = tuple[Float64Array, Float64Array]
"""(N,) places on the axis, and (N,) the values there, clipped so that no square overflows."""

MACHINE_METRICS = frozenset({
    "throughput", "step_seconds", "rollout_seconds", "reward_seconds", "tool_seconds", "tool_timeouts", "wait_share",
    "memory_reserved", "memory_limit", "utilisation", "rank_time_ratio", "concurrency",
})  # fmt: skip
"""Metrics of the machine and its load. They differ between two runs with the same settings."""
FEWEST_OF_OUTCOME = 6
"""Values of a reward or an evaluation, at least: three parts with two values each."""
MAY_DIFFER = 3.0
"""Standard errors by which the ends of two outcomes differ that nobody can call alike."""


@dataclass(frozen=True)
class Arm:
    """Runs of the same settings."""

    label: str
    """A for the reference, then B, C, ..."""
    runs: tuple[Diagnosis, ...]
    """One for each seed."""

    @property
    def sources(self) -> list[str]:
        """One source for each seed."""
        return [run.run.source for run in self.runs]

    def to_json(self) -> dict[str, Any]:
        return {"label": self.label, "sources": self.sources}


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
    scale: Literal["ratio", "difference"]
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
    axis: Axis
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

    def to_json(self) -> dict[str, Any]:
        return {
            **self.arm.to_json(),
            "axis": asdict(self.axis),
            "spread": "between seeds" if self.seeds else "unknown",
            "parted": [asdict(series) for series in self.parted],
            "alike": list(self.alike),
            "unjudged": dict(self.unjudged),
            "left_out": list(self.left_out),
            "settings": [asdict(setting) for setting in self.settings],
            "incidents": [asdict(incident) for incident in self.incidents],
        }


@dataclass(frozen=True)
class Comparison:
    """A reference arm and the arms compared with it."""

    reference: Arm
    others: tuple[Against, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON of `tracker-diag compare --json`."""
        return {"reference": self.reference.to_json(), "others": [against.to_json() for against in self.others]}


def compare(reference: Diagnosis | Sequence[Diagnosis], *others: Diagnosis | Sequence[Diagnosis]) -> Comparison:
    """Compare each of the `others` with the `reference`.

    A sequence of runs is one arm with several seeds. The error rate covers all series of a pair of arms: see
    `detect.parting`.

    Raises:
        SourceError: one run is given twice, is no `Diagnosis`, or has no series in common with the reference.
    """
    groups = [(runs,) if isinstance(runs, Diagnosis) else tuple(runs) for runs in (reference, *others)]
    for run in chain.from_iterable(groups):
        if not isinstance(run, Diagnosis):
            raise SourceError(f"{type(run).__name__} given, expected what td.diagnose returns: td.diagnose(run)")
    source, times = Counter(run.run.source for group in groups for run in group).most_common(1)[0]
    if times > 1:
        raise SourceError(f"{source}: given twice, expected different runs")
    if len(groups) < 2 or not all(groups):
        raise SourceError("one run given, to compare it takes two or more")
    first, *rest = (
        Arm(chr(ord("A") + index) if index < 26 else str(index + 1), group) for index, group in enumerate(groups)
    )
    return Comparison(first, tuple(_against(first.runs, arm) for arm in rest))


def _against(reference: tuple[Diagnosis, ...], arm: Arm) -> Against:
    other = arm.runs
    whole = (*reference, *other)
    common = [name for name in whole[0].series if all(name in run.series for run in whole[1:])]
    if not common:
        ours, theirs = (", ".join([*group[0].series][:3]) or "none that is known" for group in (reference, other))
        raise SourceError(
            f"{other[0].run.source}: no series in common with {reference[0].run.source} ({theirs}; {ours})"
        )
    axis = aligned([run.run for run in whole])
    parted, alike, unjudged = list[Parted](), list[str](), _only_one(reference, other)
    for name in common:
        if name.partition(":")[0] in MACHINE_METRICS or _repeats_another(name, common):
            continue
        result = _judged(name, whole, axis, len(reference))
        if isinstance(result, Parted):
            parted.append(result)
        elif result:
            unjudged[name] = result
        else:
            alike.append(name)
    return Against(
        arm, axis,
        seeds=len(whole) > 2,
        parted=tuple(sorted(parted, key=lambda series: (series.onset, -series.margins))),
        alike=tuple(alike),
        unjudged=unjudged,
        left_out=tuple(key for key in whole[0].keys.unmapped if all(key in run.keys.unmapped for run in whole[1:])),
        settings=differing(reference, other),
        incidents=(*_new(other, reference, arm.label), *_new(reference, other, "A")),
    )  # fmt: skip


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


def _judged(name: str, runs: Sequence[Diagnosis], axis: Axis, references: int) -> Parted | str:
    """How a series parts; else why nobody can say, which is empty where it does not part."""
    metric, points = declared(name), [_points(run, name, axis) for run in runs]
    least = min(int(((places >= axis.low) & (places <= axis.high)).sum()) for places, _ in points)
    fewest = FEWEST_OF_OUTCOME if metric.outcome else FEWEST
    if least < fewest:
        return f"{least} values, it takes {fewest}"
    parts = min(PARTS, least // 2)
    log = metric.scale == "log" and min(values.min() for _, values in points) > 0
    curves = np.array(
        [levels(at, np.log(values) if log else values, axis.low, axis.high, parts) for at, values in points]
    )
    matters = metric.matters if metric.unit == "share" and not log else 0.0
    result = parting(curves[:references], curves[references:], log=log, matters=matters)
    if result is None:
        return _unsure(points, axis, references, few=least < FEWEST) if metric.outcome else ""
    back = (lambda level: math.exp(min(level, 700.0))) if log else float  # exp overflows above 709
    width = (axis.high - axis.low) / parts
    onset, difference = axis.low + result.onset * width, result.other - result.reference
    steps = [*runs[0].series[name]]
    return Parted(
        series=name,
        onset=onset,
        step=next((step for step, place in zip(steps, points[0][0], strict=True) if place >= onset), steps[-1]),
        parted=axis.low + (result.parted + 1) * width,
        end=None if result.end == parts - 1 else axis.low + (result.end + 1) * width,
        reference=back(result.reference),
        other=back(result.other),
        scale="ratio" if log else "difference",
        by=back(difference),
        low=back(result.low),
        high=back(result.high),
        times_spread=abs(difference) / result.spread if result.spread else None,
        margins=result.beyond,
    )


def _points(run: Diagnosis, name: str, axis: Axis) -> Points:
    series = run.series[name]
    values = np.fromiter(series.values(), np.float64, len(series))
    return axis.places(run.run, series), np.clip(values, -1e100, 1e100)


def _unsure(points: Sequence[Points], axis: Axis, references: int, *, few: bool) -> str:
    """That an outcome is too seldom logged to say whether its end differs, with both levels; empty if it is not so.

    A level is the mean over the last third of the axis. The levels may differ if they do by `MAY_DIFFER` standard
    errors, as the changes from value to value tell them. With few values no two levels are surely alike.
    """
    late = axis.high - (axis.high - axis.low) / 3
    ends = [values[(places >= late) & (places <= axis.high)] for places, values in points]
    if not all(map(len, ends)):
        return "no value in its last third"
    means = [float(end.mean()) for end in ends]
    before, after = float(np.mean(means[:references])), float(np.mean(means[references:]))
    variance = sum(noise_of(values) ** 2 / len(end) for (_, values), end in zip(points, ends, strict=True))
    error = math.sqrt(variance) / min(references, len(points) - references)
    if not few and abs(after - before) <= MAY_DIFFER * error:
        return ""
    why = "so few values" if few else "one run a side" if len(points) == 2 else "so few runs"
    if after == before:
        return f"is {after:.3g} in both over the last third: not sure with {why}"
    change = "lower" if after < before else "higher"
    return f"seems {change}, {after:.3g} against {before:.3g} over the last third: not sure with {why}"


def _new(having: Sequence[Diagnosis], lacking: Sequence[Diagnosis], label: str) -> list[NewIncident]:
    """Causes of incidents in `having` whose rule fired in no run of `lacking`, the earliest first."""
    known = {
        finding.rule.id
        for run in lacking
        for finding in run.summary.findings
        if finding.fired is not None and finding.severity != "info"
    }
    incidents_of: dict[tuple[str, str], list[Incident]] = {}
    for run in having:
        for incident in run.summary.incidents:
            cause = incident.cause
            if incident.severity != "info" and cause.rule.id not in known:
                incidents_of.setdefault((cause.rule.id, cause.slice), []).append(incident)
    new = list[NewIncident]()
    for (rule, slice), incidents in incidents_of.items():
        worst = max((incident.severity for incident in incidents), key=SEVERITIES.index)
        onset = min(incident.cause.onset for incident in incidents)
        new.append(NewIncident(rule, incidents[0].cause.rule.title, slice, worst, label, len(incidents), onset))
    return sorted(new, key=lambda incident: incident.onset)
