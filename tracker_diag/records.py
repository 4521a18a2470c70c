"""Records: what leaves the core. Plain immutable values that a backend can draw without knowing more."""

from dataclasses import dataclass
from typing import TypeAlias

from tracker_diag.stats.arrays import Float64Array, IntArray

SAMPLES = "samples"
"""In place of a ratio pair: what was counted of sequences and not of tokens."""

Cell: TypeAlias = str | float | int | None


@dataclass(frozen=True)
class Scalar:
    """One finite number at one step."""

    name: str
    value: float
    n: int | None = None
    """Samples that the value rests on, where it is a statistic."""
    error: float | None = None
    """Standard deviation of its logarithm through the sampling of sequences, where it is known."""
    quantum: float = 0.0
    """What it was rounded to, where that is known: 0.001 is three decimals."""


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


Record: TypeAlias = Scalar | Histogram | Table
