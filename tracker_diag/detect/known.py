"""Growth beyond what earlier runs kept to: a series is judged from its first step on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracker_diag.detect.cusum import BlockCusum

SEEDS = 0.15
"""Standard deviation of a level's logarithm between runs that differ in their seed alone, before any is known.

Between five seeds of the demo's healthy arm it is 0.12, for `policy` on either slice.
"""
WORTH = 3
"""Runs that this counts as; those that are given count as one each."""
SURE = 2.33
"""Standard deviations that a further run exceeds in one of a hundred cases, if levels are normal."""


@dataclass
class KnownCusum(BlockCusum):
    """The CUSUM of `BlockCusum` against the level of earlier runs, on the log scale.

    The level of a run is the highest that it kept to for as long as a baseline takes. What a good run had is normal. So
    a run that starts high and learns, as they did, does not alarm at its start. A further run is expected within `SURE`
    standard deviations of the mean of their levels. They include the spread between runs, at least `SEEDS`, and the
    error of the mean. With one run that is ×1.64, with many alike ×1.22. Growth counts only beyond it.

    This baseline is not learnt from the run itself: it follows nothing, and a new one is for `BlockCusum`.
    """

    def know(self, runs: Sequence[Sequence[float]]) -> None:
        """Take the level of `runs`: the values of each, step by step, in the series' own unit.

        Fewer than two blocks show no noise: such a run is left out, and without any run there is no baseline.
        """
        self.size = size = self.settings.baseline
        block = self.block
        levels, noises = list[float](), list[float]()
        for run in (run for run in runs if len(run) >= 2 * block):
            values = np.array([self._scaled(x) for x in run[: len(run) // block * block]])
            means = values.reshape(-1, block).mean(axis=1)
            several = min(size // block, len(means))
            courses = np.lib.stride_tricks.sliding_window_view(means, several).mean(axis=1)
            best = int(courses.argmax())
            levels.append(float(courses[best]))
            chosen = slice(best * block, (best + several) * block)
            noises.append(self._noise_of(values[chosen]))
        if not levels:
            return
        mean, n = float(np.mean(levels)), len(levels)
        squares = sum((level - mean) ** 2 for level in levels)
        between = math.sqrt((WORTH * SEEDS**2 + squares) / (WORTH + n - 1))
        self.seen = self.settings.burn_in
        self._take(mean, math.sqrt(float(np.mean(np.square(noises)))))
        self._reference = max(self._reference, SURE * between * math.sqrt(1 + 1 / n))

    def _follow(self, values: Sequence[float]) -> None:
        """Keep the level: a better one is learnt by the detector of the run itself."""
