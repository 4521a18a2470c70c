"""Align: one axis for several runs that are compared; steps, if a step means the same in each run."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracker_diag.detect.parting import FEWEST
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.trackers.finished import FinishedRun

OVERLAP = 0.5
"""The axis covers at least this part of the shorter run; otherwise the units are not the same."""


@dataclass(frozen=True)
class Axis:
    """The axis, from the step by which all runs have begun to the end of the shortest."""

    unit: Literal["step", "share of the run"]
    low: float
    high: float
    why: str = ""
    """Why its unit is not steps; empty if it is."""

    def places(self, run: FinishedRun, steps: Collection[int]) -> Float64Array:
        """(N,) where N `steps` of `run` are on the axis."""
        at = np.fromiter(steps, np.float64, len(steps))
        if self.unit == "step":
            return at
        first, last = next(iter(run.rows)), next(reversed(run.rows))
        places: Float64Array = (at - first) / (last - first)
        return places


def aligned(runs: Sequence[FinishedRun]) -> Axis:
    """The axis of `runs`: steps if their ranges overlap, otherwise shares.

    A run with fewer than `FEWEST` rows is too short to judge; its steps count as the same.
    """
    steps_of_runs = [np.fromiter(run.rows, np.float64) for run in runs]
    steps = _common_range(steps_of_runs)
    if steps is None and min(map(len, steps_of_runs)) < FEWEST:
        steps = _overlap(steps_of_runs)
    if steps is not None:
        return Axis("step", *steps)
    ends = ", ".join(f"{min(run.rows):,} to {max(run.rows):,}" for run in runs)
    return Axis("share of the run", 0.0, 1.0, f"their steps are not of one unit ({ends})")


def _overlap(runs: Sequence[Float64Array]) -> tuple[float, float]:
    return max(float(values.min()) for values in runs), min(float(values.max()) for values in runs)


def _common_range(runs: Sequence[Float64Array]) -> tuple[float, float] | None:
    """The range that all runs share; None if it covers too little of a run for their units to be the same."""
    low, high = _overlap(runs)
    shortest = min(float(values.max() - values.min()) for values in runs)
    rows = min(int(((values >= low) & (values <= high)).sum()) for values in runs)
    return (low, high) if rows >= FEWEST and high - low >= OVERLAP * shortest else None
