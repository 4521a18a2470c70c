"""Curves in blocks of eight heights, for a terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

BARS = "▁▂▃▄▅▆▇█"
CELLS = 32
"""Columns of a curve."""
MOST = 1e100
"""What is beyond is drawn as that, so that no sum overflows."""

Heights: TypeAlias = Mapping[int, float]
"""From 0 to 1, by column; each that of the mean of its part of the axis."""


def heights(
    curves: Sequence[Iterable[tuple[float, float]]], low: float, high: float, parts: int, *, log: bool = False
) -> list[Heights]:
    """`curves`, places and values, between the places `low` and `high`, on one scale; empty where no value is finite.

    A logarithmic scale is linear where a value is not above 0. Equal values have the height 0.
    """
    inside = [
        [(at, min(max(value, -MOST), MOST)) for at, value in curve if math.isfinite(value) and low <= at <= high]
        for curve in curves
    ]
    values = [value for curve in inside for _, value in curve]
    if not values:
        return []
    means = [_means(curve, low, high, parts, log=log and min(values) > 0) for curve in inside]
    levels = [level for curve in means for level in curve.values()]
    least, most = min(levels), max(levels)
    # Means of equal values differ by rounding, which is no height.
    span = math.inf if math.isclose(least, most, rel_tol=1e-12) else most - least
    return [{at: (y - least) / span for at, y in curve.items()} for curve in means]


def bars(curve: Heights, parts: int = CELLS) -> str:
    """One curve; a column without a value repeats the one before."""
    drawn, bar = "", " "
    for at in range(parts if curve else 0):
        bar = BARS[round(curve[at] * (len(BARS) - 1))] if at in curve else bar
        drawn += bar
    return drawn


def _means(
    points: Sequence[tuple[float, float]], low: float, high: float, parts: int, *, log: bool
) -> dict[int, float]:
    values_of: dict[int, list[float]] = {}
    for at, value in points:
        part = min(int((at - low) / (high - low or 1.0) * parts), parts - 1)
        values_of.setdefault(part, []).append(math.log(value) if log else value)
    return {part: sum(value / len(values) for value in values) for part, values in sorted(values_of.items())}
