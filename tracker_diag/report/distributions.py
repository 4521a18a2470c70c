"""How distributions moved, as paths: the tail of |log-ratio| of both slices, and the rewards."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracker_diag.records import SAMPLES, Histogram
from tracker_diag.stats.arrays import IntArray

WIDTH, HEIGHT = 600, 220
"""Of the drawing."""
LEAST, MOST = 1e-4, 30.0
"""|log-ratio| in nats at its left and at its right end."""
RAREST = 5e-4
"""Share of tokens at its lower end."""


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


def steppers(snapshots: Sequence[tuple[int, tuple[Histogram, ...]]]) -> list[Stepper]:
    """One for each pair of what was counted at rising steps, with the share of tokens beyond each |log-ratio|."""
    by_pair: dict[str, dict[int, dict[str, Histogram]]] = {}
    for step, histograms in snapshots:
        for it in histograms:
            if it.pair != SAMPLES:
                by_pair.setdefault(it.pair, {}).setdefault(step, {})[it.slice] = it
    ticks = [(100 * _x(tick) / WIDTH, f"{tick:g}") for tick in (0.001, 0.01, 0.1, 1.0, 10.0)]
    shown = []
    for pair, met in by_pair.items():
        now = {
            name: [path(slices[name].counts, slices[name].edges) if name in slices else "" for slices in met.values()]
            for name in dict.fromkeys(name for slices in met.values() for name in slices)
        }
        then = {name: path(it.baseline, it.edges) for s in met.values() for name, it in s.items() if it.baseline.any()}
        shown.append(Stepper(pair, [*met], now, then, ticks))
    return shown


def rewards(snapshots: Sequence[tuple[int, tuple[Histogram, ...]]]) -> Stepper | None:
    """How many sequences had which reward, each step as high as its most frequent one; None where no rewards came."""
    given = {step: it for step, histograms in snapshots for it in histograms if it.pair == SAMPLES}
    if not given:
        return None
    low = min(float(it.edges[0]) for it in given.values())
    span = max(float(it.edges[-1]) for it in given.values()) - low or 1.0
    shown = [(100 * part, f"{low + part * span:.3g}") for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    paths = [_columns(it, low, span) for it in given.values()]
    return Stepper(SAMPLES, [*given], {"reward": paths}, {}, shown)


def _columns(histogram: Histogram, low: float, span: float) -> str:
    most = max(int(histogram.counts.max()), 1)
    left, right = ((WIDTH * (ends - low) / span).tolist() for ends in (histogram.edges[:-1], histogram.edges[1:]))
    return "".join(
        f"M{start:.1f} {HEIGHT}V{HEIGHT * (1 - 0.95 * count / most):.1f}H{end:.1f}V{HEIGHT}"
        for count, start, end in zip(histogram.counts.tolist(), left, right, strict=True)
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
