"""Triage: which link broke first, and what the whole run adds up to."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import get_args

from tracker_diag.metrics.reasons import Reason
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding, Reading
from tracker_diag.rules.model import Link, Severity

DIAGNOSTIC_ORDER: tuple[str, ...] = get_args(Link)
SEVERITIES: tuple[Severity, ...] = ("info", "warn", "error")


def first_break(findings: Collection[Finding]) -> Finding | None:
    """The earliest onset among the findings that fired at warn or above, ties by diagnostic order.

    What another of them explains is represented by that other one: its parts may well have been seen before it. The
    outcome, which is damage, is only first where it lasts and nothing else had begun when it was seen, or where there
    is nothing else.
    """
    fired = [f for f in findings if f.fired is not None and f.rule.severity != "info"]
    unexplained = [f for f in fired if not any(explains(cause, f) for cause in fired)]
    candidates = unexplained or fired  # rules that explain each other explain nothing
    causes = [f for f in candidates if f.rule.link != "outcome"]
    lasting = [f.fired for f in candidates if f.rule.link == "outcome" and f.fired is not None and f.resolved is None]
    if causes and (not lasting or any(f.onset <= min(lasting) for f in causes)):
        candidates = causes
    return min(candidates, key=lambda f: (f.onset, DIAGNOSTIC_ORDER.index(f.rule.link), f.fired), default=None)


def explains(cause: Finding, finding: Finding) -> bool:
    """Whether `finding` is a part of what `cause` names: its rule says so, on the same slice and at the same time.

    A cause does not begin after what it explains. But an onset is an estimate, so the cause may seem to begin later
    than `finding` fired, by as long as it took to fire itself.
    """
    if cause.fired is None or finding.fired is None:
        return False
    too_late = cause.onset - finding.fired > cause.fired - cause.onset
    over = cause.resolved is not None and cause.resolved < finding.onset
    return cause.covers(finding.rule, finding.pair, finding.slice) and not too_late and not over


@dataclass(frozen=True, repr=False)
class Summary:
    """What a run adds up to: what was found, what broke first, and which rules could not see."""

    source: str
    steps: int
    first_step: int | None
    last_step: int | None
    findings: tuple[Finding, ...]
    blind: Mapping[str, tuple[Reason, ...]]
    """Rules that could not see, and why."""
    healthy: tuple[str, ...]
    """Rules that could see and never fired."""
    caveats: tuple[str, ...] = ()
    """What keeps "nothing was found" from meaning that all was well."""
    tails: tuple[str, ...] = ()
    """Where the tails are now, a line for each pair."""
    best: tuple[Reading, ...] = ()
    """Reward and evaluation: the last level as value, the best one as baseline, its step as `at`."""

    @classmethod
    def of(cls, engine: Engine, source: str, steps: int, first_step: int | None, last_step: int | None) -> "Summary":
        findings, blind = tuple(engine.findings), engine.blind()
        told = {finding.rule.id for finding in findings}
        healthy = tuple(rule.id for rule in engine.rules if rule.id not in told and rule.id not in blind)
        return cls(source, steps, first_step, last_step, findings, blind, healthy, best=engine.best)

    def __str__(self) -> str:
        """One short paragraph: what broke first, and how many rules say what."""
        first, fired = self.first_break, sum(finding.fired is not None for finding in self.findings)
        head = "No rule fired at warn or above." if first is None else f"Broke first: {first}"
        counts = f"{fired} findings fired, {len(self.healthy)} rules are healthy, {len(self.blind)} could not see."
        return f"{self.source}, {self.steps} steps. {head} {counts}"

    __repr__ = __str__

    @property
    def first_break(self) -> Finding | None:
        return first_break(self.findings)

    @property
    def level(self) -> Severity | None:
        """Highest severity that fired, resolved or not; None if nothing did."""
        fired: set[Severity] = {finding.rule.severity for finding in self.findings if finding.fired is not None}
        return max(fired, key=SEVERITIES.index) if fired else None

    def to_json(self) -> dict[str, object]:
        """The JSON of `tracker-diag diagnose --json` and `replay --json`."""
        first = self.first_break
        return {
            "run": {
                "source": self.source,
                "steps": self.steps,
                "first_step": self.first_step,
                "last_step": self.last_step,
            },
            "findings": [finding.to_json() for finding in self.findings],
            "first_break": first and {"rule": first.rule.id, "slice": first.slice, "onset": first.onset},
            "blind": [{"rule": rule, "reason": "; ".join(map(str, reasons))} for rule, reasons in self.blind.items()],
            "healthy": list(self.healthy),
            "caveats": list(self.caveats),
            "best": [
                {"series": one.series, "step": one.at, "level": one.baseline, "last": one.value} for one in self.best
            ],
        }
