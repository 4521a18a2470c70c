"""Step: what has come so far of the step that is underway."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracker_diag.metrics.series import PAIRS, Pair, Rank
from tracker_diag.stats.arrays import on_device
from tracker_diag.tensors.state import pack, unpack
from tracker_diag.tensors.windows import Arrival, Observation


@dataclass
class Progress:
    """How far a run has come."""

    steps: int = 0
    first: int | None = None
    last: int | None = None
    last_with_tensors: int | None = None
    observations: int = 0

    def evaluated(self, step: int) -> None:
        """Count `step`."""
        self.steps += 1
        self.first, self.last = step if self.first is None else self.first, step


@dataclass
class Step:
    """The metrics and observations of one training step."""

    step: int
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    time_ratio: float | None = None
    """Slowest rank's seconds over the median rank's, where ranks tell theirs."""
    missing: Mapping[Rank, int] | None = None
    """Steps since a rank was last heard of, by rank, where ranks report through a store."""
    _host: dict[Pair, Observation] = field(default_factory=dict[Pair, Observation])
    _arriving: list[Arrival] = field(default_factory=list[Arrival])

    def take(self, incoming: Mapping[Pair, Observation]) -> None:
        """Add what was observed; what is on a device sets out for the host."""
        if any(on_device(one.tokens.first) for one in incoming.values()):
            self._arriving.append(Arrival(incoming))
        else:
            for pair, one in incoming.items():
                add_observation(self._host, pair, one)

    def observed(self) -> dict[Pair, Observation]:
        """All that was observed, in numpy arrays; waits for what is still on its way."""
        while self._arriving:
            for pair, one in self._arriving.pop(0).wait().items():
                add_observation(self._host, pair, one)
        return self._host

    def state_dict(self) -> dict[str, Any]:
        values = pack(np.array(list(self.metrics.values()), np.float64))  # NaN and infinity are no JSON
        return {
            "step": self.step,
            "names": list(self.metrics),
            "values": values,
            "observed": packed(self.observed()),
            "time_ratio": self.time_ratio,
            "missing": None if self.missing is None else [[*rank, steps] for rank, steps in self.missing.items()],
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Step":
        metrics = dict(zip(state["names"], unpack(state["values"]).tolist(), strict=True))
        known = state["missing"]
        missing = None if known is None else {Rank(number, host): steps for number, host, steps in known}
        return cls(state["step"], metrics, state["time_ratio"], missing, unpacked(state["observed"]))

    @property
    def has_tensors(self) -> bool:
        return bool(self._host or self._arriving)


def add_observation(into: dict[Pair, Observation], pair: Pair, observed: Observation) -> None:
    """Add `observed` to what is there of `pair`."""
    into[pair] = into[pair] + observed if pair in into else observed


def numbers(metrics: Mapping[str, object]) -> dict[str, float]:
    """The metrics that are single numbers, of whatever library, as floats; taken now, before they change."""
    found: dict[str, float] = {}
    for key, value in metrics.items():
        single = hasattr(value, "item") and getattr(value, "ndim", 1) == 0  # a scalar of numpy or torch
        number = value.item() if single else value  # type: ignore[attr-defined]
        if isinstance(number, int | float) and not isinstance(number, bool):
            try:
                found[key] = float(number)
            except OverflowError:  # an integer beyond floats
                found[key] = math.inf if number > 0 else -math.inf
    return found


def on_host(observed: dict[Pair, Observation]) -> dict[Pair, Observation]:
    """`observed` in numpy arrays; waits for a device if it is on one."""
    return Arrival(observed).wait() if any(on_device(one.tokens.first) for one in observed.values()) else observed


def packed(observed: dict[Pair, Observation]) -> dict[str, Any]:
    """`observed` in JSON values."""
    return {pair: one.state_dict() for pair, one in on_host(observed).items()}


def unpacked(state: Mapping[str, Any]) -> dict[Pair, Observation]:
    """What `packed` was given."""
    return {pair: Observation.of_state(state[pair]) for pair in PAIRS if pair in state}
