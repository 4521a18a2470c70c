"""Pages from the templates of this folder: all texts escaped, nothing loaded from anywhere; and their colours.

Each colour is for a light ground and for a dark one. It has one meaning in every page and picture, so that colour-blind
people can separate them. Slices and runs follow Okabe and Ito's palette, made dark enough for text on white (contrast
of 4.5 and more).
"""

from collections.abc import Callable, Mapping
from typing import Any

from tracker_diag.errors import require
from tracker_diag.report.console import digits


def rendered(template: str, filters: Mapping[str, Callable[..., Any]], **given: object) -> str:
    """The page that `template` makes of what is `given`; `filters` are what it may call."""
    jinja2 = require("jinja2", "mlflow")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracker_diag.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"digits": digits, **filters}
    text: str = environment.get_template(template).render(slices=SLICES, runs=RUNS, **given)
    return text.encode(errors="replace").decode()  # halves of a character, which no file takes


SLICES: Mapping[str, tuple[str, str]] = {"text_only": ("#1f6fb2", "#7ab8ee"), "post_tool": ("#c2460f", "#f79463")}

RUNS: tuple[tuple[str, str], ...] = (
    ("#3c4654", "#c9d2dc"),
    ("#a0307c", "#ee9bd0"),
    ("#007a5a", "#4fd0a8"),
    ("#7a6200", "#d6cc4f"),
    ("#4a4ab8", "#aeb0f5"),
    ("#00758a", "#63cfe0"),
)
"""Of compared runs, the reference first, none of them that of a slice; a seventh run has the colour of the first."""

TONES = {"info": "#4a5a8f", "warn": "#855600", "error": "#b3202a"}
"""Of a severity, in pictures."""
