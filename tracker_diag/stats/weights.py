"""Importance weights w = exp r: effective sample size and KL estimates, all in log space and raw.

Raw means: before any truncation, clipping or rejection of the trainer, which hide what these
statistics exist to see.
"""

from dataclasses import dataclass

import numpy as np

from tracker_diag.arrays import Float64Array, IntArray


@dataclass(frozen=True)
class WeightConcentration:
    """How far the total weight rests on few samples; NaN without any."""

    ess: float
    """Effective sample size (Σw)²/Σw² as a share of n, in (0, 1] (Kong 1992)."""
    max_weight_share: float
    """Largest weight over the sum of all, in (0, 1]."""


def weight_concentration(log_weights: Float64Array, counts: IntArray | None = None) -> WeightConcentration:
    """Effective sample size and largest weight's share of `log_weights`, any shape.

    Args:
        log_weights: log-ratios in nats, finite; values or the representatives of bins.
        counts: same shape, how often each occurs; once each by default.

    All sums are shifted by the largest log-weight that occurs, so nothing overflows.
    """
    multiplicity = np.ones(log_weights.shape, np.int64) if counts is None else counts
    seen = multiplicity > 0
    if not seen.any():
        return WeightConcentration(float("nan"), float("nan"))
    log_w, c = log_weights[seen], multiplicity[seen]
    w = np.exp(log_w - log_w.max())
    first, second = float(c @ w), float(c @ (w * w))
    return WeightConcentration(ess=first * first / second / int(c.sum()), max_weight_share=1 / first)


def kl_k3(log_ratios: Float64Array, counts: IntArray) -> float:
    """The k3 estimate of KL(sampler ‖ trainer) in nats, mean of exp(r) − 1 − r ≥ 0 (Schulman 2020).

    `log_ratios` are trainer minus sampler on tokens from the sampler; NaN without any.
    """
    n = int(counts.sum())
    return float((counts * (np.expm1(log_ratios) - log_ratios)).sum() / n) if n else float("nan")
