"""The time line as plain values, and the drawing of it in the thread that writes to a tracker."""

import io
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracker_diag.records import Drawing, Histogram
from tracker_diag.report.curves import Panel, panels
from tracker_diag.report.tables import TIMELINE
from tracker_diag.report.timeline import Role, grouped
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import SEVERITIES
from tracker_diag.rules.model import Severity
from tracker_diag.rules.triage import Summary

Pixels: TypeAlias = npt.NDArray[np.uint8]

MOST_LANES, MOST_PANELS = 8, 6
"""Findings and curves that a picture has room for."""


_turn = threading.Lock()
"""One thread draws at a time: several trackers may be written to, and matplotlib shares its fonts."""


@dataclass(frozen=True)
class Bars:
    """One rule on one slice."""

    role: Role
    title: str
    place: str
    severity: Severity
    spans: Sequence[tuple[int, int, int]]
    """Onset, where it was told, and end of each."""


@dataclass(frozen=True)
class Picture:
    """All that the picture of a run shows."""

    title: str
    says: str
    first: int
    last: int
    marks: Sequence[int]
    """Steps with a line through all of it: the onset of what broke first, and of the damage."""
    events: Sequence[int]
    """Steps at which something was done on purpose: a new baseline, a guard's act."""
    lanes: Sequence[Bars]
    panels: Sequence[Panel]

    def drawing(self) -> Drawing:
        """For a tracker that will have it drawn."""
        return Drawing(TIMELINE, self)


def drawn(drawing: Drawing) -> Pixels:
    """The time line as (H, W, 3) uint8 RGB. It takes about 0.1 s, and a second the first time."""
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
    lanes = grouped([one for one in summary.incidents if one.severity != "info"])[:MOST_LANES]
    place = "" if cause.slice == "all" else f", on {cause.slice}"
    return Picture(
        title=f"{cause.rule.title}{place}, from step {cause.onset}",
        says=f"At step {cause.fired}: {cause.summary}",
        first=first,
        last=last,
        marks=sorted({cause.onset, *(findings[0].onset for role, findings in lanes if role == "damage")}),
        events=sorted({step for step, _ in summary.events}),
        lanes=[_bars(role, findings, last) for role, findings in lanes],
        panels=panels(summary)[:MOST_PANELS],
    )


def _bars(role: Role, findings: Sequence[Finding], last: int) -> Bars:
    rule, slice = findings[0].rule, findings[0].slice
    severities: set[Severity] = {one.severity for one in findings}
    spans = []
    for one in findings:
        end = last if one.resolved is None else one.resolved
        spans.append((one.onset, end if one.fired is None else one.fired, end))
    place = f"{rule.id}{'' if slice == 'all' else f' {slice}'}{', damage' if role == 'damage' else ''}"
    return Bars(role, rule.title, place, max(severities, key=SEVERITIES.index), spans)
