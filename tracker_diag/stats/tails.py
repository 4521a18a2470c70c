"""The statistics of one slice of one ratio pair, each only where its number of samples supports it."""

import math
from dataclasses import dataclass

from tracker_diag.arrays import IntArray
from tracker_diag.stats.histogram import count_above, quantiles
from tracker_diag.stats.pareto import pareto_k_of
from tracker_diag.stats.weights import WeightSums

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
MIN_TOKENS = 200
MIN_SEQUENCES = 50
NO_SIGNAL = 1e-6
"""A pair whose |log-ratio| never exceeds this is zero but for float noise: on-policy by construction."""


@dataclass(frozen=True)
class Estimate:
    """A value with the number of samples that it rests on."""

    value: float
    n: int


def tokens_needed(stat: str) -> int:
    """Tokens below which `stat` is not reported: 200, and for a quantile 20 beyond it."""
    return max(MIN_TOKENS, round(20 / (1 - QUANTILES[stat]))) if stat in QUANTILES else MIN_TOKENS


def has_signal(counts: IntArray) -> bool:
    """Whether any |log-ratio| of `counts` (…, 4098) exceeds float noise."""
    return count_above(counts.reshape(-1, counts.shape[-1]).sum(axis=0), NO_SIGNAL) > 0


def slice_statistics(counts: IntArray, tokens: WeightSums, sequences: WeightSums) -> dict[str, Estimate]:
    """All statistics of a slice that its samples support, by name (see the registry of metrics).

    Args:
        counts: (2, 4098) sketch of the tokens' log-ratios, by sign.
        tokens: over the same log-ratios.
        sequences: over the log-ratios summed over each sequence's tokens in the slice.
    """
    n = int(counts.sum())
    found = {"count": Estimate(n, n)}
    if n >= MIN_TOKENS:
        magnitudes = counts.sum(axis=0)
        levels = {stat: q for stat, q in QUANTILES.items() if n >= tokens_needed(stat)}
        values = quantiles(magnitudes, list(levels.values()))
        found |= {stat: Estimate(value, n) for stat, value in zip(levels, values, strict=True)}
        found["ess"] = Estimate(tokens.ess, n)
        found["max_weight_share"] = Estimate(tokens.max_weight_share, n)
        found["k3"] = Estimate(tokens.kl_k3, n)
        shape = pareto_k_of(counts)
        if not math.isnan(shape):
            found["pareto_k"] = Estimate(shape, n)
    if sequences.n >= MIN_SEQUENCES:
        found["ess_sequence"] = Estimate(sequences.ess, sequences.n)
    return found
