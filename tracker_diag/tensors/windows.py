"""Windows: the last K observed steps merged, and the frozen reference period, of each ratio pair."""

from collections import deque
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np

from tracker_diag.metrics.series import ALL, CELLS, CONTEXT, DIMENSIONS, PAIRS, UNKNOWN, Dimension, Pair
from tracker_diag.metrics.statistics import statistic
from tracker_diag.stats.arrays import IntArray
from tracker_diag.stats.attribution import Carrier, carriers
from tracker_diag.stats.cells import add_sparse, sparse
from tracker_diag.stats.histogram import BINS, Sketch
from tracker_diag.stats.tails import SliceWindow
from tracker_diag.stats.weights import FIELDS, WeightSums
from tracker_diag.tensors.fresh import Fresh, FreshCells
from tracker_diag.tensors.longer import LongerWindow
from tracker_diag.tensors.observation import GROUPS, ROWS, SEQUENCE_ROWS, Observation, rows_of
from tracker_diag.tensors.slices import Names
from tracker_diag.tensors.state import pack_cells, unpack_cells

MOST_UPDATES = 16
"""Steps in a row without signal that may be explained by several updates per batch."""

_APART: dict[str, tuple[Dimension, ...]] = {
    "text_only": ("context", "tool", "after_tool_k", "turn"),
    "post_tool": ("context",),
}
"""Dimensions that do not divide a slice."""


