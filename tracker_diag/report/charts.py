"""Charts: curves as paths over one axis of steps, with scale, ticks, the usual band and marks."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import numpy as np

from tracker_diag.report.console import digits
from tracker_diag.rules.model import Severity

POINTS = 400
"""Of a curve, at most; of a longer one each is the mean of several rows."""
MOST = 1e100
"""What is beyond is drawn as that, so that no sum overflows."""
POSITIVE = 0.9
"""Share of a curve's values that must be above 0 for a logarithmic scale."""
SPAN = 1e-15
"""The lowest value of a logarithmic scale, as part of its highest; what is below is drawn at the edge."""
MOST_POWERS = 5
"""Powers of ten on a logarithmic axis."""
FEWEST = 5
"""Values that a usual band needs."""
DRIFT = 0.5
"""Part of a usual band by which the curve may have moved meanwhile; beyond, it was on its way and no level usual."""
LETTER = 2.4
"""Per cent of the axis that a letter of a mark's label takes, on a phone."""
NEAR = 7.0
"""Per cent of an axis next to its ends in which it has no tick."""


@dataclass(frozen=True)
class Line:
    """One curve as the path of an SVG of 1,000 by 100."""

    name: str
    color: str
    """The class that a page colours it by: a slice, a run, or empty."""
    steps: Sequence[float]
    values: Sequence[float]
    path: str


