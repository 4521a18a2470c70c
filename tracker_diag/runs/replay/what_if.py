"""What if: the weights of a log as another truncation, another cut of stale tokens, or whole sequences would have them.

All of it comes from the sketches of folded steps, so no token is read again. A log-ratio r is known to 0.39 % there.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.metrics.series import Pair
from tracker_diag.runs.replay.fold import Folded
from tracker_diag.stats.arrays import Float64Array, IntArray
from tracker_diag.stats.histogram import QUANTILE_VALUES
from tracker_diag.tensors.observation import GROUPS, ROWS

SIGNED = np.stack([QUANTILE_VALUES, -QUANTILE_VALUES])
"""(2, 4098) the log-ratio of each bin of a row of a sketch, in nats."""
POST_TOOL = ROWS.index("post_tool")
CAPS = (2.0, 5.0, 10.0)
LAGS = (0, 1, 3)
TOP = 0.01
"""Share of the weights, the largest, whose part of the sum is given."""
MOST = 50.0
"""Nats from which on a weight counts no more, so that sums stay finite."""


@dataclass(frozen=True)
class Variant:
    """One way to weigh the tokens of a log."""

    pair: Pair
    name: str
    count: int
    """Tokens, or sequences, that take part."""
    ess: float
    """(Σw)² / (n Σw²), between 0 and 1."""
    top: float
    """Share of Σw that the largest 1 % of weights hold."""
    cut: float
    """Share of all that is capped or left out."""
    after_tool: float | None
    """Share of Σw, which the gradient is proportional to, of tokens after a tool result; None where it is unknown."""


class WhatIf:
    """Adds up steps, in any order; then gives the variants of each ratio pair."""

    def __init__(self) -> None:
        self._tokens: dict[Pair, Any] = defaultdict(int)
        self._by_lag: dict[Pair, Any] = defaultdict(int)
        self._sequences: dict[Pair, Any] = defaultdict(int)
        self._means: dict[Pair, Any] = defaultdict(int)

    def add_step(self, step: int, folded: Folded) -> None:
        """Take in what the tokens of a step come to."""
        for pair, observation in folded.observed.items():
            context = observation.sketches["context"].counts
            self._tokens[pair] += context.reshape(-1, GROUPS, *context.shape[1:]).sum(1)
            self._sequences[pair] += observation.sequence_sketch.counts[-1:]
            if "policy_lag" in observation.sketches:
                self._by_lag[pair] += observation.sketches["policy_lag"].counts
        for pair, means in folded.means.items():
            self._means[pair] += means.counts

    def variants(self, caps: Iterable[float] = CAPS, lags: Iterable[int] = LAGS) -> list[Variant]:
        """As logged, with weights capped at each of `caps`, without tokens staler than each of `lags`, and whole.

        Args:
            caps: largest weights of a truncation.
            lags: updates since a token was sampled, 0 to 6; more are counted as 7.
        """
        variants: list[Variant | None] = []
        for pair, counts in self._tokens.items():
            variants.append(_variant(pair, "tokens, as logged", counts))
            variants += [_variant(pair, f"tokens, weight at most {cap:g}", counts, cap=cap) for cap in caps]
            if pair in self._by_lag:
                total = int(self._by_lag[pair].sum())
                of_lags = [(lag, self._by_lag[pair][: lag + 1].sum(0, keepdims=True)) for lag in lags]
                variants += [_variant(pair, f"tokens, at most {lag} updates old", kept, total) for lag, kept in of_lags]
            variants.append(_variant(pair, "whole sequences", self._sequences[pair]))
            if pair in self._means:
                variants.append(_variant(pair, "sequences, as GSPO", self._means[pair]))
        return [variant for variant in variants if variant]


def _variant(
    pair: Pair, name: str, of_slices: IntArray, total: int | None = None, cap: float = np.inf
) -> Variant | None:
    """With counts (n, 2, 4098) of `total`, for n slices of `ROWS` or 1, and weights up to `cap`; None for no count."""
    weights: Float64Array = np.exp(np.clip(SIGNED, -MOST, MOST))
    counts = of_slices.sum(0)
    capped = int(counts[weights > cap].sum())
    weights = np.minimum(weights, cap)
    n = int(counts.sum())
    if not n:
        return None
    first, second = float((counts * weights).sum()), float((counts * weights**2).sum())
    everything = total or n
    order = np.argsort(-weights, axis=None, kind="stable")
    sizes, values = counts.reshape(-1)[order], weights.reshape(-1)[order]
    of_top = np.clip(TOP * n - (np.cumsum(sizes) - sizes), 0, sizes)
    top = float((of_top * values).sum()) / first
    sums = (of_slices * weights).sum((1, 2))
    after_tool = float(sums[POST_TOOL]) / first if len(sums) > 1 else None
    return Variant(pair, name, n, first**2 / (n * second), top, (everything - n + capped) / everything, after_tool)
