"""Pages from the templates of this folder: all texts escaped, nothing loaded from anywhere."""

from collections.abc import Callable, Mapping
from typing import Any

from tracker_diag.errors import require
from tracker_diag.report.console import digits
from tracker_diag.report.palette import RUNS, SLICES


def rendered(template: str, filters: Mapping[str, Callable[..., Any]], **given: object) -> str:
    """The page that `template` makes of what is `given`; `filters` are what it may call."""
    jinja2 = require("jinja2", "mlflow")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracker_diag.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"digits": digits, **filters}
    text: str = environment.get_template(template).render(slices=SLICES, runs=RUNS, **given)
    return text.encode(errors="replace").decode()  # halves of a character, which no file takes
