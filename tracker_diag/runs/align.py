"""Align: one axis on which several runs can be held against each other, steps if these mean the same."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

import numpy as np

from tracker_diag.detect.parting import FEWEST
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.trackers.finished import FinishedRun

Unit: TypeAlias = Literal["step", "tokens", "share of the run"]

TOKENS = ("num_tokens", "num_input_tokens_seen", "total_tokens", "tokens_seen", "consumed_tokens")
"""Last parts of the keys under which trainers count the tokens so far."""
OVERLAP = 0.5
"""Part of the shorter run that the axis must cover, or its units cannot be the same."""

Places: TypeAlias = Callable[[Sequence[int]], Float64Array]
"""From a run's own steps to places on the axis."""


@dataclass(frozen=True)
class Axis:
    """The axis, from where all runs have begun to where the first has ended."""

    unit: Unit
    low: float
    high: float
    places: tuple[Places, ...]
    """Of each run, in their order."""
    why: str = ""
    """Why it is not that of steps."""


def aligned(runs: Sequence[FinishedRun]) -> Axis:
    """The axis of `runs`: steps where their ranges overlap, else tokens where all count them, else shares.

    Of a run with fewer than `FEWEST` rows nobody can tell; it is taken for one of the same steps.
    """
    at = [np.fromiter(run.rows, np.float64) for run in runs]
    steps = _common(at)
    if steps is None and min(map(len, at)) < FEWEST:
        steps = max(float(one.min()) for one in at), min(float(one.max()) for one in at)
    if steps is not None:
        return Axis("step", *steps, tuple(_same for _ in runs))
    ends = ", ".join(f"{min(run.rows):,} to {max(run.rows):,}" for run in runs)
    why = f"their steps are not of one unit ({ends})"
    counts = [_tokens(run.rows) for run in runs]
    told = [count for count in counts if count is not None]
    tokens = _common([np.array([*count.values()]) for count in told]) if len(told) == len(runs) else None
    if tokens is not None:
        return Axis("tokens", *tokens, tuple(_interpolated(count) for count in told), why)
    return Axis("share of the run", 0.0, 1.0, tuple(_shares(run) for run in runs), f"{why}, and not all count tokens")


def _common(places: Sequence[Float64Array]) -> tuple[float, float] | None:
    """The range that all have; None if it holds too little of one of them to be of the same unit."""
    low, high = max(float(one.min()) for one in places), min(float(one.max()) for one in places)
    shortest = min(float(one.max() - one.min()) for one in places)
    rows = min(int(((one >= low) & (one <= high)).sum()) for one in places)
    return (low, high) if rows >= FEWEST and high - low >= OVERLAP * shortest else None


def _tokens(rows: Mapping[int, Mapping[str, float]]) -> dict[int, float] | None:
    """Tokens so far by step, under the first key that counts them and never falls; None if none does."""
    keys = dict.fromkeys(key for row in rows.values() for key in row if key.rsplit("/", 1)[-1] in TOKENS)
    for key in keys:
        found = {step: row[key] for step, row in rows.items() if key in row and np.isfinite(row[key])}
        counts = [*found.values()]
        if len(found) >= FEWEST and all(later >= earlier for earlier, later in pairwise(counts)):
            return found
    return None


def _same(steps: Sequence[int]) -> Float64Array:
    return np.array(steps, np.float64)


def _interpolated(counts: Mapping[int, float]) -> Places:
    at, told = np.fromiter(counts, np.float64), np.array([*counts.values()])
    return lambda steps: np.interp(np.array(steps, np.float64), at, told)


def _shares(run: FinishedRun) -> Places:
    first, last = min(run.rows), max(run.rows)
    return lambda steps: (np.array(steps, np.float64) - first) / (last - first)
