"""Curves: the series of a run at bounded size, and which of them a reader needs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import CONTEXT, SeriesKey, StatKey
from tracker_diag.metrics.statistics import declared
from tracker_diag.records import Scalar
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import Incident
from tracker_diag.rules.triage import Summary

POINTS = 256
"""Of a series that are kept, at most; of a longer run each is the mean of several rows."""

SHOWN = {"count": "tokens"}
"""Statistics whose name says nothing beside a curve, and what stands there instead."""

MOST = 12
"""Curves beside a verdict, at most."""


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
    """Which of the series in `known` are drawn: the outcomes, then what findings rest on, the first break's first.

    A statistic of one slice of `context` comes with that of the other.
    """
    first = summary.first_break
    incidents: Sequence[Incident] = sorted(summary.incidents, key=lambda one: one.cause is not first)
    of_findings = (_of(one, known) for incident in incidents for one in incident.findings)
    names = [*(one.series for one in summary.best), *of_findings]
    both = [part for name in names if name is not None for part in (name, *_beside(name))]
    return [name for name in dict.fromkeys(both) if name in known][:most]


def _beside(name: str) -> list[str]:
    """The same statistic of the other slice of `context`."""
    key = StatKey.parse(name)
    if key is None or key.slice not in CONTEXT:
        return []
    return [StatKey(key.pair, other, key.stat) for other in CONTEXT if other != key.slice]


@dataclass(frozen=True)
class Panel:
    """What is drawn over one axis: a series, or one statistic of both slices of `context`."""

    name: str
    lines: Mapping[str, Mapping[int, float]]
    """Values by step; by slice, or under "" where there is one line alone."""
    baseline: float | None = None
    """Level of the reference period, of the slice that a finding is about."""

    @property
    def about(self) -> str:
        """What it measures, in a line; empty where nobody knows."""
        pair, _, shown = self.name.partition(" ")
        stat = next((stat for stat, name in SHOWN.items() if name == shown), shown)
        return declared(f"{pair}/all/{stat}" if stat else self.name).meaning


def panels(summary: Summary) -> list[Panel]:
    """The curves of `summary`, those of two slices together."""
    baselines: dict[str, float] = {}
    for finding in summary.findings:
        for reading in finding.evidence:
            of_slice = len(reading.keys) == 1 and StatKey.parse(reading.keys[0])
            if of_slice and reading.baseline is not None and reading.at is None:
                baselines.setdefault(of_slice, reading.baseline)
    drawn: dict[str, Panel] = {}
    for name in summary.curves:
        beside = [other for other in _beside(name) if other in summary.curves]
        key = StatKey.parse(name) if beside else None
        if key is None:
            drawn[name] = Panel(name.removeprefix(PREFIX), {"": summary.curves[name]}, baselines.get(name))
        elif not any(other in drawn for other in beside):
            lines = {str(slice): summary.curves[StatKey(key.pair, slice, key.stat)] for slice in CONTEXT}
            drawn[name] = Panel(f"{key.pair} {SHOWN.get(key.stat, key.stat)}", lines, baselines.get(name))
    return [*drawn.values()]


def _of(finding: Finding, known: Mapping[str, object]) -> str | None:
    """The first series of the evidence that can be drawn, one that holds if there is one."""
    names = (key for reading in sorted(finding.evidence, key=lambda one: not one.holds) for key in reading.keys)
    return next((str(name) for name in names if name in known), None)
