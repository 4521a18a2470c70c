"""Curves over one axis and one scale of values: in blocks for a terminal, and as paths of an SVG."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

BARS = "▁▂▃▄▅▆▇█"
PEAK = 50
"""Medians of a curve from which on its peak would flatten all else."""
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
    parts: int
    """Of the axis."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The curves as paths of an SVG of 1,000 by 100."""
        return tuple(_path(one, self.parts) for one in self.heights)


def overlay(
    curves: Sequence[Mapping[int, float]] | Sequence[Mapping[float, float]],
    low: float,
    high: float,
    parts: int = POINTS,
) -> Overlay | None:
    """`curves`, values by place, between the places `low` and `high`; None where none has a finite value there.

    Of each part of the axis it is the mean; where one peak would hide all else, that of the logarithms.
    """
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
    heights = tuple({at: (y - least) / span for at, y in one.items()} for one in found)
    return Overlay(shown[0], shown[1], log, heights, parts)


def is_log(values: Sequence[float]) -> bool:
    """Whether a curve is better drawn by its logarithm: it is positive, and its peak far beyond what is usual."""
    return bool(values) and min(values) > 0 and max(values) > PEAK * median(values)


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


def _path(heights: Mapping[int, float], parts: int) -> str:
    points = [
        f"{'L' if i else 'M'}{1000 * at / max(parts - 1, 1):.1f} {96 - 92 * y:.1f}"
        for i, (at, y) in enumerate(heights.items())
    ]
    return " ".join(points) if len(points) > 1 else f"{points[0]} h1" if points else ""
