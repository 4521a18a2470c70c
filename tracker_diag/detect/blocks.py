"""What detectors on block means share: a burn-in, a baseline that is frozen, blocks, a state that can be saved."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from tracker_diag.detect.saved import Saved
from tracker_diag.errors import SourceError
from tracker_diag.stats.arrays import Float64Array

Scale: TypeAlias = Literal["log", "linear"]
Direction: TypeAlias = Literal["rising", "falling"]

LEAST = 1e-6
"""A value on the log scale, and a noise on either, counts as at least this."""
FEWEST = 10
"""Values of a baseline, at least, where most of its steps have none."""
MOST = 1e100
"""Values and errors count as at most this in size, so that their squares can be added up."""


@dataclass(frozen=True)
class BlockSettings:
    """Counted in valid steps: those on which the series had a value."""

    burn_in: int
    """Steps before the baseline: a pair that starts at zero by construction is still rising."""
    baseline: int
    block: int

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.block < 1:
            raise ValueError(f"{self}: expected a burn_in of 0 or more and a block of 1 or more")
        if self.baseline < 2 * self.block or self.baseline % self.block:
            raise ValueError(f"baseline: {self.baseline} given, expected two or more blocks of {self.block}")


Settings = TypeVar("Settings", bound=BlockSettings)


@dataclass
class BlockDetector(Saved, ABC, Generic[Settings]):
    """One series against its own frozen baseline, judged at the end of each block of valid steps."""

    settings: Settings
    scale: Scale = "log"
    """`log` for series that are positive; on `linear` floors are relative to the baseline mean."""
    direction: Direction = "rising"
    matters: float = 0.0
    """On `linear`: the least change that is counted, in the series' unit."""
    disjoint: bool = False
    """Whether no value shares samples with another, as those of windows that overlap do."""

    score: float = 0.0
    value: float | None = None
    """Mean of the last full block, in the series' own unit."""
    baseline: float | None = None
    """Mean of the baseline, in the series' own unit; None until it is frozen."""
    onset: int | None = None
    """First step of the block in which the growth began, as far as the detector can tell."""
    seen: int = 0
    """Steps so far that its values stand for; after `rebaseline` those of the burn-in and the new baseline."""
    size: int = 0
    """Values of the baseline; 0 until it is frozen."""

    _baseline_values: list[float] = field(default_factory=list[float])
    _baseline_steps: list[int] = field(default_factory=list[int])
    _left_out: int = 0
    """Values that were no baseline."""
    _errors: int = 0
    _error_squares: float = 0.0
    _mean: float = 0.0
    _reference: float = 0.0
    """Growth of a block over `_mean`, on the detector's scale, below which nothing is counted."""
    _block: list[float] = field(default_factory=list[float])
    _block_start: int = 0

    @property
    def ready(self) -> bool:
        return self.baseline is not None

    @property
    def holds(self) -> bool | None:
        """Whether the series has grown; None without a baseline that could tell."""
        return self._grown if self.ready and not self._too_noisy else None

    @property
    def is_new(self) -> bool:
        """Whether the last full block is beyond every level that the series has come back from."""
        return True

    @property
    def needed(self) -> int:
        """Valid steps that it takes until the baseline is there."""
        return self.settings.burn_in + self.settings.baseline

    @property
    def block(self) -> int:
        """Values of a block: fewer where the baseline has fewer than its steps."""
        full, baseline = self.settings.block, self.settings.baseline
        return full if self.size >= baseline else max(full * self.size // baseline, 2)

    @property
    def undetectable(self) -> float | None:
        """The factor of growth below which a baseline that swings too much tells nothing; None if it does not."""
        return math.exp(min(self._reference, math.log(1e6))) if self._too_noisy else None

    def update(self, step: int, x: float, error: float | None = None, steps: int = 1) -> None:
        """Take the value of the series at `step`.

        Args:
            step: Training step, as `onset` reports it.
            x: Value in the series' own unit; on the log scale values below 1e-6 count as 1e-6.
            error: Standard deviation of `x` through sampling, on the detector's scale (on the log scale that
                of the logarithm); None where it is not known.
            steps: Steps that it covers: itself, and those before it that had no value. Burn-in and baseline last for so
                many steps, and the baseline has `FEWEST` values at least.
        """
        y = self._scaled(x)
        self.seen += steps
        if self.seen <= self.settings.burn_in:
            return
        if self.baseline is None:
            self._learn(step, y, error)
            return
        if not self._block:
            self._block_start = step
        self._block.append(y)
        if len(self._block) == self.block:
            block, self._block = self._block, []
            self._end_block(block)

    def rebaseline(self) -> None:
        """Start over with the baseline, without a burn-in: the series is not at zero any more."""
        seen = min(self.seen, self.settings.burn_in)
        anew = type(self)(self.settings, self.scale, self.direction, self.matters, self.disjoint, seen=seen)
        for name in self._kept():
            setattr(self, name, getattr(anew, name))

    def state_dict(self) -> dict[str, Any]:
        return {"settings": asdict(self.settings)} | super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken, bit for bit: JSON in Python keeps floats exactly.

        Raises:
            SourceError: if `state` is not of this kind of detector, or of one with other settings.
        """
        if given := sorted({"settings", *self._kept()} ^ set(state)):
            raise SourceError(f"{type(self).__name__}: {', '.join(given)} missing or unknown in the saved state")
        if state["settings"] != asdict(self.settings):
            raise SourceError(f"{type(self).__name__}: saved with {state['settings']}, expected {self.settings}")
        super().load_state_dict(state)

    def _kept(self) -> list[str]:
        return [name for name in vars(self) if name not in ("settings", "scale", "direction", "matters", "disjoint")]

    @property
    def _too_noisy(self) -> bool:
        # A series that was exploding during its baseline has none; to call it calm would be a lie.
        return self.scale == "log" and self._reference > math.log(10)

    def _end_block(self, block: Sequence[float]) -> None:
        mean = sum(block) / len(block)
        self.value = self._unscale(mean)
        self._judge(mean, block)

    def _learn(self, step: int, y: float, error: float | None) -> None:
        self._baseline_values.append(y)
        self._baseline_steps.append(step)
        if error is not None:
            self._errors += 1
            self._error_squares += min(error, MOST) ** 2
        if self.seen < self.needed or len(self._baseline_values) < min(FEWEST, self.settings.baseline):
            return
        self.size = len(self._baseline_values)
        values = np.array(self._baseline_values[-(self.size // self.block * self.block) :])
        means = values.reshape(-1, self.block).mean(axis=1)
        if not self._is_settled(values, means):
            self.seen -= (self.seen - self.settings.burn_in) * self.block // self.size
            self._left_out += self.block
            del self._baseline_values[: self.block], self._baseline_steps[: self.block]
            return
        self._mean = float(means.mean())
        self.baseline = self._unscale(self._mean)
        error = math.sqrt(self._error_squares / self._errors) if self._errors else 0.0
        # Where successive values come from overlapping windows, a block mean is hardly less noisy than one value.
        error /= math.sqrt(self.block) if self.disjoint else 1.0
        self._freeze(values, means, error)
        self._baseline_values, self._baseline_steps = [], []

    def _is_settled(self, values: Float64Array, means: Float64Array) -> bool:
        """Whether `values` with block `means` are a baseline, or else the first block of them is none."""
        return True

    def _least_change(self, growth: float) -> float:
        """A growth by `growth`, in log units, on the detector's scale."""
        return growth if self.scale == "log" else max(math.expm1(growth) * abs(self._mean), self.matters)

    def _scaled(self, x: float) -> float:
        y = math.log(max(x, LEAST)) if self.scale == "log" else min(max(float(x), -MOST), MOST)
        return y if self.direction == "rising" else -y

    def _unscale(self, y: float) -> float:
        y = y if self.direction == "rising" else -y
        return math.exp(min(y, 709.0)) if self.scale == "log" else y  # e^710 is no float any more

    @property
    @abstractmethod
    def _grown(self) -> bool:
        """Whether growth holds, given a baseline."""

    @abstractmethod
    def _freeze(self, values: Float64Array, means: Float64Array, error: float) -> None:
        """Set `_reference`, and whatever else is learnt from the baseline.

        Args:
            values: Every value of the baseline, on the detector's scale.
            means: Its block means; `_mean` is theirs.
            error: Known standard deviation of a block mean through sampling; 0 where it is not known.
        """

    @abstractmethod
    def _judge(self, mean: float, values: Sequence[float]) -> None:
        """Take the mean of a block that began at `_block_start`, and its values; set `score` and `onset`."""
