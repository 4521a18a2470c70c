"""What a notebook shows: the page of a run, in a frame of its own, so that its styles are no other's."""

from html import escape

from tracker_diag.errors import MissingExtra
from tracker_diag.report.html import render_html
from tracker_diag.rules.triage import Summary

HEIGHT = 640
"""Of the frame, in pixels; the page scrolls in it."""


def framed(page: str) -> str:
    """`page` for the output of a cell."""
    return (
        f'<iframe srcdoc="{escape(page)}" title="tracker_diag" width="100%" height="{HEIGHT}" frameborder="0"></iframe>'
    )


def shown(summary: Summary) -> str | None:
    """The page of `summary`; None without jinja2, where the notebook falls back to the text."""
    try:
        return framed(render_html(summary))
    except MissingExtra:
        return None


Summary.shown_by = shown  # from here, as rules know no report
