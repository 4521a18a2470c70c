"""A chart view for MLflow's run page: tails, effective sample size, shape, rules and pictures, ready to open.

The format is that of MLflow 3.17's front end and undocumented: best effort, never a reason to fail.
"""

import base64
import json
import re
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

from tracker_diag.errors import DiagError
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import PAIRS
from tracker_diag.report.tables import TIMELINE
from tracker_diag.trackers.panels import NAME, OUTCOME, PLOTS, RULES, in_order, outcome_keys

VIEW_KEY = "tracker-diag"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"

RUNS = 50
"""Newest runs that are looked at for what there is to show."""

RULE = f"{PREFIX}rule/"
"""What the series of a rule's state begins with."""

_FOUND = "What was found"
_PICTURES = "Distribution of |log-ratio|, step by step"

COLUMNS = [f"tags.`{name}`" for name in ("diag.alert.state", "diag.first_break")]
"""Of the list of runs."""

MOST_OUTCOMES = 8
"""Charts of rewards, evaluations and KL, where the runs of an experiment name them in their own ways."""


def view_path(experiment_id: str) -> str:
    """Where the view opens, below the address of the MLflow server."""
    return f"/#/experiments/{experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey={VIEW_KEY}"


def save_view(client: Any, experiment: str) -> tuple[str, bool]:
    """Save the view in an experiment, given by name or id; its id, and whether anything was written.

    Raises:
        DiagError: there is no such experiment, or the store cannot be reached.
    """
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_experiment_by_name(experiment) or client.get_experiment(experiment)
        runs = client.search_runs([found.experiment_id], order_by=["attributes.start_time DESC"], max_results=RUNS)
        keys = {key for run in runs for key in run.data.metrics}
        logged = {key.removeprefix(PREFIX).partition("/")[0] for key in keys}
        images = [name for run in runs for name in _images(client, run.info.run_id)]
        steps = [int(match[1]) for name in images if (match := re.search(r"[~#]tail[+%]step[+%](\d+)[+%]", name))]
        present = found.tags.get(VIEW_TAG, "{}")
        shown = shown_of(keys) | keys_in(present)
        shown |= {TIMELINE} if any(re.search(r"[~#]timeline[+%]", name) for name in images) else set()
        view = chart_view([pair for pair in PAIRS if pair in logged], steps[0] if steps else None, shown)
        if _shown(view) == _shown(present):
            return found.experiment_id, False
        client.set_experiment_tag(found.experiment_id, VIEW_TAG, view)
    except MlflowException as error:
        raise DiagError(f"mlflow: experiment {experiment}: no view saved: {error}") from error
    return found.experiment_id, True


def _images(client: Any, run_id: str) -> list[str]:
    """Paths of our pictures in a run, the latest steps first."""
    paths = [file.path for file in client.list_artifacts(run_id, "images")]
    return sorted(paths, key=lambda path: [-int(number) for number in re.findall(r"step[+%](\d+)", path)])


def _shown(view: str) -> tuple[object, object]:
    """What makes two views the same; when they were made does not."""
    parts = json.loads(view)
    return parts.get("name"), parts.get("state")


def shown_of(keys: Iterable[str]) -> set[str]:
    """Those of a run's `keys` that have charts beside the tails: the states of rules, and the trainer's outcomes."""
    keys = list(keys)
    return {key for key in keys if key.startswith(RULE)} | {*outcome_keys(keys)}


def keys_in(view: str) -> set[str]:
    """The same of a view that is there, with the picture of what was found; none if it is no view of ours."""
    with suppress(ValueError, LookupError, TypeError, zlib.error):
        packed = str(json.loads(view)["state"]).removeprefix("deflate;")
        charts = json.loads(zlib.decompress(base64.b64decode(packed)))["compareRunCharts"]
        keys = {key for chart in charts for key in (*chart.get("selectedMetricKeys", ()), *chart.get("imageKeys", ()))}
        return {key for key in keys if key.startswith(RULE) or not key.startswith(PREFIX) or key == TIMELINE}
    return set()


def chart_view(pairs: Sequence[str], image_step: int | None, shown: Collection[str]) -> str:
    """Value of the experiment tag `VIEW_TAG`.

    Args:
        pairs: what there are charts of; all, if none is known yet.
        image_step: where the pictures open, if there are any.
        shown: what else there are charts of: outcomes, each its own; rules, a chart a family; the picture `TIMELINE`.
    """
    charts: list[dict[str, object]] = []
    sections: list[dict[str, object]] = []
    outcomes = in_order(key for key in shown if not key.startswith(PREFIX))[:MOST_OUTCOMES]
    section = _section(OUTCOME, sections) if outcomes else ""
    for key in outcomes:
        charts.append(_chart("LINE", section, len(charts), key) | _line([key], "linear"))
    if TIMELINE in shown:
        section = _section(_FOUND, sections)
        charts.append(_chart("IMAGE", section, len(charts), TIMELINE) | {"imageKeys": [TIMELINE], "step": 0})
    for plot in PLOTS:
        # A chart's own title is not shown, so each plot is a section of its own, with a chart for each pair.
        section = _section(plot.title, sections)
        for pair in pairs or PAIRS:
            if keys := plot.keys(pair):
                charts.append(_chart("LINE", section, len(charts), keys[0]) | _line(keys, plot.statistic.scale))
        if plot.statistic.name == "p95" and image_step is not None:
            section = _section(_PICTURES, sections)
            for pair in pairs:
                key = f"{PREFIX}{pair}/tail"
                charts.append(_chart("IMAGE", section, len(charts), key) | {"imageKeys": [key], "step": image_step})
    families: dict[str, list[str]] = {}
    for key in sorted(key for key in shown if key.startswith(RULE)):
        families.setdefault(key.rstrip("0123456789"), []).append(key)
    section = _section(RULES, sections) if families else ""
    for keys in families.values():
        charts.append(_chart("LINE", section, len(charts), keys[0]) | _line(keys, "linear"))
    state = {
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,
        "autoRefreshEnabled": True,
        "runsHiddenMode": "FIRST_10_RUNS",
        "runListHidden": False,
        "viewMaximized": False,
        "hideEmptyCharts": True,
        "groupBy": None,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "searchFilter": "",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": COLUMNS,
    }
    packed = "deflate;" + base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    now = int(time.time() * 1000)
    return json.dumps({"name": NAME, "createdAt": now, "updatedAt": now, "state": packed})


def _section(title: str, sections: list[dict[str, object]]) -> str:
    uuid = f"{VIEW_KEY}-section-{len(sections)}"
    sections.append(
        {
            "uuid": uuid,
            "name": title,
            "display": True,
            "isReordered": True,
            "deleted": False,
            "isGenerated": False,
            "columns": 2,  # wide enough for a legend that tells the slices apart
            "cardHeight": {_FOUND: 480, _PICTURES: 480}.get(title, 380),
        }
    )
    return uuid


def _chart(kind: str, section: str, number: int, title: str) -> dict[str, object]:
    return {
        "uuid": f"{VIEW_KEY}-chart-{number}",
        "type": kind,
        "deleted": False,
        "isGenerated": False,
        "metricSectionId": section,
        "displayName": title,
        "runsCountToCompare": 10,
    }


def _line(keys: list[str], scale: str) -> dict[str, object]:
    return {
        "metricKey": keys[0],
        "selectedMetricKeys": keys,
        "lineSmoothness": 0,
        "scaleType": scale,
        "xAxisScaleType": "linear",
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "range": {},
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
