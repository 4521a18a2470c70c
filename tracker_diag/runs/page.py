"""A finished run as it is shown: the verdict with its curves, what its keys were read as, and the page."""

from rich.console import RenderableType

from tracker_diag.metrics.aliases import nearest
from tracker_diag.report.html import render_html
from tracker_diag.report.terminal import verdict
from tracker_diag.runs.diagnose import Diagnosis


def on_screen(diagnosis: Diagnosis) -> RenderableType:
    """The verdict with the curves that it rests on, and what the first break has cost."""
    return verdict(diagnosis.summary, cost=_cost(diagnosis), live=diagnosis.live)


def _cost(diagnosis: Diagnosis) -> str:
    first = diagnosis.summary.first_break
    return str(diagnosis.cost(first)) if first else ""


def about_keys(diagnosis: Diagnosis) -> str:
    """What the run's own keys were read as, which were not, and what was odd about the source."""
    keys = diagnosis.keys
    text = f"read as {keys.framework}"
    if not keys.framework:  # nobody knows whose names they are
        best = nearest((*keys.mapped, *keys.unmapped))
        close = f", nearest is {' or '.join(best)} with {max(best.values())} of its names" if best else ""
        text = f"trainer not recognised by its metric names{close}, well-known names were read"
    text += f": {len(keys.mapped)} of {len(keys.mapped) + len(keys.unmapped)} keys."
    if keys.unmapped:
        more = f" and {len(keys.unmapped) - 8} more" if len(keys.unmapped) > 8 else ""
        text += f" Not read: {', '.join(keys.unmapped[:8])}{more}."
    if diagnosis.algorithm:
        text += f" Limits are those of {diagnosis.algorithm}."
    notes = "; ".join(note.rstrip(".") for note in diagnosis.run.notes)
    return f"{text} Of the source: {notes}." if notes else text


def run_page(diagnosis: Diagnosis) -> str:
    """One self-contained page: the verdict, the time line with its curves, the incidents, who could not see."""
    return render_html(diagnosis.summary, cost=_cost(diagnosis), note=about_keys(diagnosis))