class PairWindow:
    """The rolling window and the baseline of one ratio pair. Memory is K steps, whatever the run's length."""

    def __init__(
        self, pair: Pair, steps: int, burn_in: int, baseline: int, clip: tuple[float, float] = (0.2, 0.2)
    ) -> None:
        self._kind: dict[str, Any] = {"from_numerator": pair == "reference", "clip": clip}
        """What the windows of all slices share."""
        self._recent: deque[Observation] = deque(maxlen=steps)
        self._burn_in, self._steps = burn_in, baseline
        self.with_signal = 0  # steps in which it was above float noise
        self._reference_steps, self._reference_tokens = 0, 0
        self._in_reference = False  # whether the last step belongs to the reference period
        self.signal = False
        """Whether any ratio in the window differs from 1 by more than float noise."""
        self._number = 0
        """Steps that have come into the window."""
        self._quiet, self._usual = 0, 1
        """Steps in a row without a signal, up to the last, and the most that a signal has ever ended."""
        self._left_out: Observation | None = None
        """The last step, if it is left out: what comes of it later may have a signal."""
        self._totals: dict[Dimension, IntArray] = {}
        """Of each dimension that `total` was asked for within as many steps as the window has; kept up to date."""
        self._asked: dict[Dimension, int] = {}
        """The number of the step at which it was last asked for."""
        self.baseline: dict[Dimension, IntArray] = {}
        """Merge of the reference period. It begins `burn_in` steps after the pair's first signal. It ends when it has
        `baseline` steps and the tokens for a p99."""
        self._of_sequences = np.zeros((len(SEQUENCE_ROWS), 2, BINS), np.int64)
        self._of_context = np.zeros((len(ROWS), 2, BINS), np.int64)
        """Of `context` over the window, the groups of sequences together. It is read at every step."""
        self._context: dict[str, SliceWindow] = {}
        """Of `context`, while no step comes."""
        self._then: list[IntArray] = []
        """Counts (4098,) of |r| in the reference period, of each slice of `context` and of `all`."""
        self._fresh = Fresh(GROUPS, statistic("p95_step").needs)
        self._fresh_cells: dict[Dimension, FreshCells] = {}
        self._longer = [LongerWindow(row) for row in range(len(CONTEXT))]

    def push(self, observed: Observation) -> bool:
        """Take in one step; the oldest leaves the window. Gives whether the step counts.

        The first of several updates of one batch has a ratio of 1 by construction. It is no signal, and says nothing of
        the tail. So a step without signal is left out. If more of them come in a row than before any signal so far,
        they count: this does not explain them, and a policy that has collapsed has no signal either.
        """
        for fresh in (self._fresh, *self._fresh_cells.values()):
            fresh.begin()
        return self._take(observed)

    def amend(self, part: Observation) -> bool:
        """Add to the last step what came of it later; gives whether the step counts."""
        if self._left_out is not None:
            self._quiet -= 1
            return self._take(self._left_out + part)
        if not self._recent:
            return self.push(part)
        if not self.signal and part.signal:
            return self._take(self._recent.pop() + part)
        if part.signal and not self._recent[-1].signal:
            self._signal_came()
        self._recent.append(self._recent.pop() + part)
        self._count(part)
        self._refer(part)
        return True

    def _take(self, step: Observation) -> bool:
        """Count the last step, or leave it out."""
        self._left_out = None
        self._in_reference = False
        if step.signal:
            self._signal_came()
        else:
            self._quiet += 1
            if self.signal and self._quiet <= self._usual:
                self._left_out = step
                return False
        oldest: Observation | None = None
        if step.signal and not self.signal:
            self._empty()
        elif len(self._recent) == self._recent.maxlen:
            oldest = self._recent[0]
            self._add_step(oldest, -1)
        self._number += 1
        for dimension in [it for it in self._totals if self._number - self._asked[it] > len(self._recent)]:
            del self._totals[dimension]  # to keep it up to date costs more than to make it anew
        self._recent.append(step)
        self.signal = any(step.signal for step in self._recent)
        self._count(step)
        if oldest is not None:
            for longer in self._longer:
                longer.push(self._number - len(self._recent), oldest, self._recent)
        if step.signal:
            done = self._reference_steps >= self._steps and self._reference_tokens >= statistic("p99").needs
            self._in_reference = self.with_signal > self._burn_in and not done
            self._reference_steps += self._in_reference
            self._refer(step)
        return True

    def _signal_came(self) -> None:
        self.with_signal += 1
        self._usual = max(self._usual, min(self._quiet, MOST_UPDATES))
        self._quiet = 0

    def _empty(self) -> None:
        """Let all steps leave the window."""
        self._recent.clear()
        self._totals, self._context, self.signal = {}, {}, False
        self._of_sequences[:], self._of_context[:] = 0, 0
        for fresh in (self._fresh, *self._fresh_cells.values()):
            fresh.clear()
        for longer in self._longer:
            longer.clear()

    def _count(self, step: Observation) -> None:
        """Add `step` to the sums over the window."""
        self._context = {}
        self._add_step(step)
        self._fresh.count(step.sketches["context"].cells, step.of_slices)
        for dimension in CELLS:
            if dimension in step.sketches:
                self._fresh_of(dimension).count(step.sketches[dimension].cells)

    def _fresh_of(self, dimension: Dimension) -> FreshCells:
        if dimension not in self._fresh_cells:
            self._fresh_cells[dimension] = FreshCells(statistic("excess_step").needs)
        return self._fresh_cells[dimension]

    def _add_step(self, step: Observation, sign: int = 1) -> None:
        """Add `step` to the sums, or take it out of them."""
        for dimension in self._totals:
            self._add_to(dimension, step, sign)
        add_sparse(self._of_sequences, step.sequence_sketch.cells, sign)
        (np.add if sign > 0 else np.subtract)(self._of_context, step.of_slices, out=self._of_context)

    def total(self, dimension: Dimension) -> IntArray:
        """(rows, 2, 4098) merge of the last K steps, until the next step comes."""
        self._asked[dimension] = self._number
        if dimension not in self._totals:
            self._totals[dimension] = np.zeros((rows_of(dimension), 2, BINS), np.int64)
            for step in self._recent:
                self._add_to(dimension, step)
        return self._totals[dimension]

    def _add_to(self, dimension: Dimension, step: Observation, sign: int = 1) -> None:
        if dimension in step.sketches:
            add_sparse(self._totals[dimension], step.sketches[dimension].cells, sign)

    @property
    def dimensions(self) -> set[Dimension]:
        """Those that any of the last K steps has."""
        return {dimension for step in self._recent for dimension in step.sketches}

    def _refer(self, step: Observation) -> None:
        """Add `step` to the reference period, if the last one belongs there."""
        if self._in_reference:
            _add(self.baseline, step.sketches)
            self._then = []
            self._reference_tokens += int(step.sketches["context"].cells[1].sum())

    def rebaseline(self) -> None:
        """Begin again with the next step that has a signal: window too, or old steps would be in the new baseline."""
        self._empty()
        self._left_out, self._in_reference, self._quiet = None, False, 0
        self.baseline, self._then, self._reference_steps, self._reference_tokens = {}, [], 0, 0
        self.with_signal = max(self.with_signal, self._burn_in)

    def fresh(self, names: Names) -> dict[str, SliceWindow]:
        """The tokens since this was last called, of those slices of `context` and those cells that have enough."""
        windows = self._fresh.take_ready()
        for dimension, fresh in self._fresh_cells.items():
            cells = fresh.take_ready()
            windows |= {name: cells[row] for name, row in names.slices(dimension).items() if row in cells}
        return windows

    def slices(self, names: Names, only: Collection[str] | None = None) -> dict[str, SliceWindow]:
        """The window of each slice that has tokens, of those in `only` if given, and of all of `context`."""
        windows = dict(self.context)
        if (unknown := self.unknown) is not None and (only is None or UNKNOWN in only):
            windows[UNKNOWN] = unknown
        known = self.dimensions
        for dimension in DIMENSIONS[1:]:
            rows = names.slices(dimension) if dimension in known else {}
            for name in (name for name in rows if only is None or name in only):
                counts, reference = self.total(dimension)[rows[name]], self.baseline.get(dimension)
                if counts.any():
                    then = None if reference is None else reference[rows[name]]
                    windows[name] = SliceWindow(counts[None], reference=then, **self._kind)
        return windows

    def carriers(self, slice: str, names: Names) -> tuple[Carrier, ...]:
        """Which cells carry what of `slice` has grown beyond its baseline's p99, one of a dimension, three at most.

        A dimension of which `slice` has no part is left out: no token of text_only is any tool's.
        """
        if slice not in self.context or not (then := self.context[slice].then).any():
            return ()
        beyond = int(np.searchsorted(np.cumsum(then), 0.99 * then.sum())) + 1
        cells: dict[Dimension, dict[str, tuple[IntArray, IntArray]]] = {}
        known = self.dimensions & self.baseline.keys() - {*_APART.get(slice, ("context",))}
        for dimension in sorted(known):
            now, before = (counts.sum(axis=1) for counts in (self.total(dimension), self.baseline[dimension]))
            rows = names.slices(dimension)
            if slice == "post_tool":
                rows.pop("turn:0", None)  # all of which comes before any tool
            cells[dimension] = {name: (now[row], before[row]) for name, row in rows.items() if now[row].any()}
        among = sum(map(len, cells.values()))
        largest = [carrier for cell in cells.values() for carrier in carriers(cell, beyond, among)[:1]]
        return tuple(sorted(largest, key=lambda carrier: carrier.tokens - carrier.growth)[:3])

    @property
    def unknown(self) -> SliceWindow | None:
        """The window of the tokens whose context is unknown; None where there are none."""
        if not self._of_context[-1].any():
            return None
        counts = self.total("context")[-GROUPS:]
        then = self.baseline["context"][-GROUPS:].sum(axis=0) if self.baseline else None
        return SliceWindow(counts, reference=then, **self._kind)

    @property
    def context(self) -> dict[str, SliceWindow]:
        """The window of each slice of `context` and of `all`; none before the first step."""
        if self._context or not self._recent:
            return self._context
        parts = np.array([step.sums[:2] for step in self._recent]).swapaxes(1, 2)  # tokens and sequences at once
        merged = WeightSums.merged(parts.reshape(len(parts), len(FIELDS), -1))
        before, after, unknown, *sequences = (merged[i] for i in range(len(ROWS) + len(SEQUENCE_ROWS)))
        reached, lengths = (np.add.reduce([step.sums[i] for step in self._recent]) for i in (2, 3))
        of_optimiser = [*reached[: len(CONTEXT)], reached.sum(axis=0)]
        of_slice = [before, after, before + after + unknown]
        groups = [partial(self._groups, row) for row in (*range(len(CONTEXT)), None)]
        counts = [*self._of_context[: len(CONTEXT)].copy(), self._of_context.sum(axis=0)]
        if self.baseline and not self._then:
            then = self.baseline["context"].reshape(len(ROWS), -1, BINS).sum(axis=1)
            self._then = [*then[: len(CONTEXT)], then.sum(axis=0)]
        for i, name in enumerate((*CONTEXT, ALL)):
            self._context[name] = SliceWindow(
                groups[i], of_slice[i], sequences[i], self._of_sequences[i], lengths[:, i],
                applied=of_optimiser[i][:5], gradient=of_optimiser[i][5:], whole_gradient=of_optimiser[-1][5:],
                reference=self._then[i] if self._then else None, summed=counts[i], **self._kind,
            )  # fmt: skip
        for name, longer in zip(CONTEXT, self._longer, strict=True):
            self._context[name] = longer.extended(self._context[name], self._number, self._recent)
        return self._context

    def _groups(self, row: int | None = None) -> IntArray:
        """The groups of sequences of a row of `context`, (8, 2, 4098), or of all rows, (8, rows, 2, 4098)."""
        by_row = self.total("context").reshape(len(ROWS), GROUPS, 2, BINS)
        return by_row.swapaxes(0, 1) if row is None else by_row[row]

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, in JSON values."""
        return {
            "recent": [step.state_dict() for step in self._recent],
            "left_out": None if self._left_out is None else self._left_out.state_dict(),
            "quiet": [self._quiet, self._usual],
            "number": self._number,
            "baseline": {dimension: pack_cells(sparse(counts)) for dimension, counts in self.baseline.items()},
            "with_signal": self.with_signal,
            "reference_steps": self._reference_steps,
            "in_reference": self._in_reference,
            "fresh": self._fresh.state_dict(),
            "longer": [longer.state_dict() for longer in self._longer],
            "fresh_cells": {dimension: fresh.state_dict() for dimension, fresh in self._fresh_cells.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state` was taken; of a window that was longer then, the last steps."""
        steps = [Observation.of_state(step) for step in state["recent"]]
        self._empty()
        self.baseline, self._then, self._fresh_cells = {}, [], {}
        self._recent.extend(steps)
        for step in steps:
            self._count(step)
        self.signal = any(step.signal for step in self._recent)
        self._left_out = Observation.of_state(state["left_out"]) if state["left_out"] else None
        (self._quiet, self._usual), self._number = state["quiet"], state["number"]
        for dimension in DIMENSIONS:
            if dimension in state["baseline"]:
                self.baseline[dimension] = np.zeros((rows_of(dimension), 2, BINS), np.int64)
                add_sparse(self.baseline[dimension], unpack_cells(state["baseline"][dimension], rows_of(dimension)))
        self._reference_tokens = int(self.baseline["context"].sum()) if self.baseline else 0
        self.with_signal, self._reference_steps = state["with_signal"], state["reference_steps"]
        self._in_reference = state["in_reference"]
        self._fresh.load_state_dict(state["fresh"])
        for longer, saved in zip(self._longer, state["longer"], strict=True):
            longer.load_state_dict(saved)
        for dimension in CELLS:
            if dimension in state["fresh_cells"]:
                self._fresh_of(dimension).load_state_dict(state["fresh_cells"][dimension])


