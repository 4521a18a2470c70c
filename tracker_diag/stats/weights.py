"""Importance weights w = exp r: effective sample size and KL, in log space, exact and raw.

Raw means: before any truncation, clipping or rejection of the trainer, which hide what these
statistics exist to see.
"""

import math
from dataclasses import dataclass

import numpy as np

from tracker_diag.arrays import FloatArray


@dataclass(frozen=True)
class WeightSums:
    """Sufficient statistics of a set of log-weights; `+` merges two sets, to rounding.

    The sums are kept relative to the largest weight, so nothing overflows (log-sum-exp).
    """

    n: int = 0
    largest: float = -math.inf
    """m, the largest log-weight, in nats."""
    first: float = 0.0
    """Sum of exp(r − m)."""
    second: float = 0.0
    """Sum of exp(2(r − m))."""
    k3: float = 0.0
    """Sum of the k3 terms, in nats; inf where a weight is beyond float64."""

    @classmethod
    def of(cls, log_weights: FloatArray, *, from_numerator: bool = False) -> "WeightSums":
        """Sums over `log_weights` (n,) in nats; NaN and inf are left out, and are to be counted elsewhere.

        `from_numerator`: the samples come from the first of the two policies, not from the second, as
        those of a ratio to a reference do; it decides which k3 is an estimate of a KL at all.
        """
        r = log_weights[np.isfinite(log_weights)].astype(np.float64)
        if r.size == 0:
            return cls()
        largest = float(r.max())
        w = np.exp(r - largest)
        with np.errstate(over="ignore"):
            toward = -r if from_numerator else r
            k3 = float((np.expm1(toward) - toward).sum())
        return cls(r.size, largest, float(w.sum()), float(w @ w), k3)

    def __add__(self, other: "WeightSums") -> "WeightSums":
        if not self.n or not other.n:
            return self if self.n else other
        largest = max(self.largest, other.largest)
        mine, theirs = math.exp(self.largest - largest), math.exp(other.largest - largest)
        return WeightSums(
            n=self.n + other.n,
            largest=largest,
            first=self.first * mine + other.first * theirs,
            second=self.second * mine**2 + other.second * theirs**2,
            k3=self.k3 + other.k3,
        )

    @property
    def ess(self) -> float:
        """Effective sample size (Σw)²/Σw² as a share of n, in (0, 1] (Kong 1992); NaN without samples."""
        return self.first**2 / self.second / self.n if self.n else math.nan

    @property
    def max_weight_share(self) -> float:
        """Largest weight over the sum of all, in (0, 1]; NaN without samples."""
        return 1 / self.first if self.n else math.nan

    @property
    def kl_k3(self) -> float:
        """The k3 estimate of KL(sampled policy ‖ the other) in nats (Schulman 2020); NaN without samples."""
        return self.k3 / self.n if self.n else math.nan
