"""What a notebook shows: the page of a run, in a frame of its own, so that its styles are no other's."""

from html import escape

from tracker_diag.errors import MissingExtra
from tracker_diag.report.html import render_html
from tracker_diag.rules.triage import Summary

HEIGHT = 640
"""Of the frame, in pixels; the page scrolls in it."""


def shown(summary: Summary) -> str | None:
    """The page of `summary` for the output of a cell; None without jinja2, where a notebook shows the text."""
    try:
        page = escape(render_html(summary))
    except MissingExtra:
        return None
    return f'<iframe srcdoc="{page}" title="tracker_diag" width="100%" height="{HEIGHT}" frameborder="0"></iframe>'


Summary.shown_by = shown  # from here, as rules know no report
