"""The user's own callback: called for each incident in a thread of its own, so that it may raise or hang."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from tracker_diag.health import Health
from tracker_diag.rules.incidents import Incident
from tracker_diag.tensors.worker import Writer

OnIncident: TypeAlias = Callable[[Incident], object]
"""Called once when an incident at warn or above begins, and again when it has become an error."""

WAITING = 16
"""Incidents that wait while a call is underway; further ones are dropped, and counted."""

AT_CLOSE = 5.0
"""Seconds that the end of the run waits for calls that are underway."""


class Listener:
    """Calls `call` in a thread; what fails is counted in `diag/health/callback_errors`."""

    def __init__(self, call: OnIncident, health: Health) -> None:
        self._call, self._health = call, health
        self._thread: Writer | None = None

    def notify(self, news: Sequence[Incident]) -> None:
        """Have it called with each of `news`; count what has failed since the last time."""
        if news and self._thread is None:
            self._thread = Writer("tracker_diag-on-incident", WAITING)
        if self._thread is not None:
            for incident in news:
                self._thread.put(partial(self._call, incident), droppable=True)
            for error in self._thread.errors():
                self._health.record("callback_errors", error)

    def close(self) -> None:
        """Wait a little for what is underway; count what has failed, and what has not ended."""
        if self._thread is not None:
            self._thread.close(AT_CLOSE)
            self.notify(())