class PairWindows(dict[Pair, PairWindow]):
    """The window of each pair, begun with the pair's first tensors.

    Args:
        steps: of a window.
        clip: how far below and above 1 the trainer clips the ratio.
        burn_in, baseline: steps before the reference period, and of it.

    Raises:
        ValueError: `steps` or `clip` make no sense.
    """

    def __init__(self, steps: int, clip: tuple[float, float], burn_in: int, baseline: int) -> None:
        if steps < 1:
            raise ValueError(f"window: {steps} given, expected at least 1 step")
        if not (0 < clip[0] < 1 and clip[1] > 0):
            raise ValueError(f"clip: {clip} given, expected a share below 1 and one above 0")
        super().__init__()
        self._steps, self.clip, self.burn_in, self.baseline = steps, clip, burn_in, baseline

    def push(self, observed: Mapping[Pair, Observation], begun: Collection[Pair]) -> list[Pair]:
        """Take in what was observed; as a part of their last step for the pairs in `begun`, else as a new step.

        Gives the pairs whose step counts: those of which there is something new to say.
        """
        counted: list[Pair] = []
        for pair, observation in observed.items():
            window = self[pair] if pair in self else self._begun(pair)
            if (window.amend if pair in begun else window.push)(observation):
                counted.append(pair)
        return counted

    def rebaseline(self) -> None:
        """Begin all of them again with the next step that has a signal."""
        for window in self.values():
            window.rebaseline()

    @property
    def settled(self) -> bool:
        """Whether every pair has a signal, so that none waits for the ratio to leave 1."""
        return all(window.signal for window in self.values())

    def state_dict(self) -> dict[str, Any]:
        return {pair: window.state_dict() for pair, window in self.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        for pair in PAIRS:
            if pair in state:
                self._begun(pair).load_state_dict(state[pair])

    def _begun(self, pair: Pair) -> PairWindow:
        window = self[pair] = PairWindow(pair, self._steps, self.burn_in, self.baseline, self.clip)
        return window


def _add(into: dict[Dimension, IntArray], sketches: Mapping[Dimension, Sketch]) -> None:
    for dimension, counted in sketches.items():
        if dimension not in into:
            into[dimension] = np.zeros((rows_of(dimension), 2, BINS), np.int64)
        add_sparse(into[dimension], counted.cells)
