"""Step: what has come so far of the step that is underway."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from tracker_diag.errors import StepError
from tracker_diag.metrics.series import PAIRS, Pair
from tracker_diag.records import Record, Scalar


@dataclass
class Progress:
    """How far a run has come."""

    steps: int = 0
    first: int | None = None
    last: int | None = None
    last_with_tensors: int | None = None
    widest: int = 1
    """Steps from one with tensors to the next, at most."""

    def observed(self, step: int) -> None:
        """Tensors of `step` have come."""
        if self.last_with_tensors is not None:
            self.widest = max(self.widest, step - self.last_with_tensors)
        self.last_with_tensors = step

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for part in fields(self):
            setattr(self, part.name, state[part.name])

    def begin(self, step: int, *, with_tensors: bool) -> None:
        """Count `step`.

        Raises:
            StepError: it does not lie after the last one. Of a step with tensors that is the last one with any: metrics
                alone, on an axis of their own, do not push theirs on.
        """
        limit = self.last_with_tensors if with_tensors else self.last
        if limit is not None and step <= limit:
            raise StepError(f"step: {step} given, expected more than {limit}; its metrics are left out")
        self.steps += 1
        self.first, self.last = step if self.first is None else self.first, step


@dataclass
class Step:
    """The step that is underway: what of it the windows and the trackers already have."""

    step: int
    pairs: set[Pair] = field(default_factory=set[Pair])
    """Pairs of which tensors have come, and been judged; what comes of them later is in the window, and the tracker."""
    sent: dict[str, float] = field(default_factory=dict[str, float])
    """Values that the trackers have."""

    def unsent(self, records: Iterable[Record]) -> list[Record]:
        """Those of `records` that the trackers do not have; from now on they have them."""
        new = [
            record for record in records if not isinstance(record, Scalar) or self.sent.get(record.name) != record.value
        ]
        self.sent |= {record.name: record.value for record in new if isinstance(record, Scalar)}
        return new

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "pairs": sorted(self.pairs), "sent": dict(self.sent)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Step":
        return cls(state["step"], {pair for pair in PAIRS if pair in state["pairs"]}, dict(state["sent"]))


def step_of(given: object) -> int:
    """The step as an integer, of whatever type it came as.

    Raises:
        TypeError: it is no whole number.
    """
    whole = given.is_integer() if isinstance(given, float | np.floating) else hasattr(given, "__index__")
    if not whole:
        raise TypeError(f"step: {given!r} given, expected a whole number; pass the number of the optimiser's step")
    return int(given)  # type: ignore[call-overload,no-any-return]


def numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """The metrics that are single numbers, of whatever library, as floats; taken now, before they change."""
    numbers_of: dict[str, float] = {}
    for key, value in metrics.items():
        if not isinstance(key, str):  # no tracker takes it
            continue
        # A scalar of numpy or torch, or an array of one: trackers take both.
        single = hasattr(value, "item") and math.prod(getattr(value, "shape", (0,))) == 1
        number = value.item() if single else value  # type: ignore[attr-defined]
        if isinstance(number, int | float) and not isinstance(number, bool):
            try:
                numbers_of[key] = float(number)
            except OverflowError:  # an integer beyond floats
                numbers_of[key] = math.inf if number > 0 else -math.inf
    return numbers_of
