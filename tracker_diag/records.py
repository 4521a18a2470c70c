"""Records: what leaves the core. Plain immutable values that a tracker can draw without knowing more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tracker_diag.stats.arrays import BoolArray, Float64Array, IntArray
from tracker_diag.stats.once import once

SAMPLES = "samples"
"""In place of a ratio pair: what was counted of sequences and not of tokens."""

Cell: TypeAlias = str | float | int | None

Spread: TypeAlias = float | Callable[[], float | None] | None


@dataclass(frozen=True)
class Scalar:
    """One finite number at one step."""

    name: str
    value: float
    n: int | None = None
    """Samples that the value rests on, where it is a statistic."""
    spread: Spread = None
    """Its `error`, or what computes that: it takes long, and is rarely asked for. Ask within the step."""
    quantum: float = 0.0
    """What it was rounded to, where that is known: 0.001 is three decimals."""

    @once
    def error(self) -> float | None:
        """Standard deviation of its logarithm through the sampling of sequences; None where it is not known."""
        return self.spread() if callable(self.spread) else self.spread


@dataclass(frozen=True)
class Histogram:
    """Counts (B,) between finite `edges` (B + 1,): of |log-ratio| in nats, or of the rewards of sequences."""

    name: str
    pair: str
    """A ratio pair, or `SAMPLES`; the slice is then what it is of."""
    slice: str
    counts: IntArray
    edges: Float64Array
    baseline: IntArray
    """(B,) counts of the same slice in the reference period; all zero before it is over."""


@dataclass(frozen=True)
class Table:
    """Rows under `columns`; a column holds one type, or None."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """A picture that is still to be drawn, by `report.picture`."""

    name: str
    summary: Any
    """Of the run, as it was then."""


@dataclass(frozen=True, eq=False)
class WorstSequence:
    """A sequence that holds much of a slice's tail: a window of W of its tokens around the largest log-ratio."""

    pair: str
    slice: str
    onset: int
    """Step at which the finding began that it was kept for."""
    moment: Literal["first", "worst", "last"]
    """Which of the finding's steps: the first that was kept, that with the most tail mass, or the last."""
    step: int
    batch: int
    """Which observation of the step, from 0 on."""
    sequence: int
    """Its number in the batch: the row of padded arrays, the caller's own number in packed ones."""
    tool: str
    """Which tool answered last before the largest; empty where none did, or it is not known."""
    length: int
    """Tokens of the whole sequence; of padded arrays, of the row."""
    first: int
    """Position in the sequence of the window's first token."""
    position: int
    """Position in the sequence of the largest |log-ratio|."""
    limit: float
    """Nats of |log-ratio| beyond which the tail begins: p99 of the baseline."""
    share: float | None
    """Its part of the tail beyond `limit` in the slice's window; None if it is not finite."""
    logprobs: Float64Array
    """(2, W) of the two policies of the pair, trainer first."""
    sampled: BoolArray
    """(W,) True on tokens that the policy sampled."""
    tool_output: BoolArray
    """(W,) True on what a tool or the environment said."""
    in_slice: BoolArray
    """(W,) True on tokens of the slice."""
    token_ids: IntArray | None = None
    """(W,) where they were given. They never leave this machine."""
    texts: tuple[str, ...] | None = None
    """(W,) text of each token that is shown, empty for the others, where a decoder was given."""

    @property
    def log_ratios(self) -> Float64Array:
        """(W,) nats."""
        with np.errstate(invalid="ignore"):  # inf − inf
            ratios: Float64Array = self.logprobs[0] - self.logprobs[1]
        return ratios

    @property
    def largest(self) -> float:
        """The log-ratio at `position`, in nats; NaN or infinite if it is."""
        return float(self.log_ratios[self.position - self.first])


Record: TypeAlias = Scalar | Histogram | Table | Drawing
