"""Pictures: the tail of |log-ratio| by slice with its baseline behind it, rewards, and what was found over time."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator, NullLocator, StrMethodFormatter
from matplotlib.transforms import blended_transform_factory

from tracker_diag.records import SAMPLES, Histogram
from tracker_diag.report.console import cut, digits
from tracker_diag.report.curves import Panel
from tracker_diag.report.overlay import is_log
from tracker_diag.report.picture import Bars, Picture, picture
from tracker_diag.rules.triage import Summary
from tracker_diag.stats.arrays import Float64Array, IntArray

COLORS = {"text_only": "#2f6fb0", "post_tool": "#d9541e"}
"""One colour a slice in every picture; told apart by people who cannot tell red from green."""


def tail_figure(histograms: Sequence[Histogram], title: str) -> Figure:
    """The share of tokens beyond each |log-ratio|, on two log axes: a line per slice, dashed the baseline.

    Square, as the picture cards of trackers are.

    A tail that stretches moves to the right at the bottom; a bulk that only scales moves as a whole.

    It is drawn while training goes on and holds the interpreter meanwhile, so it leaves out what costs matplotlib most
    and shows nothing: a layout found by drawing several times, minor ticks, formulas as labels. A quarter is left.
    """
    figure = Figure(figsize=(4.0, 4.0), dpi=175)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.185, 0.125, 0.785, 0.80))
    for histogram in histograms:
        name = histogram.slice
        for counts, style in ((histogram.baseline, "--"), (histogram.counts, "-")):
            if counts.sum():
                label = f"{name}, {'baseline' if style == '--' else 'now'} ({int(counts.sum()):,} tokens)"
                width, alpha = (1.3, 0.75) if style == "--" else (2.4, 1.0)
                beyond = _share_beyond(counts)
                axes.plot(histogram.edges[1:], beyond, style, color=COLORS[name], lw=width, alpha=alpha, label=label)
    axes.axhline(0.05, color="0.6", lw=0.8, ls=":")
    axes.annotate("p95", (1.02e-4, 0.053), fontsize=8, color="0.4")
    axes.set(xscale="log", yscale="log", xlim=(1e-4, 30), ylim=(5e-4, 1.1))
    axes.set(xlabel="|log-ratio| x, in nats", ylabel="share of tokens beyond x")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_tick_params(labelsize=9)
    axes.set_title(title, fontsize=11, loc="left")
    axes.grid(color="0.92", which="major")
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.lines) > 1:  # beside the line of p95
        axes.legend(fontsize=8, loc="lower left", framealpha=0.9)
    return figure


def reward_figure(histogram: Histogram, title: str) -> Figure:
    """The rewards of the sequences of a step: how many lie in each bin. Square, as `tail_figure`."""
    figure = Figure(figsize=(4.0, 4.0), dpi=175)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.155, 0.125, 0.815, 0.80))
    axes.bar(histogram.edges[:-1], histogram.counts, np.diff(histogram.edges), align="edge", color=COLORS["text_only"])
    axes.set(xlabel="reward", ylabel="sequences")
    axes.tick_params(labelsize=9)
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def figure_of(histograms: Sequence[Histogram], title: str) -> Figure:
    """The picture of a pair's tail by slice, or of the rewards."""
    first = histograms[0]
    return reward_figure(first, title) if first.pair == SAMPLES else tail_figure(histograms, title)


TONES = {"info": "#2f6fb0", "warn": "#b8460f", "error": "#b3202a"}
"""Of a finding, by its severity."""

LEFT_OF_AXES = -0.458
"""Where names begin, in widths of the axes."""


def timeline_figure(summary: Summary) -> Figure | None:
    """What was found from onset to end, and the curves that it rests on, over one axis of steps.

    None where nothing was found at warn or above: there is nothing to point at.
    """
    shown = picture(summary)
    return None if shown is None else picture_figure(shown)


