"""Judge: one run held against the rules, step by step.

The live monitor, `diagnose`, `watch` and `replay` all use this class, so the same series give the same verdict.

    StepInputs → canonical names → series → engine → incidents → notices
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import is_not
from typing import Any

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.metrics.aliases import key_map
from tracker_diag.metrics.registry import Algorithm
from tracker_diag.metrics.series import SeriesKey, StatKey
from tracker_diag.records import Scalar
from tracker_diag.rules.acknowledged import Acknowledged, in_settings, quiet
from tracker_diag.rules.alerts import Alerts, Notice, recent
from tracker_diag.rules.algorithm import algorithm_of
from tracker_diag.rules.earlier import Earlier
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding, Identity, identity
from tracker_diag.rules.incidents import SEVERITIES, Incident, incidents, weighed
from tracker_diag.rules.model import Rule, Severity
from tracker_diag.rules.observed import Circumstances, Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary


@dataclass(frozen=True)
class StepInputs(Circumstances):
    """What has come of one step: the trainer's metrics, and what tensors and samples add to them."""

    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """By the trainer's own keys."""
    statistics: Mapping[SeriesKey, Scalar] = field(default_factory=dict[SeriesKey, Scalar])
    """Statistics of slices. They win over a metric of the same name."""
    samples: Mapping[str, Scalar] = field(default_factory=dict[str, Scalar])
    """Aggregates of samples, and what a canary measures, by canonical name. A metric that the trainer ever logged wins
    over them, unless it is a mean over earlier rows too."""
    non_finite: Sequence[str] = ()
    """Slices and columns that held NaN or infinity; metrics that do are noticed without being listed here."""


@dataclass(frozen=True)
class Verdict:
    """What one step has changed."""

    changed: Sequence[Finding]
    notices: Sequence[Notice]


