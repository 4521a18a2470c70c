"""The page of real curves: for each link a planted fault that was rightly named, and a healthy run that was alarmed."""

import json
import math
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from tracker_diag.metrics.aliases import key_map
from tracker_diag.report.blocks import bars, heights
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Link, Rule

ROOT = Path(__file__).parents[1]
COLUMNS = 48
SEEN = ("tuned", "development")
"""Parts of the planted runs of which single results may be shown."""
HEAD = """\
# Real curves

Made by `make docs` from the [planted faults](faults.md): for each link a failure as its trainer logged it, and a false
alarm. Each curve goes from its smallest to its largest value. The names are the trainer's own.
"""


def curves_page() -> str:
    """docs/curves.md."""
    read: Callable[[], Any] = runpy.run_path(str(ROOT / "tests" / "faults" / "dataset.py"))["read_runs"]
    verdicts = json.loads((ROOT / "docs" / "faults.json").read_text(encoding="utf-8"))["runs"]
    rules = {rule.id: rule for rule in catalog()}
    failures: dict[Link, list[tuple[bool, str]]] = {}
    false: dict[Link, list[str]] = {}
    healthy = 0
    for run in read():
        if run.half not in SEEN:
            continue
        healthy += run.fault is None
        first = next((rules[name] for name in verdicts[run.name][1]), None)
        if first is None:
            continue
        if run.fault is None:
            false.setdefault(first.link, []).append(_drawn(run, first))
        elif first.id in run.right:
            failures.setdefault(first.link, []).append((run.onset > run.steps[0], _drawn(run, first)))
    parts = [HEAD]
    for link in get_args(Link):
        if link not in failures:
            continue
        alarms = false.get(link, [])
        count = f"{len(alarms)} of {healthy} healthy runs were alarmed by a rule of this link first."
        parts += [
            f"## {link.replace('_', ' ').capitalize()}\n",
            max(failures[link], key=lambda failure: failure[0])[1],  # a change within the run shows most
            f"*False alarms*: {count}\n",
            *alarms[:1],
        ]
    return "\n".join(parts)


def _drawn(run: Any, rule: Rule) -> str:
    """A run with three of its series: those that `rule` reads first."""
    mapped = {metric.name: key for key, metric in key_map(run.columns).mapped.items()}
    read = [mapped[ref.metric] for ref in rule.series() if ref.metric in mapped]
    keys = dict.fromkeys([*read, *mapped.values()])
    values = {key: _finite(dict(zip(run.steps, run.columns[key], strict=True))) for key in keys}
    shown = {key: curve for key, curve in values.items() if len({*curve.values()}) > 1}
    width = max(map(len, shown), default=0)
    what = "Nothing was planted" if run.fault is None else f"Planted: {run.fault}, from step {run.onset}"
    low, high = run.steps[0], run.steps[-1]
    title = f"{run.trainer} on {run.task}, steps {low} to {high}. {what}. Named: [{rule.id}](rules/{rule.id}.md)"
    return "\n".join([
        f"{title}, *{rule.title}*.\n",
        "```",
        *(f"{key:{width}} {_curve(curve, low, high)} {_span(curve)}" for key, curve in [*shown.items()][:3]),
        "```",
        "",
    ])  # fmt: skip


def _finite(values: Mapping[int, Any]) -> dict[int, float]:
    known = {step: float(value) for step, value in values.items() if value is not None}
    return {step: value for step, value in known.items() if math.isfinite(value)}


def _curve(values: dict[int, float], low: int, high: int) -> str:
    (curve,) = heights([values.items()], low, high, COLUMNS)
    return bars(curve, COLUMNS)


def _span(values: Mapping[int, float]) -> str:
    return f"{min(values.values()):.3g} to {max(values.values()):.3g}"


PAGES: dict[str, Callable[[], str]] = {"curves.md": curves_page}
