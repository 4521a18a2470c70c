"""Importance weights w = exp r: effective sample size, divergences and KL, in log space and raw.

Raw means: before any truncation, clipping or rejection of the trainer, which hide what these statistics exist to see.
`AppliedSums` is what the optimiser used instead, to be shown next to it.
"""

import math
from dataclasses import dataclass, fields

import numpy as np

from tracker_diag.stats.arrays import Array, Float64Array, FloatArray, IntArray, float64, namespace, stacked
from tracker_diag.stats.histogram import EDGES

_CHUNK = 1 << 16  # float64 temporaries of a host's pass stay in its cache
_DEVICE_CHUNK = 1 << 22  # bounds the temporaries; a device wants few large calls

_MAGNITUDES = np.concatenate([[0.0], (EDGES[:-1] + EDGES[1:]) / 2, EDGES[-1:]])
LOG_RATIOS = np.stack([_MAGNITUDES, -_MAGNITUDES])
"""(2, 4098) the value of a bin in a sum: the arithmetic mean of its edges, with its sign."""


@dataclass(frozen=True)
class WeightSums:
    """Sufficient statistics of a set of log-weights, or of many such sets side by side.

    Every field has one shape (...), float64; `+` merges set by set, to rounding. The sums are kept relative
    to the largest weight, so nothing overflows (log-sum-exp).
    """

    n: Array
    largest: Array
    """m, the largest log-weight, in nats; −inf without samples."""
    first: Array
    """Sum of exp(r − m)."""
    second: Array
    """Sum of exp(2(r − m))."""
    total: Array
    """Sum of r, in nats."""
    squares: Array
    """Sum of r², in nats²."""
    k3: Array
    """Sum of the k3 terms, in nats; inf where a weight is beyond float64."""

    @classmethod
    def none(cls, shape: tuple[int, ...] = ()) -> "WeightSums":
        """Sums over no sample."""
        zero = np.zeros(shape)
        return cls(zero, zero - math.inf, zero, zero, zero, zero, zero)

    @classmethod
    def summed(cls, log_weights: Array, member: Array | None = None, *, from_numerator: bool = False) -> "WeightSums":
        """Sums over the last axis of `log_weights` (..., n) in nats, of those only where `member` is True, if given.

        `member` (..., n) may have more sets than `log_weights`, which are then the same for each. NaN and inf are left
        out, and are to be counted elsewhere. `from_numerator`: the samples come from the first of the two policies, as
        with a ratio to a reference. It decides which k3 estimates a KL.
        """
        counted: Array = namespace(log_weights).isfinite(log_weights) if member is None else member
        n, sets = counted.shape[-1], math.prod(counted.shape[:-1])
        length = (_CHUNK if isinstance(log_weights, np.ndarray) else _DEVICE_CHUNK) // sets
        sums = cls._of_part(log_weights[..., :length], counted[..., :length], from_numerator)
        for start in range(length, n, length):
            part = slice(start, start + length)
            sums += cls._of_part(log_weights[..., part], counted[..., part], from_numerator)
        return sums

    @classmethod
    def _of_part(cls, log_weights: Array, member: Array, from_numerator: bool) -> "WeightSums":
        xp = namespace(log_weights)
        counted = xp.isfinite(log_weights) & member
        if xp is np and counted.ndim == 1 and counted.all():
            return cls._of_all(log_weights, from_numerator)
        # What is not counted becomes 0 in every sum; it is never selected, which would depend on the data.
        r = float64(xp.where(counted, log_weights, 0.0))
        largest = xp.amax(xp.where(counted, r, -math.inf), -1) if r.shape[-1] else r.sum(-1) - math.inf
        centred = r - xp.where(largest > -math.inf, largest, 0.0)[..., None]
        w = xp.exp(centred) * counted
        toward = -r if from_numerator else r
        with np.errstate(over="ignore"):
            k3 = (xp.expm1(toward) - toward).sum(-1)
        return cls(counted.sum(-1) * 1.0, largest, w.sum(-1), (w * w).sum(-1), r.sum(-1), (r * r).sum(-1), k3)

    @classmethod
    def _of_all(cls, log_weights: FloatArray, from_numerator: bool) -> "WeightSums":
        """Sums over `log_weights` (n,), all of them finite: what `_of_part` gives, to the bit."""
        r, total = log_weights.astype(np.float64, copy=False), np.add.reduce
        largest = np.max(r, initial=-math.inf)
        w = np.exp(r - largest)
        toward = -r if from_numerator else r
        with np.errstate(over="ignore"):
            k3 = total(np.expm1(toward) - toward)
        return cls(np.float64(r.size), largest, total(w), total(w * w), total(r), total(r * r), k3)

    @classmethod
    def of_counts(cls, counts: IntArray, *, from_numerator: bool = False) -> "WeightSums":
        """Sums over the log-ratios of a sketch, (..., 2, 4098) counts, each taken at the middle of its bin.

        A weight is then off by at most |r|/256 relative, k2 and k3 by 0.8 % where |r| is small: enough to compare
        slices, not exact.
        """
        c, rho = counts.astype(np.float64), LOG_RATIOS
        axes = (-2, -1)
        largest = np.where(counts > 0, rho, -math.inf).max(axis=axes)
        w = np.exp(np.where(counts > 0, rho - largest[..., None, None], 0.0))
        toward = -rho if from_numerator else rho
        terms = (c, c * w, c * w * w, c * rho, c * rho * rho, c * (np.expm1(toward) - toward))
        n, *rest = (term.sum(axis=axes) for term in terms)
        return cls(n, largest, *rest)

    @classmethod
    def merged(cls, parts: Float64Array) -> "WeightSums":
        """All of `parts` (K, 7, ...) together, each of them an `array`: what adding them up gives, to rounding."""
        n, largest, first, second, total, squares, k3 = parts.swapaxes(0, 1)
        top = largest.max(axis=0)
        with np.errstate(invalid="ignore"):  # −inf − −inf, of empty sets
            shift = np.where(n > 0, largest - top, 0.0)
        a = np.exp(shift)
        terms = (a * first, a * a * second, total, squares, k3)
        return cls(np.add.reduce(n), top, *map(np.add.reduce, terms))

    def array(self) -> Array:
        """(7, ...) the fields in their order, for transport and storage; `WeightSums(*array)` is the inverse."""
        return stacked([getattr(self, name) for name in FIELDS])

    def __getitem__(self, index: int) -> "WeightSums":
        return WeightSums(*(getattr(self, name)[index] for name in FIELDS))

    def __add__(self, other: "WeightSums") -> "WeightSums":
        xp = namespace(self.first)
        largest = xp.maximum(self.largest, other.largest)

        def shift(sums: WeightSums) -> Array:
            if isinstance(largest, float):  # one set
                return sums.largest - largest if sums.n > 0 else 0.0
            with np.errstate(invalid="ignore"):  # −inf − −inf, of two empty sets
                return xp.where(sums.n > 0, sums.largest - largest, 0.0)

        a, b = xp.exp(shift(self)), xp.exp(shift(other))
        return WeightSums(
            n=self.n + other.n,
            largest=largest,
            first=a * self.first + b * other.first,
            second=a * a * self.second + b * b * other.second,
            total=self.total + other.total,
            squares=self.squares + other.squares,
            k3=self.k3 + other.k3,
        )

    @property
    def ess(self) -> Array:
        """Effective sample size (Σw)²/Σw² as a share of n, in (0, 1] (Kong 1992); NaN without samples."""
        return _share(self.first**2, self.second * self.n)

    @property
    def max_weight_share(self) -> Array:
        """Largest weight over the sum of all, in (0, 1]; NaN without samples."""
        return _share(1.0, self.first)

    @property
    def chi2(self) -> Array:
        """χ² divergence estimated by self-normalised weights, n/ESS − 1, ≥ 0; NaN without samples."""
        return _share(1.0, self.ess) - 1

    @property
    def mean(self) -> Array:
        """Mean of r in nats: −k1, or k1 where the samples come from the numerator (Schulman 2020)."""
        return _share(self.total, self.n)

    @property
    def variance(self) -> Array:
        """Of r in nats², over the samples; NaN without any."""
        return _share(self.squares, self.n) - self.mean**2

    @property
    def kl_k3(self) -> Array:
        """The k3 estimate of KL(sampled policy ‖ the other) in nats (Schulman 2020); NaN without samples."""
        return _share(self.k3, self.n)


