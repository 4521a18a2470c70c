"""What a guard remembers: which incidents it has dealt with, how often it has acted, and what it holds on to.

How often it has acted is in files too, so that no rollback takes it back.
"""

import json
import os
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tracker_diag.guards.checkpoints import OURS
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

    def raise_to(self, times: int, last: int | None) -> None:
        """It has acted so often and at this step `last`, or more often and later."""
        self.times = max(self.times, times)
        self.last = max((step for step in (self.last, last) if step is not None), default=None)

    def state_dict(self) -> dict[str, Any]:
        known = [[*name, severity] for name, severity in self.known.items()]
        return {"times": self.times, "last": self.last, "since": self.since, "value": self.value, "known": known}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.times, self.last, self.since, self.value = state["times"], state["last"], state["since"], state["value"]
        self.known = {(rule, pair, slice, onset): severity for rule, pair, slice, onset, severity in state["known"]}


Counts: TypeAlias = Mapping[str, tuple[int, int | None]]
"""How often a guard has acted, and at which step last, by the guard in JSON."""


class Limits:
    """Of one run and of those that are resumed from its states: counts in files, which no rollback takes back.

    They are in the parent folder of each checkpoint, which a launcher finds on any node, and in TRACKER_DIAG_DIR.
    """

    def __init__(self) -> None:
        self.run = uuid.uuid4().hex[:12]
        """Names the run; it is in its states."""
        self.places: set[str] = set()
        """The parent folders of its checkpoints."""

    @property
    def _files(self) -> list[Path]:
        return [place / f"{OURS}guards-{self.run}.json" for place in (folder(), *map(Path, sorted(self.places)))]

    def keep(self, counts: Counts, health: Health) -> None:
        """Write `counts`; a disk that does not take them is counted."""
        own, *others = self._files
        for file in (own, *(file for file in others if file.parent.is_dir())):  # it may be one of another node
            with health.guard("spool_errors"):
                private(file, json.dumps(counts))

    def recall(self, memories: Iterable[tuple[str, Memory]]) -> str:
        """Raise the counts of `memories`, by guard, to those in the files; which file cannot be read, if any."""
        for file in self._files:
            try:
                kept = json.loads(file.read_text(encoding="utf-8"))
                counts = {guard: (int(times), int(last)) for guard, (times, last) in kept.items() if times}
            except FileNotFoundError:
                continue
            except (OSError, ValueError, TypeError, AttributeError) as error:
                if isinstance(error, PermissionError) and file.stat().st_uid != os.geteuid():
                    continue  # of somebody else who resumed the same checkpoint
                return f"{file} cannot be read: {error!r}"
            for guard, memory in memories:
                memory.raise_to(*counts.get(guard, (0, None)))
        return ""

    def state_dict(self) -> dict[str, Any]:
        return {"run": self.run, "places": sorted(self.places)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of the run that `state` is of; a folder that is known stays known."""
        self.run = state["run"]
        self.places |= {*state["places"]}
