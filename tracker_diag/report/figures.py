"""Pictures of a distribution: the tail of |log-ratio| by slice, with its baseline behind it, and rewards."""

import base64
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, StrMethodFormatter

from tracker_diag.records import SAMPLES, Histogram
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


def pixels(figure: Figure) -> npt.NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of the drawn figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def data_uri(figure: Figure) -> str:
    """The figure as a PNG in a data: URI, for a page that loads nothing."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _share_beyond(counts: IntArray) -> Float64Array:
    """Share of tokens above the upper edge of each bin; NaN where none is left, which is not drawn."""
    beyond = 1 - np.cumsum(counts) / counts.sum()
    return np.where(beyond > 1e-12, beyond, np.nan)