class Judge:
    """Maps names, keeps precedence, and runs rules, incidents and alerts.

    Args:
        rules: the rules in force.
        settings: of the change detectors.
        config: settings of the run by dotted name.
        algorithm: what is trained with; by default what `config` or the names of metrics say.
        earlier: runs of the same setting that went well.
        framework: whose names the metrics have; recognised by the names by default.
        evaluation: key of the evaluation that counts, where there are several; by default the first that is no mean
            reward.
        quantum: the resolution of logged values: two values closer than this are equal.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        settings: GrowthSettings,
        *,
        config: Mapping[str, object] | None = None,
        algorithm: Algorithm | None = None,
        earlier: Earlier | None = None,
        framework: str | None = None,
        evaluation: str = "",
        quantum: float = 0.0,
    ) -> None:
        self.config: Mapping[str, object] = dict(config or {})
        self.algorithm: Algorithm | None = algorithm or algorithm_of(self.config)
        self.engine = Engine(rules, settings, self.algorithm, earlier or Earlier())
        self._evaluation = evaluation
        self.framework = framework
        self._quantum = quantum
        self._alerts = Alerts()
        self._open: int | None = None
        self.series: dict[SeriesKey, Scalar] = {}
        """Finite values of the open step. Of a series that comes twice the first value counts."""
        self._sampled: set[str] = set()
        """Names of which samples are known, and the trainer logs a mean over earlier rows as well."""
        self._has_entropy = False
        """Whether any entropy so far was other than 0, or all samples of each group were alike."""
        self._non_finite: list[str] = []
        self._checked = False
        self._acknowledged = in_settings(self.config)
        self.checkpoints: list[int] = []
        """Steps of the checkpoints that are registered."""
        self._incidents: tuple[Incident, ...] | None = None
        self._basis: tuple[list[Finding], tuple[Incident, ...]] = [], ()
        """The findings that incidents were last computed of, and these before any was acknowledged."""
        self._severities: dict[Identity, Severity] = {}
        """Of each finding, as it was after the last step that changed any."""

    @property
    def framework(self) -> str | None:
        """Whose names the metrics have, as given; None leaves it to the names."""
        return self._framework

    @framework.setter
    def framework(self, framework: str | None) -> None:
        self._framework = framework
        self.keys = key_map((), framework, self._evaluation)

    @property
    def findings(self) -> list[Finding]:
        """All findings so far, by onset, each as its incident has it."""
        return weighed(self.engine.findings, self.incidents)

    @property
    def best(self) -> tuple[Reading, ...]:
        """Of each outcome its last level, and its best one as baseline."""
        return self.engine.best

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """The incidents of the latest findings; computed once after a step that changed any."""
        if self._incidents is None:
            self._incidents = quiet(self._together(recent(self.engine.findings)), self._acknowledged)
        return self._incidents

    def _together(self, findings: Iterable[Finding]) -> tuple[Incident, ...]:
        """The incidents of `findings`; those of the last call, where the fired ones are the same."""
        fired = [finding for finding in findings if finding.fired is not None]
        before, together = self._basis
        if len(before) != len(fired) or any(map(is_not, before, fired)):
            together = incidents(fired)
            self._basis = fired, together
        return together

    def know(self, keys: Iterable[str]) -> None:
        """Map further `keys` of metrics. The algorithm follows from them where nothing else says it."""
        if not self.keys.covers(keys := tuple(keys)):
            known = dict.fromkeys([*self.keys.mapped, *self.keys.unmapped, *keys])
            self.keys = key_map(known, self._framework, self._evaluation)
        if self.algorithm is None and self.keys.algorithm is not None:
            self.algorithm = self.keys.algorithm
            self.engine = self.engine.with_algorithm(self.algorithm)

    def step(self, step: int, inputs: StepInputs) -> Verdict:
        """Take in what has come of `step`. Further calls of the same step add to it; no earlier step may come."""
        if step != self._open:
            self._open, self.series, self._non_finite, self._checked = step, {}, [], False
        self.know(inputs.metrics)
        for key, scalar in self._series(inputs):
            if math.isfinite(scalar.value):
                self.series.setdefault(key, scalar)
        broken = [key for key, value in inputs.metrics.items() if not math.isfinite(value)]
        self._non_finite += [name for name in (*broken, *inputs.non_finite) if name not in self._non_finite]
        self._checked |= inputs.checked
        return self._verdict(step, self.engine.evaluate(self._observed(step, inputs)))

    def _series(self, inputs: StepInputs) -> Iterable[tuple[SeriesKey, Scalar]]:
        """Every series of `inputs`, those that win first."""
        yield from inputs.statistics.items()
        self._sampled |= self.keys.running & inputs.samples.keys()
        values = self.keys.values(inputs.metrics)
        # A policy whose samples differ has some entropy. A trainer that logs 0 all the time does not measure it.
        self._has_entropy |= values.get("entropy", 0.0) != 0 or values.get("zero_std_share") == 1
        for name, value in values.items():
            if name not in self._sampled and (name != "entropy" or self._has_entropy):
                yield name, Scalar(name, value, quantum=self._quantum)
        for name, scalar in inputs.samples.items():
            if name not in self.keys.names or name in self._sampled:
                yield name, scalar

    def _observed(self, step: int, inputs: StepInputs) -> Observed:
        known = {field.name: getattr(inputs, field.name) for field in fields(Circumstances)}
        known["checked"] = self._checked
        return Observed(step, self.series, tuple(self._non_finite), self.config, **known)

    def _verdict(self, step: int, changed: Sequence[Finding]) -> Verdict:
        """What `changed` has changed: also the severity of others that now belong with them."""
        counting = [known for known in self._acknowledged if not known.is_over(step)]
        if len(counting) < len(self._acknowledged):
            self._acknowledged = counting
            self._incidents = None
            self._alerts.look_again(step)
        if changed:
            news, before, self._incidents = set(map(identity, changed)), self._severities, None
            findings = self.findings
            self._severities = {identity(finding): finding.severity for finding in findings}
            news |= {name for name, severity in self._severities.items() if before.get(name, severity) != severity}
            changed = [finding for finding in findings if identity(finding) in news]
        return Verdict(changed, self._alerts.notices(step, changed, self))

    def rebaseline(self, step: int) -> Verdict:
        """Every baseline starts over at `step`, and findings that rest on one end."""
        return self._verdict(step, self.engine.rebaseline(step))

    def acknowledge(self, rule: str, reason: str, steps: int | None = None) -> None:
        """Keep the incidents that `rule` is a part of quiet until they get worse, or for so many `steps`."""
        of_rule = [it.severity for it in self.incidents if any(part.rule.id == rule for part in it.findings)]
        worst: Severity = max(of_rule, key=SEVERITIES.index, default="warn")
        until = None if steps is None else (self._open or 0) + steps
        self._acknowledged.append(Acknowledged(rule, reason, until, worst))
        self._incidents = None

    def summary(self, source: str, steps: int, first_step: int | None, last_step: int | None) -> Summary:
        """What the run adds up to so far."""
        together = self._together(self.engine.findings)
        summary = Summary.of_engine(self.engine, source, steps, first_step, last_step, together=together)
        return replace(summary, acknowledged=tuple(self._acknowledged), checkpoints=tuple(self.checkpoints))

    def restarted(self, settings: GrowthSettings) -> None:
        """Start over with other `settings`; nothing may have been judged yet."""
        self.engine = Engine(self.engine.rules, settings, self.algorithm, self.engine.earlier)

    def state_dict(self) -> dict[str, Any]:
        """All that a judge that continues with the next step needs, in JSON values."""
        return {
            "engine": self.engine.state_dict(),
            "alerts": self._alerts.state_dict(),
            "checkpoints": list(self.checkpoints),
            "acknowledged": [asdict(known) for known in self._acknowledged],
            "open": self._open,
            "sampled": sorted(self._sampled),
            "has_entropy": self._has_entropy,
            "series": [[str(key), scalar.value, scalar.n, scalar.error] for key, scalar in self.series.items()],
            "non_finite": list(self._non_finite),
            "checked": self._checked,
        }

    def load_state_dict(self, state: Mapping[str, Any], inputs: StepInputs) -> None:
        """Continue where `state` was taken.

        Args:
            inputs: what is known of the open step besides its metrics, statistics and samples.
        """
        self._open, self._checked, self._sampled = state["open"], state["checked"], set(state["sampled"])
        self._has_entropy = state["has_entropy"]
        self._non_finite = list(state["non_finite"])
        self.series = {}
        for name, value, n, error in state["series"]:
            key = StatKey.parse(name) or name
            self.series[key] = Scalar(key, value, n, error)
        underway = None if self._open is None else self._observed(self._open, replace(inputs, metrics={}))
        self.engine.load_state_dict(state["engine"], underway)
        self._alerts.load_state_dict(state["alerts"])
        self.checkpoints = list(state["checkpoints"])
        self._acknowledged = [Acknowledged(**known) for known in state["acknowledged"]]
        self._incidents = None
        self._severities = {identity(finding): finding.severity for finding in self.findings}


def judge_steps(
    judge: Judge, steps: Iterable[tuple[int, StepInputs]]
) -> tuple[dict[str, dict[int, float]], list[Notice]]:
    """Judge `steps` in order: the series that the rules read, by name and step, and what people are alerted to."""
    series: dict[str, dict[int, float]] = {}
    notices: list[Notice] = []
    for step, inputs in steps:
        notices += judge.step(step, inputs).notices
        for name, scalar in judge.series.items():
            series.setdefault(name, {})[step] = scalar.value
    return series, notices
