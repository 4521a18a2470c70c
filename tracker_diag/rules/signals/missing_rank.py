"""A rank that no longer reports."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.metrics.series import Rank
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.series import Place
from tracker_diag.rules.signals.base import CLOSED, Signal


@dataclass(config=CLOSED, kw_only=True)
class MissingRank(Signal):
    """A rank has not reported for `steps` steps. Only known if ranks report through a store."""

    kept: ClassVar[tuple[str, ...]] = ("_since",)

    kind: Literal["missing_rank"] = "missing_rank"
    steps: int = Field(ge=1)

    def begin(self, at: Place) -> None:
        super().begin(at)
        self._since: dict[str, int] = {}
        """The first silent step of each rank, by its number as text."""
        self._missing: Mapping[Rank, int] | None = None

    def update(self, observed: Observed) -> None:
        self._missing, self.holds = observed.missing, None
        if self._missing is not None:
            names = [str(rank.number) for rank in self._missing]
            self._since = {name: self._since.get(name, observed.step) for name in names}
            self.holds = max(self._missing.values(), default=0) >= self.steps

    def reading(self) -> Reading:
        if self._missing is None:
            return Reading("", "ranks", None, unknown=reason(Why.NO_RANKS))
        longest = max(self._missing, key=self._missing.__getitem__, default=None)
        if longest is None:
            return Reading("", "ranks", False, 0)
        steps, missing = self._missing[longest], sum(n >= self.steps for n in self._missing.values())
        return Reading("", str(longest), self.holds, steps, n=missing, onset=self._since[str(longest.number)])
