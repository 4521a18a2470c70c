"""The window of a slice with few tokens a step: it reaches further back than that of its pair."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracker_diag.metrics.statistics import statistic
from tracker_diag.stats.histogram import BINS
from tracker_diag.stats.tails import SliceWindow
from tracker_diag.stats.weights import WeightSums
from tracker_diag.tensors.counted import CountedStep
from tracker_diag.tensors.observation import GROUPS

TOKENS = statistic("p95").needs
"""Tokens for which a window reaches further back."""
STEPS = 64
"""Steps, at most, that it reaches back."""


class LongerWindow:
    """The last steps of one slice of `context`, `row` of its rows: no more of them than hold `TOKENS`."""

    def __init__(self, row: int) -> None:
        self._row = row
        self._steps: deque[tuple[int, int, CountedStep]] = deque()
        """Of each the number of the step, its tokens in the slice, and the slice alone."""

    def push(self, number: int, step: CountedStep) -> None:
        """Take in `step`; a step of the same number again replaces what came of it before."""
        if self._steps and self._steps[-1][0] == number:
            self._steps.pop()
        while self._steps and self._steps[0][0] <= number - STEPS:
            self._steps.popleft()
        if tokens := int(step.floats[0][0, self._row]):
            self._steps.append((number, tokens, step.of_slice(self._row)))
        while self.tokens - (self._steps[0][1] if self._steps else TOKENS) >= TOKENS:
            self._steps.popleft()

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens, _ in self._steps)

    def extended(self, window: SliceWindow, number: int) -> SliceWindow:
        """`window` of the pair's last steps, with the tokens of the longer one where that holds more.

        What reached the optimiser stays that of the pair's steps: it is a share of all slices there.
        """
        if window.n >= TOKENS or not window.n or self.tokens <= window.n:
            return window
        steps = [step for _, _, step in self._steps]
        groups, sequences = np.zeros((GROUPS, 2, BINS), np.int64), np.zeros((2, BINS), np.int64)
        of_context, of_sums = [one.cells["context"] for one in steps], [one.of_sequences for one in steps]
        for into, cells in ((groups, of_context), (sequences, of_sums)):
            index, count = (np.concatenate(part) for part in zip(*cells, strict=True))
            np.add.at(into.reshape(-1), index, count)
        of_tokens, of_sequences = (
            WeightSums.merged(np.stack([one.floats[i][:, self._row] for one in steps])) for i in (0, 1)
        )
        lengths = np.add.reduce([one.floats[3][:, self._row] for one in steps])
        return replace(
            window,
            groups=groups,
            tokens=of_tokens,
            sequences=of_sequences,
            sequence_counts=sequences,
            lengths=lengths,
            summed=None,
            steps=number - self._steps[0][0] + 1,
        )

    def clear(self) -> None:
        self._steps.clear()

    def state_dict(self) -> list[list[Any]]:
        return [[number, tokens, step.state_dict()] for number, tokens, step in self._steps]

    def load_state_dict(self, state: Sequence[tuple[int, int, Mapping[str, Any]]]) -> None:
        self._steps = deque((number, tokens, CountedStep.of_state(step)) for number, tokens, step in state)
