"""Triage: which link broke first, and what the whole run adds up to."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import get_args

from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.model import Link, Severity

DIAGNOSTIC_ORDER: tuple[str, ...] = get_args(Link)
SEVERITIES: tuple[Severity, ...] = ("info", "warn", "error")


def first_break(findings: Collection[Finding]) -> Finding | None:
    """The earliest onset among the findings that fired at warn or above, ties by diagnostic order."""
    fired = [f for f in findings if f.fired is not None and f.rule.severity != "info"]
    return min(fired, key=lambda f: (f.onset, DIAGNOSTIC_ORDER.index(f.rule.link), f.fired), default=None)


@dataclass(frozen=True)
class Summary:
    """What a run adds up to: what was found, what broke first, and which rules could not see."""

    source: str
    steps: int
    first_step: int | None
    last_step: int | None
    findings: tuple[Finding, ...]
    blind: dict[str, str]
    healthy: tuple[str, ...]
    """Rules that could see and never fired."""

    @classmethod
    def of(cls, engine: Engine, source: str, steps: int, first_step: int | None, last_step: int | None) -> "Summary":
        findings, blind = tuple(engine.findings), engine.blind()
        told = {finding.rule.id for finding in findings}
        healthy = tuple(rule.id for rule in engine.rules if rule.id not in told and rule.id not in blind)
        return cls(source, steps, first_step, last_step, findings, blind, healthy)

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
            "blind": [{"rule": rule, "reason": reason} for rule, reason in self.blind.items()],
            "healthy": list(self.healthy),
        }
