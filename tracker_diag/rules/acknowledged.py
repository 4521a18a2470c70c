"""Incidents that a person knows of: they stay listed, and are quiet until they get worse."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tracker_diag.rules.incidents import SEVERITIES, Incident
from tracker_diag.rules.model import Severity

SETTING = "diag.acknowledged."
"""Begins the key of a setting or tag that acknowledges: `diag.acknowledged.POL001` is the reason, in which
`until 500: ` may come first."""


@dataclass(frozen=True)
class Acknowledged:
    """What is known of the incidents that a rule is the cause of, or a part."""

    rule: str
    reason: str
    until: int | None = None
    """The last step at which they are quiet; None for the rest of the run."""
    severity: Severity = "error"
    """The highest severity at which they are quiet."""

    def is_over(self, step: int) -> bool:
        """Whether it counts no longer at `step`."""
        return self.until is not None and step > self.until

    def covers(self, incident: Incident) -> bool:
        """Whether `incident` is quiet while this counts."""
        is_worse = SEVERITIES.index(incident.severity) > SEVERITIES.index(self.severity)
        return not is_worse and any(part.rule.id == self.rule for part in incident.findings)


def in_settings(config: Mapping[str, object]) -> list[Acknowledged]:
    """What the settings or tags of a run acknowledge."""
    return [parsed(key.removeprefix(SETTING), str(value)) for key, value in config.items() if key.startswith(SETTING)]


def parsed(rule: str, reason: str) -> Acknowledged:
    """What `reason` says of `rule`, of which `until 500: ` may be the beginning."""
    match = re.fullmatch(r"until (\d+): *(.*)", reason, re.DOTALL)
    return Acknowledged(rule, match[2], int(match[1])) if match else Acknowledged(rule, reason)


def quiet(incidents: Iterable[Incident], known: Sequence[Acknowledged]) -> tuple[Incident, ...]:
    """`incidents`, in their order, those that are known with the reason."""
    reasons = [(incident, [entry.reason for entry in known if entry.covers(incident)]) for incident in incidents]
    return tuple(replace(it, acknowledged=why[0] or "no reason given") if why else it for it, why in reasons)
