"""How distributions moved: at some steps of a run the tail of |log-ratio| of both slices, and the rewards."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tracker_diag.records import SAMPLES, Histogram
from tracker_diag.stats.arrays import IntArray

STEPS = 48
"""That are kept, at most; of a longer run every 2nd, 4th, ... of its steps with tensors."""

WIDTH, HEIGHT = 600, 220
"""Of the drawing."""
LEAST, MOST = 1e-4, 30.0
"""|log-ratio| in nats at its left and at its right end."""
RAREST = 5e-4
"""Share of tokens at its lower end."""
TICKS = (0.001, 0.01, 0.1, 1.0, 10.0)

Snapshots: TypeAlias = Sequence[tuple[int, tuple[Histogram, ...]]]
"""Steps in rising order, and what was counted at each."""


class Distributions:
    """Histograms of a run, of `STEPS` of its steps and of the last one. Memory does not grow with the run."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, tuple[Histogram, ...]]] = []
        self._last: tuple[int, tuple[Histogram, ...]] | None = None
        self._every = 1
        self._seen = 0

    def add(self, step: int, histograms: Iterable[Histogram]) -> None:
        """Take in those of `step`; of several of one name and step the last counts."""
        given = tuple(histograms)
        if not given:
            return
        if self._last is None or step != self._last[0]:
            self._settle()
            self._seen += 1
        else:
            given = tuple(({one.name: one for one in self._last[1]} | {one.name: one for one in given}).values())
        self._last = step, given

    def _settle(self) -> None:
        """Keep the last one, if it is its turn."""
        if self._last is None or (self._seen - 1) % self._every:
            return
        if len(self._kept) == STEPS:
            self._kept, self._every = self._kept[::2], 2 * self._every
            if (self._seen - 1) % self._every:
                return
        self._kept.append(self._last)

    def snapshots(self) -> Snapshots:
        """What is kept, and the last one."""
        return tuple(self._kept) + ((self._last,) if self._last else ())

    def state_dict(self) -> dict[str, Any]:
        """In JSON values; `load_state_dict` goes on from it."""
        last = None if self._last is None else _state(self._last)
        return {"kept": [_state(one) for one in self._kept], "last": last, "every": self._every, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._kept = [_of_state(one) for one in state["kept"]]
        self._last = _of_state(state["last"]) if state["last"] else None
        self._every, self._seen = int(state["every"]), int(state["seen"])


def _state(one: tuple[int, tuple[Histogram, ...]]) -> list[Any]:
    step, histograms = one
    return [
        step,
        [[h.name, h.pair, h.slice, h.counts.tolist(), h.edges.tolist(), h.baseline.tolist()] for h in histograms],
    ]


def _of_state(state: Sequence[Any]) -> tuple[int, tuple[Histogram, ...]]:
    step, histograms = state
    return int(step), tuple(
        Histogram(name, pair, slice, np.array(counts, np.int64), np.array(edges, float), np.array(then, np.int64))
        for name, pair, slice, counts, edges, then in histograms
    )


@dataclass(frozen=True)
class Stepper:
    """The tails of one pair at each step, or the rewards, as paths of an SVG of `WIDTH` by `HEIGHT`."""

    pair: str
    steps: Sequence[int]
    now: Mapping[str, Sequence[str]]
    """By slice, a path for each of `steps`."""
    then: Mapping[str, str]
    """By slice, the path of the reference period, where there is one."""
    ticks: Sequence[tuple[float, str]]
    """Places on the axis in per cent, and the values there."""


def steppers(snapshots: Snapshots) -> list[Stepper]:
    """One for each pair, with the share of tokens beyond each |log-ratio|."""
    found: dict[str, Stepper] = {}
    for step, histograms in snapshots:
        for one in (h for h in histograms if h.pair != SAMPLES):
            at = found.setdefault(one.pair, Stepper(one.pair, [], {}, {}, ticks()))
            steps = [*at.steps, step] if step not in at.steps else at.steps
            paths = [*at.now.get(one.slice, ())]
            paths += [""] * (len(steps) - 1 - len(paths))  # steps at which the slice was not there
            now = {**at.now, one.slice: [*paths, path(one.counts, one.edges)]}
            then = {**at.then, one.slice: path(one.baseline, one.edges)} if one.baseline.any() else at.then
            found[one.pair] = replace(at, steps=steps, now=now, then=then)
    return [
        replace(one, now={name: [*paths, *[""] * (len(one.steps) - len(paths))] for name, paths in one.now.items()})
        for one in found.values()
    ]


def rewards(snapshots: Snapshots) -> Stepper | None:
    """How many sequences had which reward, each step as high as its most frequent one; None where no rewards came."""
    given = {step: one for step, histograms in snapshots for one in histograms if one.pair == SAMPLES}
    if not given:
        return None
    low = min(float(one.edges[0]) for one in given.values())
    span = max(float(one.edges[-1]) for one in given.values()) - low or 1.0
    shown = [(100 * part, f"{low + part * span:.3g}") for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    paths = [_columns(one, low, span) for one in given.values()]
    return Stepper(SAMPLES, [*given], {"reward": paths}, {}, shown)


def _columns(one: Histogram, low: float, span: float) -> str:
    most = max(int(one.counts.max()), 1)
    left, right = ((WIDTH * (ends - low) / span).tolist() for ends in (one.edges[:-1], one.edges[1:]))
    return "".join(
        f"M{start:.1f} {HEIGHT}V{HEIGHT * (1 - 0.95 * count / most):.1f}H{end:.1f}V{HEIGHT}"
        for count, start, end in zip(one.counts.tolist(), left, right, strict=True)
        if count
    )


def path(counts: IntArray, edges: Sequence[float] | Any) -> str:
    """The share of `counts` beyond the upper edge of each bin, as far as there is any; empty if nothing was counted."""
    total = int(counts.sum())
    if not total:
        return ""
    places: list[tuple[float, float]] = []
    beyond = total
    for count, edge in zip(counts.tolist(), edges[1:], strict=True):
        beyond -= count
        share = max(beyond / total, RAREST)
        places.append((_x(float(edge)), HEIGHT * math.log(share) / math.log(RAREST)))
        if share == RAREST:
            break
    return "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in places)


def _x(edge: float) -> float:
    return max(WIDTH * math.log(edge / LEAST) / math.log(MOST / LEAST), 0.0)


def ticks() -> list[tuple[float, str]]:
    """Place in per cent, and |log-ratio|."""
    return [(100 * _x(tick) / WIDTH, f"{tick:g}") for tick in TICKS]
