"""Align: one axis for several runs that are compared; steps, if a step means the same in each run."""

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
"""Last parts of the keys under which trainers log the number of tokens so far."""
OVERLAP = 0.5
"""The axis covers at least this part of the shorter run; otherwise the units are not the same."""

Places: TypeAlias = Callable[[Sequence[int]], Float64Array]
"""From a run's own steps to places on the axis."""


@dataclass(frozen=True)
class Axis:
    """The axis, from the step by which all runs have begun to the end of the shortest."""

    unit: Unit
    low: float
    high: float
    places: tuple[Places, ...]
    """One function for each run, in the order of the runs."""
    why: str = ""
    """Why its unit is not steps; empty if it is."""


def aligned(runs: Sequence[FinishedRun]) -> Axis:
    """The axis of `runs`: steps if their ranges overlap, otherwise tokens if all count them, otherwise shares.

    A run with fewer than `FEWEST` rows is too short to judge; its steps count as the same.
    """
    steps_of_runs = [np.fromiter(run.rows, np.float64) for run in runs]
    steps = _common_range(steps_of_runs)
    if steps is None and min(map(len, steps_of_runs)) < FEWEST:
        steps = _overlap(steps_of_runs)
    if steps is not None:
        return Axis("step", *steps, tuple(_as_steps for _ in runs))
    ends = ", ".join(f"{min(run.rows):,} to {max(run.rows):,}" for run in runs)
    why = f"their steps are not of one unit ({ends})"
    counts = [count for run in runs if (count := _token_counts(run.rows)) is not None]
    tokens = _common_range([np.array([*count.values()]) for count in counts]) if len(counts) == len(runs) else None
    if tokens is not None:
        return Axis("tokens", *tokens, tuple(_interpolated(count) for count in counts), why)
    return Axis("share of the run", 0.0, 1.0, tuple(_shares(run) for run in runs), f"{why}, and not all count tokens")


def _overlap(runs: Sequence[Float64Array]) -> tuple[float, float]:
    return max(float(values.min()) for values in runs), min(float(values.max()) for values in runs)


def _common_range(runs: Sequence[Float64Array]) -> tuple[float, float] | None:
    """The range that all runs share; None if it covers too little of a run for their units to be the same."""
    low, high = _overlap(runs)
    shortest = min(float(values.max() - values.min()) for values in runs)
    rows = min(int(((values >= low) & (values <= high)).sum()) for values in runs)
    return (low, high) if rows >= FEWEST and high - low >= OVERLAP * shortest else None


def _token_counts(rows: Mapping[int, Mapping[str, float]]) -> dict[int, float] | None:
    """Tokens so far by step, from the first key that counts them and never falls; None if there is no such key."""
    keys = dict.fromkeys(key for row in rows.values() for key in row if key.rsplit("/", 1)[-1] in TOKENS)
    for key in keys:
        counts = {step: row[key] for step, row in rows.items() if key in row and np.isfinite(row[key])}
        if len(counts) >= FEWEST and all(later >= earlier for earlier, later in pairwise(counts.values())):
            return counts
    return None


def _as_steps(steps: Sequence[int]) -> Float64Array:
    return np.array(steps, np.float64)


def _interpolated(counts: Mapping[int, float]) -> Places:
    known_steps, tokens = np.fromiter(counts, np.float64), np.array([*counts.values()])
    return lambda steps: np.interp(np.array(steps, np.float64), known_steps, tokens)


def _shares(run: FinishedRun) -> Places:
    first, last = min(run.rows), max(run.rows)
    return lambda steps: (np.array(steps, np.float64) - first) / (last - first)
