"""The picture of a run, drawn in the thread that writes to a tracker."""

import atexit
import io
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracker_diag.records import SAMPLES, Drawing, Histogram
from tracker_diag.report.tables import DECISION
from tracker_diag.rules.triage import Summary

Pixels: TypeAlias = npt.NDArray[np.uint8]

_turn = threading.Lock()
"""One thread draws at a time: several trackers may be written to, and matplotlib shares its fonts."""

_process = os.getpid()


@atexit.register
def _draw_no_more() -> None:
    """Wait ten seconds for the picture that is being drawn, and let no other begin.

    The end of Python stops our threads. If one of them is in the C++ of matplotlib then, the process may abort.
    """
    if os.getpid() == _process:  # in a fork nobody gives the turn back
        _turn.acquire(timeout=10)


def ready() -> None:
    """Import what draws, in the thread that sets a tracker up: later a thread of ours draws.

    While a thread imports matplotlib, other threads find half of it in `sys.modules`. A tracker may drop a row by that.
    """
    with suppress(ImportError):  # `drawn` says that it is missing
        import_module("tracker_diag.report.figures")
        import_module("PIL.Image").preinit()


def picture(summary: Summary) -> Drawing | None:
    """The picture of a run, to be drawn later; None where nothing is to be pointed at, at warn or above."""
    return None if summary.first_break is None else Drawing(DECISION, summary)


def drawn(drawing: Drawing) -> Pixels:
    """The picture as (H, W, 3) uint8 RGB. It takes about 0.1 s, and a second the first time."""
    with _turn:
        from tracker_diag.report.figures import decision_figure, pixels

        return pixels(decision_figure(drawing.summary))


def drawn_tail(histograms: Sequence[Histogram], title: str) -> Pixels:
    """The picture of a pair's tail by slice, or of the rewards, as (H, W, 3) uint8 RGB."""
    with _turn:
        from tracker_diag.report.figures import pixels, reward_figure, tail_figure

        rewards = histograms[0].pair == SAMPLES
        return pixels(reward_figure(histograms[0], title) if rewards else tail_figure(histograms, title))


def png_of(image: Pixels) -> bytes:
    """A picture as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "png")
    return buffer.getvalue()
