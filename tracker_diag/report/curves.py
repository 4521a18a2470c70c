"""Curves: which series of a run a reader needs, and how they are named and grouped."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, TypeAlias

from tracker_diag.metrics.registry import PREFIX, Metric
from tracker_diag.metrics.series import CONTEXT, StatKey
from tracker_diag.metrics.statistics import declared
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

SHOWN = {"count": "tokens"}
"""Statistics whose name says nothing next to a curve, and the label used instead."""

MOST = 16
"""Curves of a verdict, at most."""

CALM_TAILS = ("policy/post_tool/p95_step", "mismatch/post_tool/p95_step")
"""Drawn where nothing was found: the tails after tool results that are to be calm; the other slice comes with each."""

PLACES = {"post_tool": "after tool results", "text_only": "before any tool result", "all": ""}
"""Slices in words."""

PAIRS_IN_WORDS: Mapping[str, str] = {
    "policy": "new policy against old",
    "mismatch": "trainer against sampler",
    "reference": "policy against reference",
}

QUANTILES = ("p50", "p95", "p99", "largest")
"""Statistics of |log-ratio| itself."""

ONE_SCALE = 5.0
"""Times by which the sizes of two outcomes may differ that are drawn over one scale."""

DASHBOARD = ("loss", "entropy", "kl", "grad_norm")
"""What people watch anyway; it is often calm while something breaks."""


def main_finding(summary: Summary) -> Finding | None:
    """What a page is about: what broke first, or what candidates alone have found where that is to be watched."""
    if summary.first_break is not None or summary.recommendation.action != "watch":
        return summary.first_break
    notes = (it.cause for it in summary.incidents if it.state == "firing" and it.cause.unproven and not it.acknowledged)
    return next(notes, None)


def outcomes_of(summary: Summary, known: Iterable[str]) -> list[str]:
    """The outcomes that could be judged; where none could, those of `known`."""
    judged = [reading.series for reading in summary.best]
    return judged or [name for name in known if declared(name).outcome and name not in DASHBOARD]


def chosen(summary: Summary, known: Mapping[str, object]) -> list[str]:
    """Which of the series in `known` are drawn: what the cause rests on, the outcomes, other evidence, the dashboard.

    A statistic of one slice of `context` comes with that of the other. Without an incident, the tails are drawn.
    """
    first = main_finding(summary)
    incidents = sorted(summary.incidents, key=lambda incident: incident.cause is not first)
    evidence = [_drawable(finding, known) for incident in incidents for finding in incident.findings]
    of_cause = evidence[0] if first is not None and evidence else []
    calm = [name for name in known if not incidents and name in CALM_TAILS]
    names = [*of_cause[:1], *outcomes_of(summary, known), *of_cause, *calm]
    names += [name for series in evidence for name in series[:1]]
    if any(finding.rule.link == "reward" for incident in incidents for finding in incident.findings):
        names += sorted(name for name in known if name.startswith("reward_component:"))  # which part pays
    both = [part for name in names for part in (name, *other_slice(name))]
    drawn: dict[str, str] = {}  # a statistic of single steps and of the window says the same: the first is drawn
    for name in (*both, *DASHBOARD):
        if name in known:
            drawn.setdefault(name.removesuffix("_step"), name)
    return [*drawn.values()][:MOST]


def rests_on(finding: Finding, known: Mapping[str, object]) -> tuple[str, Reading] | None:
    """The drawn series that says most of why a finding fired, with its reading; None where none is drawn."""
    ranked = sorted(finding.evidence, key=lambda r: (not r.holds, len(r.keys) > 1, r.baseline is None))
    return next(((str(key), reading) for reading in ranked for key in reading.keys if key in known), None)


def baselines(summary: Summary) -> dict[str, float]:
    """The level of the reference period, by series, where a finding's evidence names it; the first break's first."""
    first = main_finding(summary)
    ranked = sorted(summary.findings, key=lambda finding: finding is not first)
    levels: dict[str, float] = {}
    for reading in (reading for finding in ranked for reading in finding.evidence):
        if len(reading.keys) == 1 and reading.baseline is not None and reading.at is None:
            levels.setdefault(str(reading.keys[0]), reading.baseline)
    return levels


def _drawable(finding: Finding, known: Mapping[str, object]) -> list[str]:
    """The series of the evidence that can be drawn; all that hold, or else one that does not."""
    main = rests_on(finding, known)
    held = [str(key) for reading in finding.evidence if reading.holds for key in reading.keys if key in known]
    return [*dict.fromkeys([main[0], *held])] if main else []


def other_slice(name: str) -> list[StatKey]:
    """The same statistic of the other slice of `context`, if it is one of them."""
    key = StatKey.parse(name)
    if key is None or key.slice not in CONTEXT:
        return []
    return [StatKey(key.pair, other, key.stat) for other in CONTEXT if other != key.slice]


Role: TypeAlias = Literal["hero", "outcome", "evidence", "dashboard"]


@dataclass(frozen=True)
class Panel:
    """What is drawn over one axis: a series, or one statistic of both slices of `context`."""

    series: tuple[str, ...]
    lines: Mapping[str, Mapping[int, float]]
    """Values by step; by slice, by outcome, or under "" for a line that is alone."""
    role: Role

    @property
    def metric(self) -> Metric:
        return declared(self.series[0])

    @property
    def log(self) -> bool:
        return self.metric.scale == "log"

    @property
    def name(self) -> str:
        """The series, or pair and statistic of both slices."""
        name = self.series[0].removeprefix(PREFIX)
        key = StatKey.parse(name) if len(self.series) > 1 else None
        return f"{key.pair} {SHOWN.get(key.stat, key.stat)}" if key else name

    @property
    def title(self) -> str:
        """Slices and statistic in words."""
        key = StatKey.parse(self.series[0].removeprefix(PREFIX))
        if key is None:
            return " and ".join(self.lines) if len(self.lines) > 1 else self.name
        if len(self.series) == 1:
            place = PLACES.get(key.slice, key.slice) or "all tokens"
            return f"{place[:1].upper()}{place[1:]}: {key.stat}, {PAIRS_IN_WORDS[key.pair]}"
        stat = SHOWN.get(key.stat, key.stat).removesuffix("_step")
        size = " of |log-ratio|" * (stat in QUANTILES)
        return f"{stat}{size}, {PAIRS_IN_WORDS[key.pair]}"

    @property
    def unit(self) -> str:
        """The unit, where the name does not say it."""
        return "" if self.metric.unit in (self.name, "reward", "score", "loss") else self.metric.unit


def panels(summary: Summary) -> list[Panel]:
    """The curves of `summary`, those of two slices together, the hero first: the series that the cause rests on."""
    first = main_finding(summary)
    main = first and rests_on(first, summary.curves)
    outcomes = {*outcomes_of(summary, summary.curves)}
    drawn: dict[str, Panel] = {}
    for name in summary.curves:
        key, others = StatKey.parse(name), [other for other in other_slice(name) if other in summary.curves]
        role: Role = "hero" if main and main[0] in (name, *others) else "evidence"
        if role == "evidence" and name in (*outcomes, *DASHBOARD):
            role = "outcome" if name in outcomes else "dashboard"
        lines = {"": summary.curves[name]}
        if key is not None and others:
            lines = {str(slice): summary.curves[StatKey(key.pair, slice, key.stat)] for slice in CONTEXT}
        if not any(other in drawn for other in others):
            drawn[name] = Panel((name, *others), lines, role)
    return sorted(drawn.values(), key=lambda panel: panel.role != "hero")


def with_outcomes_together(drawn: Sequence[Panel]) -> list[Panel]:
    """The panels, with the first outcome and the next of its size in one: a reward and its evaluation, say."""
    outcomes = [it for it in drawn if it.metric.outcome and it.role in ("hero", "outcome") and not it.log]
    for other in outcomes[1:]:
        first = outcomes[0]
        low, high = sorted((_size(first), _size(other)))
        if 0 < high <= ONE_SCALE * low:
            lines = {panel.name: panel.lines[""] for panel in (first, other)}
            both = replace(first, series=(*first.series, *other.series), lines=lines)
            return [both if panel is first else panel for panel in drawn if panel is not other]
    return [*drawn]


def _size(panel: Panel) -> float:
    return max((abs(value) for line in panel.lines.values() for value in line.values() if isfinite(value)), default=0.0)