FIELDS = tuple(field.name for field in fields(WeightSums))

MODIFIED = 0.01
"""An applied weight further than this from exp r, relative, was modified; bfloat16 alone gives 0.004."""
LARGEST = 700.0
"""Log-ratios beyond this count as this when applied weights are held against them, so that none is infinite."""


def applied_sums(applied: Array, log_weights: Array, member: Array) -> Array:
    """(5,) float64 of the weights that the optimiser used: n, sum, sum of squares, how many not exp r, how many NaN.

    `applied`, `log_weights`, `member`: (n,) each; sums are over `member` where both are finite, the last counts
    NaN and inf among `applied`. They add up over parts. A weight of 0 is that of a token that was masked out.
    """
    xp = namespace(applied)
    counted = member & xp.isfinite(applied) & xp.isfinite(log_weights)
    a, r = (float64(xp.where(counted, x, 0.0)) for x in (applied, log_weights))
    raw = xp.exp(xp.clip(r, -LARGEST, LARGEST))
    modified = counted & (abs(a - raw) > MODIFIED * raw)
    broken = member & ~xp.isfinite(applied)
    return xp.stack([counted.sum() * 1.0, a.sum(), (a * a).sum(), modified.sum() * 1.0, broken.sum() * 1.0])


def clip_fraction(counts: IntArray, low: float, high: float) -> float:
    """Share of ratios outside [1 − low, 1 + high], from a sketch (2, 4098); NaN where it is empty.

    A bin counts by the middle of its interval. low in (0, 1), high above 0.
    """
    above, below = _MAGNITUDES.searchsorted((math.log1p(high), -math.log1p(-low)), "right").tolist()
    n = int(counts.sum())
    return int(counts[0, above:].sum() + counts[1, below:].sum()) / n if n else math.nan


def _share(part: Array, whole: Array) -> Float64Array:
    """Part / whole, NaN where `whole` is 0."""
    answer: Array
    if isinstance(whole, float):  # of one set, as floats of Python: numpy's way takes several times as long
        answer = np.float64(float(part) / float(whole) if whole else math.nan)
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            answer = np.where(np.asarray(whole) == 0, math.nan, np.divide(part, whole))[()]
    share: Float64Array = answer
    return share
