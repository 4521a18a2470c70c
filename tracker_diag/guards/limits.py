"""Limits: how often each guard has acted, in a file of its own, so that no rollback takes it back."""

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tracker_diag.health import Health, folder, private

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