def picture_figure(shown: Picture) -> Figure:
    """The same, of its values."""
    first, last = shown.first, shown.last
    heights = [0.36 * len(shown.lanes) + 0.1, *[0.72] * len(shown.panels)]
    said = "\n".join(textwrap.wrap(_cut(shown.says, 230), 118))
    head = 0.85 + 0.16 * said.count("\n")  # inches above the lanes
    tall = head + 0.45 + sum(heights) * 1.1
    figure = Figure(figsize=(7.6, tall), dpi=100)
    FigureCanvasAgg(figure)
    edges = {"left": 0.32, "right": 0.985, "top": 1 - head / tall, "bottom": 0.45 / tall, "hspace": 0.16}
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, **edges)
    axes = [figure.add_subplot(grid[row, 0]) for row in range(len(heights))]
    _draw_lanes(axes[0], shown.lanes)
    for panel, one in zip(shown.panels, axes[1:], strict=True):
        _draw_panel(one, panel, first, last)
    for one in axes:
        one.set_xlim(first, max(last, first + 1))
        one.spines[:].set_visible(False)
        one.set_xticks([])
        for mark in shown.marks:
            one.axvline(mark, color="0.25", lw=0.9, ls=(0, (3, 2)))
        for step in shown.events:
            one.axvline(step, color=TONES["info"], lw=0.9)
    axes[-1].xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes[-1].set_xlabel("step", fontsize=9)
    title = _cut(shown.title, 84)
    figure.text(0.012, 1 - 0.21 / tall, title, fontsize=12, weight="bold", va="center", parse_math=False)
    figure.text(0.012, 1 - 0.38 / tall, said, fontsize=8.5, color="0.3", va="top", linespacing=1.35, parse_math=False)
    _tell_marks(figure, axes[0], shown, 1 - (head - 0.07) / tall)
    return figure


def _tell_marks(figure: Figure, axes: Axes, shown: Picture, y: float) -> None:
    """What is pale and what is full, and the steps at which lines go through all of it, as far as there is room."""
    figure.text(0.012, y, "pale from the onset, full once detected", fontsize=7.5, color="0.35", va="center")
    across = blended_transform_factory(axes.transData, figure.transFigure)
    span, told = max(shown.last - shown.first, 1), -1.0
    for mark in shown.marks:
        at = (mark - shown.first) / span
        if at - told > 0.1:
            side = "right" if at > 0.9 else "left" if at < 0.1 else "center"
            figure.text(mark, y, f"{mark:,}", fontsize=8, weight="bold", ha=side, va="center", transform=across)
            told = at


def _draw_lanes(axes: Axes, lanes: Sequence[Bars]) -> None:
    for row, lane in enumerate(lanes):
        color = TONES["error" if lane.role == "damage" else lane.severity]
        for onset, told, end in lane.spans:
            axes.broken_barh([(onset, told - onset)], (row - 0.32, 0.64), color=color, alpha=0.35, lw=0)
            axes.broken_barh([(told, max(end - told, 0))], (row - 0.32, 0.64), color=color, lw=0)
        x = LEFT_OF_AXES + 0.02 * (lane.role in ("symptom", "damage"))
        place = axes.get_yaxis_transform()
        axes.text(x, row - 0.18, _cut(lane.title, 44), fontsize=8.5, va="center", transform=place, parse_math=False)
        axes.text(x, row + 0.22, lane.place, fontsize=7.5, color=color, va="center", transform=place, parse_math=False)
    axes.set_ylim(len(lanes) - 0.45, -0.55)
    axes.set_yticks([])


def _draw_panel(axes: Axes, panel: Panel, first: int, last: int) -> None:
    values = [value for line in panel.lines.values() for value in line.values()]
    if is_log(values):
        axes.set_yscale("log")
    for slice, line in panel.lines.items():
        axes.plot([*line], [*line.values()], color=COLORS.get(slice, "0.2"), lw=1.4, label=slice or None)
    if panel.baseline is not None:
        axes.plot([first, last], [panel.baseline] * 2, color="0.5", lw=0.9, ls=":")
    axes.set_facecolor("0.965")
    axes.yaxis.set_major_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    ends = f"{digits(min(values))} to {digits(max(values))}{', log scale' * is_log(values)}" if values else ""
    place = axes.transAxes
    axes.text(LEFT_OF_AXES, 0.66, _cut(panel.name, 38), fontsize=9, va="center", transform=place, parse_math=False)
    axes.text(LEFT_OF_AXES, 0.30, ends, fontsize=8, va="center", color="0.35", transform=place)
    if len(panel.lines) > 1:
        axes.legend(fontsize=7.5, loc="upper left", ncols=2, framealpha=0.6, borderpad=0.2)


def _cut(text: str, most: int) -> str:
    """`text` in one line of `most` characters, with boxes for those that the font has not: matplotlib warns of them."""
    text = "".join(one if ord(one) in _glyphs() else "\N{WHITE SQUARE}" for one in " ".join(text.split()))
    return cut(text, most)


@cache
def _glyphs() -> Mapping[int, int]:
    return get_font(findfont(FontProperties())).get_charmap()


def pixels(figure: Figure) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of the drawn figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def png(figure: Figure) -> bytes:
    """The figure as a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _share_beyond(counts: IntArray) -> Float64Array:
    """Share of tokens above the upper edge of each bin; NaN where none is left, which is not drawn."""
    beyond = 1 - np.cumsum(counts) / counts.sum()
    return np.where(beyond > 1e-12, beyond, np.nan)
