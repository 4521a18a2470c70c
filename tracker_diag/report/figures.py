"""Pictures: the tail of |log-ratio| by slice with its baseline behind it, rewards, and the decision."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, StrMethodFormatter

from tracker_diag.records import Histogram
from tracker_diag.report.charts import drawn_marks
from tracker_diag.report.console import cut, digits
from tracker_diag.report.curves import PLACES, Panel, panels, with_outcomes_together
from tracker_diag.report.decision import decide, marks_of
from tracker_diag.report.templates import SLICES, TONES
from tracker_diag.rules.triage import Summary

COLORS = {name: light for name, (light, _) in SLICES.items()}
"""One colour for each slice in every picture."""


def tail_figure(histograms: Sequence[Histogram], title: str) -> Figure:
    """The share of tokens beyond each |log-ratio|, on two log axes: a line per slice, dashed the baseline.

    Square, as the picture cards of trackers are. It is drawn during training and holds the interpreter meanwhile. So it
    leaves out what costs matplotlib most and shows nothing: a layout found by drawing several times, minor ticks,
    formulas as labels. A quarter is left.
    """
    figure = Figure(figsize=(4.0, 4.0), dpi=175)
    axes = figure.add_axes((0.185, 0.125, 0.785, 0.80))
    for histogram in histograms:
        name = histogram.slice
        for counts, style in ((histogram.baseline, "--"), (histogram.counts, "-")):
            if counts.sum():
                label = f"{name}, {'baseline' if style == '--' else 'now'} ({int(counts.sum()):,} tokens)"
                width, alpha = (1.3, 0.75) if style == "--" else (2.4, 1.0)
                beyond = 1 - np.cumsum(counts) / counts.sum()
                beyond = np.where(beyond > 1e-12, beyond, np.nan)  # no line where no token is left
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
    if len(axes.lines) > 1:  # next to the line of p95
        axes.legend(fontsize=8, loc="lower left", framealpha=0.9)
    return figure


def reward_figure(histogram: Histogram, title: str) -> Figure:
    """The rewards of the sequences of a step: how many are in each bin. Square, as `tail_figure`."""
    figure = Figure(figsize=(4.0, 4.0), dpi=175)
    axes = figure.add_axes((0.155, 0.125, 0.815, 0.80))
    axes.bar(histogram.edges[:-1], histogram.counts, np.diff(histogram.edges), align="edge", color=COLORS["text_only"])
    axes.set(xlabel="reward", ylabel="sequences")
    axes.tick_params(labelsize=9)
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def decision_figure(summary: Summary) -> Figure:
    """The decision where something broke, what to do first, where to resume, and the curve with its marks.

    Trackers show it on small cards: its letters can be read at half its size.
    """
    decision = decide(summary)
    title = textwrap.wrap(_cut(str(decision), 150), 47)
    about = [_cut(f"{tile.value}: {tile.what}", 70) for tile in decision.tiles[2:]]
    figure = Figure(figsize=(7.6, 4.2), dpi=100)
    figure.text(0.012, 0.985, "\n".join(title), fontsize=19, weight="bold", va="top", parse_math=False)
    top = 0.965 - 0.075 * len(title)
    figure.text(0.012, top, "\n".join(about), fontsize=14, color="0.25", va="top", parse_math=False)
    ends = (summary.first_step or 0, max(summary.last_step or 0, (summary.first_step or 0) + 1))
    for panel in with_outcomes_together(panels(summary))[:1]:
        axes = figure.add_axes((0.085, 0.075, 0.88, top - 0.09 - 0.06 * len(about) - 0.075))
        _draw_panel(axes, panel)
        axes.set_xlim(*ends)
        axes.spines[:].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.tick_params(axis="x", labelsize=12)
        _draw_marks(axes, [mark for mark in marks_of(summary) if mark[2]], ends)
    return figure


def _draw_marks(axes: Axes, marks: Sequence[tuple[int, str, str]], ends: tuple[float, float]) -> None:
    """The marks with their labels at the top."""
    for (step, label, tone), mark in zip(sorted(marks), drawn_marks(marks, ends), strict=True):
        color, side = TONES.get(tone, "0.35"), "right" if mark.left else "left"
        place: dict[str, Any] = {"ha": side, "va": "top", "transform": axes.get_xaxis_transform()}
        place["bbox"] = {"facecolor": "0.965", "edgecolor": "none", "alpha": 0.8, "pad": 1}
        axes.axvline(step, color=color, lw=1.5, ls=(0, (3, 2)))
        axes.text(step, 0.98 - 0.13 * mark.row, f" {label} ", color=color, fontsize=13, weight="bold", **place)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    values = [value for line in panel.lines.values() for value in line.values() if math.isfinite(value)]
    log = panel.log and bool(values) and min(values) > 0
    if log:
        axes.set_yscale("log")
    for (name, line), grey in zip(panel.lines.items(), ("0.2", "0.6"), strict=False):
        label = PLACES.get(name, name) or None
        axes.plot([*line], [*line.values()], color=COLORS.get(name, grey), lw=2.2, label=label)
    axes.set_facecolor("0.965")
    axes.grid(axis="y", color="0.88", lw=0.7)
    axes.yaxis.set_minor_locator(NullLocator())
    if not log:
        axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: digits(value)))
    axes.tick_params(axis="y", labelsize=12, length=0, colors="0.35")
    low, high = axes.get_ylim()  # above the curves is room for the marks
    axes.set_ylim(low, high * (high / low) ** 0.3 if log else high + (high - low) * 0.3)
    several = len(panel.lines) > 1
    title = panel.title.rpartition(": ")[2] if several else panel.title  # the legend names the slices
    axes.set_title(_cut(title, 50 if several else 80), fontsize=11, loc="left", pad=5, parse_math=False)
    if several:
        look: dict[str, Any] = {"ncol": 2, "frameon": False, "handlelength": 1, "columnspacing": 1, "borderpad": 0}
        axes.legend(fontsize=11, loc="lower right", bbox_to_anchor=(1.01, 0.99), handletextpad=0.4, **look)


def _cut(text: str, most: int) -> str:
    """`text` in one line of `most` characters, with boxes for those that the font has not: matplotlib warns of them."""
    text = "".join(sign if ord(sign) in _glyphs() else "\N{WHITE SQUARE}" for sign in " ".join(text.split()))
    return cut(text, most)


@cache
def _glyphs() -> Mapping[int, int]:
    return get_font(findfont(FontProperties())).get_charmap()


def pixels(figure: Figure) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of the drawn figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
