"""The window of a slice with few tokens a step: it reaches further back than that of its pair."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracker_diag.metrics.statistics import statistic
from tracker_diag.stats.cells import add_sparse
from tracker_diag.stats.histogram import BINS
from tracker_diag.stats.tails import SliceWindow
from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors.observation import GROUPS, Observation

TOKENS = statistic("p95").needs
"""Tokens for which a window reaches further back."""
STEPS = 64
"""Steps, at most, that it reaches back."""


class LongerWindow:
    """Of one slice of `context`, `row` of its rows, the steps that have left the window of the pair.

    They are kept as long as that window has fewer than `TOKENS`, and no more of them than it takes.
    """

    def __init__(self, row: int) -> None:
        self._row = row
        self._left: deque[tuple[int, Observation]] = deque()
        """Of each the number of the step, and the slice alone."""

    def push(self, number: int, step: Observation, recent: Iterable[Observation]) -> None:
        """Take in the step that has left, before the `recent` ones."""
        if self._tokens(recent) >= TOKENS:
            self._left.clear()
        elif self._tokens([step]):
            self._left.append((number, step.slice_alone(self._row)))
            # The recent steps may have no tokens at all, so enough is kept without them.
            kept = self._tokens(step for _, step in self._left)
            while (kept := kept - self._tokens([self._left[0][1]])) >= TOKENS:
                self._left.popleft()

    def _tokens(self, steps: Iterable[Observation]) -> int:
        return sum(int(step.sums[0][0, self._row]) for step in steps)

    def extended(self, window: SliceWindow, number: int, recent: Sequence[Observation]) -> SliceWindow:
        """`window` of the `recent` steps, the last of them `number`, with as many from before as it lacks.

        What reached the optimiser stays that of the pair's steps: it is a share of all slices there.
        """
        tokens, first = window.n, number + 1
        before: list[Observation] = []
        for at, step in reversed(self._left):
            if not 0 < tokens < TOKENS or at <= number - STEPS:
                break
            tokens, first = tokens + self._tokens([step]), at
            before.insert(0, step)
        if not before:
            return window
        steps = [*before, *(step.slice_alone(self._row) for step in recent)]
        groups, sequences = np.zeros((GROUPS, 2, BINS), np.int64), np.zeros((2, BINS), np.int64)
        for step in steps:
            add_sparse(groups, step.sketches["context"].cells)
            add_sparse(sequences, step.sequence_sketch.cells)
        token_sums, sequence_sums = (
            WeightSums.merged(np.stack([step.sums[i][:, self._row] for step in steps])) for i in (0, 1)
        )
        lengths = np.add.reduce([step.sums[3][:, self._row] for step in steps])
        return replace(
            window, groups=groups, tokens=token_sums, sequences=sequence_sums, sequence_counts=sequences,
            lengths=lengths, summed=None, steps=number - first + 1,
        )  # fmt: skip

    def clear(self) -> None:
        self._left.clear()

    def state_dict(self) -> list[list[Any]]:
        return [[number, step.state_dict()] for number, step in self._left]

    def load_state_dict(self, state: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        self._left = deque((number, Observation.of_state(step)) for number, step in state)