@dataclass(frozen=True)
class Band:
    """Where a curve usually was; places in per cent of the height."""

    low: float
    high: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Curves over one scale of values."""

    title: str
    about: str
    lines: Sequence[Line]
    ticks: Sequence[tuple[float, str]]
    """Place in per cent of the height, and value."""
    usual: Band | None = None

    @property
    def in_words(self) -> str:
        """For a screen reader: where each curve begins, its extremes and where it ends."""
        texts = []
        for line in self.lines:
            begin, low, high, end = map(digits, (line.values[0], min(line.values), max(line.values), line.values[-1]))
            texts.append(f"{line.name} from {begin}, between {low} and {high}, to {end}")
        return "; ".join(texts).strip()

    @property
    def data(self) -> list[dict[str, object]]:
        """The values that the cursor shows, with five digits."""
        return [
            {"name": line.name, "steps": line.steps, "values": [float(f"{value:.5g}") for value in line.values]}
            for line in self.lines
        ]


@dataclass(frozen=True)
class Mark:
    """A step with a line through all charts."""

    at: float
    """Per cent of the axis."""
    label: str
    tone: Severity | str
    row: int
    """Line of its label, so that labels do not overlap."""
    left: bool
    """Whether its label is to the left of its line."""


def chart(
    title: str,
    about: str,
    curves: Sequence[tuple[str, str, Mapping[int, float] | Mapping[float, float]]],
    ends: tuple[float, float],
    *,
    log: bool,
    before: float | None = None,
) -> Chart | None:
    """A chart of `curves`, each its name, colour and values by step; None where none has a finite value in `ends`.

    Args:
        log: whether the scale is logarithmic; it is linear where a tenth of the values is not above 0.
        before: the step before which the first curve was as usual; None for no band.
    """
    thin = [(name, color, *_thinned(points, ends)) for name, color, points in curves]
    everything = [value for *_, values in thin for value in values]
    if not everything:
        return None
    scale = _Scale.of_values(everything, log=log)
    lines = [
        Line(name, color, steps, values, _path(steps, [scale.height(value) for value in values], ends))
        for name, color, steps, values in thin
        if values
    ]
    usual = None if before is None else _usual(lines[0], before, scale)
    return Chart(title, f"{about}{', log scale' * scale.log}".removeprefix(", "), lines, scale.ticks(), usual)


def drawn_marks(given: Sequence[tuple[float, str, str]], ends: tuple[float, float]) -> list[Mark]:
    """Marks from their step, label and tone, each label in the first line in which it has room.

    The first label is to the left of its line, where the run is calm. So is one at the right end.
    """
    drawn: list[Mark] = []
    free: list[float] = []  # where the last label of each line ends
    for step, label, tone in sorted(given):
        at = place(step, ends)
        long = LETTER * (len(label) + 1)
        left = at > long and (not drawn or at + long > 100)
        begins = at - long if left else at
        row = next((row for row, end in enumerate(free) if end <= begins), len(free))
        free[row : row + 1] = [begins + long]
        drawn.append(Mark(at, label, tone, row, left))
    return drawn


def axis_ticks(ends: tuple[float, float]) -> list[tuple[float, str]]:
    """Place in per cent, and step."""
    inner = _round_values(*ends, lambda step: place(step, ends)) if ends[1] > ends[0] else []
    steps = dict.fromkeys([ends[0], *(step for step in inner if step == round(step)), ends[1]])
    return [(place(step, ends), f"{step:,.0f}") for step in steps]


def place(step: float, ends: tuple[float, float]) -> float:
    """Where `step` is on the axis, in per cent."""
    first, last = ends
    return min(max(100 * (step - first) / (last - first), 0.0), 100.0) if last > first else 50.0


@dataclass(frozen=True)
class _Scale:
    """From a value to a height of 0 to 100."""

    low: float
    high: float
    log: bool

    @classmethod
    def of_values(cls, values: Sequence[float], *, log: bool) -> "_Scale":
        positive = [value for value in values if value > 0]
        log = log and len(positive) >= POSITIVE * len(values)
        low, high = min(positive if log else values), max(values)
        if log:
            low = max(low, high * SPAN)
            edge = max((high / low) ** 0.06, 1.05)
            return cls(low / edge, high * edge, log)
        edge = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        return cls(low - edge, high + edge, log)

    def height(self, value: float) -> float:
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        at = math.log(max(value, self.low)) if self.log else value
        return min(max(100 * (at - low) / (high - low), 0.0), 100.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values, about two of them; powers of ten where the scale is logarithmic and spans several."""
        if self.log and self.high >= 4 * self.low:
            low, high = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            every, multiples = -(-(high - low) // MOST_POWERS), (1, 3) if self.high < 300 * self.low else (1,)
            values = [times * 10.0**power for power in range(low, high + 1, every) for times in multiples]
            return [(at, digits(value)) for value in values if NEAR <= (at := self.height(value)) <= 100 - NEAR]
        return [(self.height(value), digits(value)) for value in _round_values(self.low, self.high, self.height)]


def _round_values(low: float, high: float, placed: Callable[[float], float]) -> list[float]:
    """The multiples of the largest round step of which two are away from the ends."""
    values: list[float] = []
    power = math.ceil(math.log10(high - low))
    for step in (times * 10.0**down for down in range(power, power - 3, -1) for times in (1, 0.5, 0.2)):
        every = range(math.ceil(low / step), math.floor(high / step) + 1)
        values = [round(n * step, 12) if step < 1e6 else n * step for n in every]
        values = [value for value in values if NEAR <= placed(value) <= 100 - NEAR]
        if len(values) >= 2:
            break
    return values


def _thinned(
    points: Mapping[int, float] | Mapping[float, float], ends: tuple[float, float]
) -> tuple[list[float], list[float]]:
    """Steps and values inside `ends` that are finite; where there are too many, means of rows in a row."""
    inside = sorted(item for item in points.items() if math.isfinite(item[1]) and ends[0] <= item[0] <= ends[1])
    values = np.clip(np.array([value for _, value in inside]), -MOST, MOST)
    every = max(-(-len(inside) // POINTS), 1)
    begins = range(0, len(inside), every)
    if every > 1:
        values = np.add.reduceat(values, begins) / np.diff([*begins, len(inside)])
    return [step for step, _ in inside[::every]], values.tolist()


def _path(steps: Sequence[float], heights: Sequence[float], ends: tuple[float, float]) -> str:
    points = [f"{10 * place(step, ends):.1f} {100 - y:.1f}" for step, y in zip(steps, heights, strict=True)]
    return "M" + "L".join(points) if len(points) > 1 else f"M{points[0]}h0.1"  # a dot, by its round ends


def _usual(line: Line, before: float, scale: _Scale) -> Band | None:
    """The middle nine tenths of the values before a step; None where these are few, or on their way somewhere."""
    values = [value for step, value in zip(line.steps, line.values, strict=True) if step < before]
    if len(values) < FEWEST:
        return None
    cuts = quantiles(values, n=20, method="inclusive")
    low, high = scale.height(cuts[0]), scale.height(cuts[-1])
    label = f"usual before: {digits(cuts[0])} to {digits(cuts[-1])}"
    half = len(values) // 2
    moved = scale.height(median(values[half:])) - scale.height(median(values[:half]))
    return Band(low, high, label) if abs(moved) <= DRIFT * (high - low) else None
