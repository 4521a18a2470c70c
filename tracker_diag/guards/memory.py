"""What a guard remembers: which incidents it has dealt with, how often it has acted, and what it holds on to.

How often it has acted is in a file too, so that no rollback takes it back.
"""

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tracker_diag.health import Health, folder, private
from tracker_diag.rules.findings import Identity, identity
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
        severities: list[Severity] = [
            self.known[name] for name in map(identity, incident.findings) if name in self.known
        ]
        return max(severities, key=SEVERITIES.index) if severities else None

    def is_news(self, incident: Incident) -> bool:
        """Whether it has not been dealt with, or has become worse since."""
        then = self.met(incident)
        return then is None or SEVERITIES.index(incident.severity) > SEVERITIES.index(then)

    def meet(self, incident: Incident, severity: Severity) -> None:
        """It has been dealt with at this `severity`, with all that belongs to it by now."""
        self.known |= {identity(finding): severity for finding in incident.findings}

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


Counts: TypeAlias = Mapping[str, tuple[int, int | None]]
"""How often a guard has acted, and at which step last, by the guard in JSON."""


class Limits:
    """Of one run and of those that are resumed from its states; written where a guard acts, which is seldom."""

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex[:12]
        """Names the run; it is in its states."""

    @property
    def file(self) -> Path:
        return folder() / f"guards-{self.run}.json"

    def keep(self, counts: Counts, health: Health) -> None:
        """Write `counts`; a disk that does not take them is counted."""
        try:
            private(self.file, json.dumps(counts))
        except OSError as error:
            health.record("spool_errors", error)

    def kept(self) -> dict[str, tuple[int, int | None]]:
        """What was written last; nothing where no guard has acted, or the file cannot be read."""
        try:
            counts: dict[str, list[int | None]] = json.loads(self.file.read_text(encoding="utf-8"))
            return {guard: (int(times or 0), last) for guard, (times, last) in counts.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
