"""The picture of a run as plain values, and the drawing of it in the thread that writes to a tracker."""

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracker_diag.records import Drawing, Histogram
from tracker_diag.report.curves import Panel, panels
from tracker_diag.report.decision import decide, harm_began
from tracker_diag.report.tables import TIMELINE
from tracker_diag.rules.triage import Summary

Pixels: TypeAlias = npt.NDArray[np.uint8]

MOST_PANELS = 4
"""Curves that a picture has room for."""


_turn = threading.Lock()
"""One thread draws at a time: several trackers may be written to, and matplotlib shares its fonts."""


@dataclass(frozen=True)
class Picture:
    """All that the picture of a run shows."""

    title: str
    """The decision."""
    about: str
    """The tiles, a line each."""
    first: int
    last: int
    marks: Sequence[tuple[int, str]]
    """Steps with a line through all of it, and their labels."""
    events: Sequence[int]
    """Steps at which something was done on purpose: a new baseline, a guard's act."""
    panels: Sequence[Panel]
    """The hero first."""

    def drawing(self) -> Drawing:
        """For a tracker that will have it drawn."""
        return Drawing(TIMELINE, self)


def drawn(drawing: Drawing) -> Pixels:
    """The picture as (H, W, 3) uint8 RGB. It takes about 0.1 s, and a second the first time."""
    with _turn:
        from tracker_diag.report.figures import picture_figure, pixels

        return pixels(picture_figure(drawing.picture))


def drawn_tail(histograms: Sequence[Histogram], title: str) -> Pixels:
    """The picture of a pair's tail by slice, or of the rewards, as (H, W, 3) uint8 RGB."""
    with _turn:
        from tracker_diag.report.figures import figure_of, pixels

        return pixels(figure_of(histograms, title))


def png_of(image: Pixels) -> bytes:
    """A picture as a PNG file."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "png")
    return buffer.getvalue()


def picture(summary: Summary) -> Picture | None:
    """What is drawn of a run; None where nothing was found at warn or above: there is nothing to point at."""
    first, last, cause = summary.first_step, summary.last_step, summary.first_break
    if first is None or last is None or cause is None:
        return None
    decision, harm = decide(summary), harm_began(summary)
    marks = [(cause.onset, "began"), (cause.fired, "alert"), (harm, "damage"), (cause.resolved, "over")]
    return Picture(
        title=str(decision),
        about="\n".join(f"{tile.value}: {tile.what}" for tile in decision.tiles),
        first=first,
        last=last,
        marks=[(step, label) for step, label in marks if step is not None],
        events=sorted({step for step, _ in summary.events}),
        panels=panels(summary)[:MOST_PANELS],
    )
