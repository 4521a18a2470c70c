"""Curves of several runs over one axis and one scale of values: for a terminal, and as paths of an SVG."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracker_diag.report.timeline import BARS, is_log

CELLS = 32
"""Columns of a curve in a terminal."""
POINTS = 150
"""Of a path, at most: each the mean of its part of the axis."""
MOST = 1e100
"""What lies beyond is drawn as that, so that no sum overflows."""


@dataclass(frozen=True)
class Overlay:
    """Curves on one scale, each as heights from 0 to 1 by part of the axis."""

    low: float
    high: float
    log: bool
    """Whether heights are those of logarithms."""
    heights: tuple[Mapping[int, float], ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The curves as paths of an SVG of 1,000 by 100."""
        return tuple(_path(one) for one in self.heights)


def overlay(curves: Sequence[Mapping[float, float]], low: float, high: float, parts: int = POINTS) -> Overlay | None:
    """`curves`, values by place, between the places `low` and `high`; None where none has a finite value there."""
    inside = [
        {at: min(max(value, -MOST), MOST) for at, value in one.items() if math.isfinite(value) and low <= at <= high}
        for one in curves
    ]
    values = [value for one in inside for value in one.values()]
    if not values:
        return None
    log = is_log(values)
    found = [_means(one, low, high, parts, log=log) for one in inside]
    levels = [level for one in found for level in one.values()]
    least, most = min(levels), max(levels)
    span = most - least or 1.0
    shown = [math.exp(end) if log else end for end in (least, most)]
    return Overlay(shown[0], shown[1], log, tuple({at: (y - least) / span for at, y in one.items()} for one in found))


def bars(heights: Mapping[int, float], parts: int = CELLS) -> str:
    """One curve in blocks of eight heights; a column without a value repeats the one before."""
    drawn, bar = "", " "
    for at in range(parts if heights else 0):
        bar = BARS[round(heights[at] * (len(BARS) - 1))] if at in heights else bar
        drawn += bar
    return drawn


def _means(points: Mapping[float, float], low: float, high: float, parts: int, *, log: bool) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for at, value in points.items():
        part = min(int((at - low) / (high - low or 1.0) * parts), parts - 1)
        found.setdefault(part, []).append(math.log(value) if log else value)
    return {part: sum(value / len(values) for value in values) for part, values in sorted(found.items())}


def _path(heights: Mapping[int, float]) -> str:
    points = [
        f"{'L' if i else 'M'}{1000 * (at + 0.5) / POINTS:.1f} {96 - 92 * y:.1f}"
        for i, (at, y) in enumerate(heights.items())
    ]
    return " ".join(points) if len(points) > 1 else f"{points[0]} h1" if points else ""
