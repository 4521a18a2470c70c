"""Other rules that fired recently."""

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Signal


@dataclass(config=CLOSED, kw_only=True)
class Fired(Signal):
    """At least `count` of other `rules` have fired within the last `steps` steps."""

    kind: Literal["fired"] = "fired"
    rules: tuple[str, ...] = Field(min_length=1)
    count: int = Field(ge=1)
    steps: int = Field(ge=1)

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._recent: dict[str, int] = {}
        """The steps at which they fired."""

    def update(self, observed: Observed) -> None:
        since = observed.step - self.steps
        self._recent = {rule: observed.fired[rule] for rule in self.rules if rule in observed.fired}
        self._recent = {rule: fired for rule, fired in self._recent.items() if fired >= since}
        self.holds = len(self._recent) >= self.count

    def reading(self) -> Reading:
        onset = min(self._recent.values(), default=None) if self.holds else None
        return Reading("", ", ".join(self._recent) or "none", self.holds, len(self._recent), onset=onset)
