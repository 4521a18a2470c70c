"""Curves: the series of a run at bounded size, and which of them a reader needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tracker_diag.metrics.registry import PREFIX, Metric
from tracker_diag.metrics.series import CONTEXT, SeriesKey, StatKey
from tracker_diag.metrics.statistics import declared
from tracker_diag.records import Scalar
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

POINTS = 256
"""Of a series that are kept, at most; of a longer run each is the mean of several rows."""

SHOWN = {"count": "tokens"}
"""Statistics whose name says nothing beside a curve, and what stands there instead."""

MOST = 16
"""Curves of a verdict, at most."""

PLACES = {"post_tool": "after tool calls", "text_only": "before any tool call", "all": ""}
"""Slices in words."""

QUANTILES = ("p50", "p95", "p99", "largest")
"""Statistics of |log-ratio| itself."""

DASHBOARD = ("loss", "entropy", "kl", "grad_norm")
"""What people watch anyway; it is often calm while something breaks."""


@dataclass
class Thinned:
    """One series: means of `every` rows each, and what has come of the row after them."""

    every: int = 1
    steps: list[int] = field(default_factory=list[int])
    """First step of each point."""
    values: list[float] = field(default_factory=list[float])
    rows: int = 0
    """Rows in the last point."""

    def add(self, step: int, value: float) -> None:
        """Take in the value of `step`; what is not finite leaves a gap."""
        if not math.isfinite(value):
            return
        if self.rows in (0, self.every):
            if len(self.steps) == POINTS:
                self._halve()
            self.steps.append(step)
            self.values.append(value)
            self.rows = 1
        else:
            self.rows += 1
            self.values[-1] += (value - self.values[-1]) / self.rows

    def _halve(self) -> None:
        """Two points become one. POINTS is even, so that all of them are of as many rows."""
        self.steps = self.steps[::2]
        self.values = [one / 2 + two / 2 for one, two in zip(self.values[::2], self.values[1::2], strict=True)]
        self.every *= 2

    def points(self) -> dict[int, float]:
        """Values by step."""
        return dict(zip(self.steps, self.values, strict=True))


class Curves:
    """All series of a run, `POINTS` of each. Memory does not grow with the run."""

    def __init__(self) -> None:
        self._of: dict[str, Thinned] = {}
        self._step: int | None = None
        self._new: set[str] = set()
        """Series that the step which is underway has a value of."""

    def add(self, step: int, series: Mapping[SeriesKey, Scalar]) -> None:
        """Take in the values of `step`; of several for one step the first counts."""
        if step != self._step:
            self._step, self._new = step, set()
        for key, one in series.items():
            if key not in self._new:
                self._new.add(key)
                if key not in self._of:
                    self._of[str(key)] = Thinned()
                self._of[key].add(step, one.value)

    def beside(self, summary: Summary) -> dict[str, dict[int, float]]:
        """Those that `chosen` names, values by step."""
        return {name: self._of[name].points() for name in chosen(summary, self._of)}

    def state_dict(self) -> dict[str, Any]:
        """In JSON values, and no class of ours; `load_state_dict` goes on from it."""
        of = {str(name): [one.every, one.rows, one.steps, one.values] for name, one in self._of.items()}
        return {"step": self._step, "new": sorted(map(str, self._new)), "of": of}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step, self._new = state["step"], set(state["new"])
        self._of = {
            name: Thinned(int(every), [*map(int, steps)], [*map(float, values)], int(rows))
            for name, (every, rows, steps, values) in state["of"].items()
        }


def chosen(summary: Summary, known: Mapping[str, object], most: int = MOST) -> list[str]:
    """Which of the series in `known` are drawn: what the cause rests on, the outcomes, other evidence, the dashboard.

    A statistic of one slice of `context` comes with that of the other.
    """
    first = summary.first_break
    incidents = sorted(summary.incidents, key=lambda incident: incident.cause is not first)
    evidence = [_drawable(finding, known) for incident in incidents for finding in incident.findings]
    of_cause = evidence[0] if first is not None and evidence else []
    names = [*of_cause[:1], *(reading.series for reading in summary.best), *of_cause]
    names += [name for series in evidence for name in series[:1]]
    both = [part for name in names for part in (name, *_other_slice(name))]
    drawn: dict[str, str] = {}  # a statistic of single steps and of the window says the same: the first is drawn
    for name in (*both, *DASHBOARD):
        if name in known:
            drawn.setdefault(name.removesuffix("_step"), name)
    return [*drawn.values()][:most]


def rests_on(finding: Finding, known: Mapping[str, object]) -> tuple[str, Reading] | None:
    """The drawn series that says most of why a finding fired, with its reading; None where none is drawn."""
    ranked = sorted(finding.evidence, key=lambda r: (not r.holds, len(r.keys) > 1, r.baseline is None))
    return next(((str(key), reading) for reading in ranked for key in reading.keys if key in known), None)


def baselines(summary: Summary) -> dict[str, float]:
    """The level of the reference period, by series, where a finding's evidence names it; the first break's first."""
    ranked = sorted(summary.findings, key=lambda finding: finding is not summary.first_break)
    levels: dict[str, float] = {}
    for reading in (reading for finding in ranked for reading in finding.evidence):
        if len(reading.keys) == 1 and reading.baseline is not None and reading.at is None:
            levels.setdefault(str(reading.keys[0]), reading.baseline)
    return levels


def _drawable(finding: Finding, known: Mapping[str, object]) -> list[str]:
    """The series of the evidence that can be drawn; all that hold, or else one that does not."""
    main = rests_on(finding, known)
    held = [str(key) for reading in finding.evidence if reading.holds for key in reading.keys if key in known]
    return [] if main is None else [*dict.fromkeys([main[0], *held])]


def _other_slice(name: str) -> list[str]:
    """The same statistic of the other slice of `context`."""
    key = StatKey.parse(name)
    if key is None or key.slice not in CONTEXT:
        return []
    return [StatKey(key.pair, other, key.stat) for other in CONTEXT if other != key.slice]


Role: TypeAlias = Literal["hero", "outcome", "evidence", "dashboard"]


@dataclass(frozen=True)
class Panel:
    """What is drawn over one axis: a series, or one statistic of both slices of `context`."""

    name: str
    lines: Mapping[str, Mapping[int, float]]
    """Values by step; by slice, or under "" for a line that is alone."""
    metric: Metric
    """What is declared of it."""
    role: Role
    series: frozenset[str]
    """Names of its lines."""

    @property
    def log(self) -> bool:
        return self.metric.scale == "log"

    @property
    def title(self) -> str:
        """Slices and statistic in words."""
        pair, _, stat = self.name.partition(" ")
        size = " of |log-ratio|" if stat.removesuffix("_step") in QUANTILES else ""
        if stat:
            return f"After tool calls and before any: {stat.removesuffix('_step')}{size}, {pair} pair"
        key = StatKey.parse(self.name)
        return f"{key.pair} pair, {PLACES.get(key.slice, key.slice) or 'all tokens'}: {key.stat}" if key else self.name

    @property
    def unit(self) -> str:
        """The unit, where the name does not say it."""
        return "" if self.metric.unit in (self.name, "reward", "score", "loss") else self.metric.unit


def panels(summary: Summary) -> list[Panel]:
    """The curves of `summary`, those of two slices together, the hero first: the series that the cause rests on."""
    main = summary.first_break and rests_on(summary.first_break, summary.curves)
    outcomes = {reading.series for reading in summary.best}
    drawn: dict[str, Panel] = {}
    for name in summary.curves:
        key, others = StatKey.parse(name), [other for other in _other_slice(name) if other in summary.curves]
        role: Role = "hero" if main and main[0] in (name, *others) else "evidence"
        if role == "evidence" and name in (*outcomes, *DASHBOARD):
            role = "outcome" if name in outcomes else "dashboard"
        if key is None or not others:
            drawn[name] = Panel(
                name.removeprefix(PREFIX), {"": summary.curves[name]}, declared(name), role, frozenset({name})
            )
        elif not any(other in drawn for other in others):
            lines = {str(slice): summary.curves[StatKey(key.pair, slice, key.stat)] for slice in CONTEXT}
            drawn[name] = Panel(
                f"{key.pair} {SHOWN.get(key.stat, key.stat)}",
                lines,
                declared(name),
                role,
                frozenset({name, *map(str, others)}),
            )
    return sorted(drawn.values(), key=lambda panel: panel.role != "hero")
