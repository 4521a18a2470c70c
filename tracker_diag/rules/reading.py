"""What a signal reports of one step."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tracker_diag.metrics.reasons import Reason


@dataclass(frozen=True)
class Reading:
    """What a signal said at one step. `holds` is None where it could not see; `unknown` says why."""

    signal: str
    series: str
    holds: bool | None
    value: float | None = None
    baseline: float | None = None
    n: int | None = None
    onset: int | None = None
    unknown: Reason | None = None
    at: int | None = None
    """The step of the baseline, or its first one, where that is no reference period."""
    keys: tuple[str, ...] = ()
    """The series that `series` is made of, one or two, where it is of series at all."""

    @property
    def ratio(self) -> float | None:
        """Value over baseline."""
        return self.value / self.baseline if self.value is not None and self.baseline else None

    def state_dict(self) -> dict[str, Any]:
        kept = {field.name: getattr(self, field.name) for field in fields(self)}
        return kept | {"unknown": self.unknown and self.unknown.state_dict(), "keys": [str(key) for key in self.keys]}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Reading":
        """The reading that `state_dict` was taken of."""
        unknown = Reason.of_state(state["unknown"]) if state["unknown"] else None
        kept: dict[str, Any] = {**state, "unknown": unknown, "keys": tuple(state["keys"])}
        return cls(**kept)


def different(value: float, other: float) -> tuple[str, str]:
    """Both with three digits, or with as many as it takes to see that they differ: rewards may have a large offset."""
    for digits in range(3, 13):
        texts = f"{value:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return f"{value:.3g}", f"{other:.3g}"
