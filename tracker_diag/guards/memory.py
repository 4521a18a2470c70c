"""What a guard remembers: which incidents it has dealt with, how often it has acted, and what it holds on to."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker_diag.rules.alerts import Identity, identity
from tracker_diag.rules.incidents import SEVERITIES, Incident
from tracker_diag.rules.model import Severity


@dataclass
class Memory:
    """Of one guard."""

    times: int = 0
    """How often it has acted, or would have."""
    last: int | None = None
    """The step at which it did last."""
    since: int | None = None
    """The step from which on it holds on to something; None while it does not."""
    value: float = 0.0
    """The KL coefficient that it holds."""
    known: dict[Identity, Severity] = field(default_factory=dict[Identity, Severity])
    """Findings of the incidents that it has dealt with, and how severe each was then."""

    def met(self, incident: Incident) -> Severity | None:
        """How severe `incident` was when it was dealt with; None if that has not been."""
        severities: list[Severity] = [self.known[one] for one in map(identity, incident.findings) if one in self.known]
        return max(severities, key=SEVERITIES.index) if severities else None

    def is_news(self, incident: Incident) -> bool:
        """Whether it has not been dealt with, or has become worse since."""
        then = self.met(incident)
        return then is None or SEVERITIES.index(incident.severity) > SEVERITIES.index(then)

    def meet(self, incident: Incident, severity: Severity) -> None:
        """It has been dealt with at this `severity`, with all that belongs to it by now."""
        self.known |= {identity(one): severity for one in incident.findings}

    def follow(self, firing: Sequence[Incident], there: Collection[Identity]) -> None:
        """What has joined a known incident is known; what is not `there` among the run's findings is forgotten."""
        self.known = {name: severity for name, severity in self.known.items() if name in there}
        for incident in firing:
            if (then := self.met(incident)) is not None:
                self.meet(incident, then)

    def state_dict(self) -> dict[str, Any]:
        known = [[*name, severity] for name, severity in self.known.items()]
        return {"times": self.times, "last": self.last, "since": self.since, "value": self.value, "known": known}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Memory":
        """The memory that `state_dict` was taken of."""
        known = {(rule, pair, slice, onset): severity for rule, pair, slice, onset, severity in state["known"]}
        return cls(state["times"], state["last"], state["since"], state["value"], known)
