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

from tracker_diag.backends.panels import NAME, PLOTS, RULES
from tracker_diag.errors import DiagError
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.metrics.series import PAIRS

VIEW_KEY = "tracker-diag"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"

RUNS = 50
"""Newest runs that are looked at for what there is to show."""

RULE = f"{PREFIX}rule/"
"""What the series of a rule's state begins with."""

_PICTURES = "Distribution of |log-ratio|, step by step"


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
        steps = [step for run in runs if (step := _image_step(client, run.info.run_id)) is not None]
        present = found.tags.get(VIEW_TAG, "{}")
        rules = rule_keys(keys) | rules_in(present)
        view = chart_view([pair for pair in PAIRS if pair in logged], steps[0] if steps else None, rules)
        if _shown(view) == _shown(present):
            return found.experiment_id, False
        client.set_experiment_tag(found.experiment_id, VIEW_TAG, view)
    except MlflowException as error:
        raise DiagError(f"mlflow: experiment {experiment}: no view saved: {error}") from error
    return found.experiment_id, True


def _image_step(client: Any, run_id: str) -> int | None:
    """The last step that a run has our pictures of."""
    named = [re.search(r"[~#]tail[+%]step[+%](\d+)[+%]", file.path) for file in client.list_artifacts(run_id, "images")]
    return max((int(match[1]) for match in named if match), default=None)


def _shown(view: str) -> tuple[object, object]:
    """What makes two views the same; when they were made does not."""
    parts = json.loads(view)
    return parts.get("name"), parts.get("state")


def rule_keys(keys: Iterable[str]) -> set[str]:
    """Those of `keys` that are the state of a rule."""
    return {key for key in keys if key.startswith(RULE)}


def rules_in(view: str) -> set[str]:
    """The rules whose state a view shows; none if it is no view of ours."""
    with suppress(ValueError, LookupError, TypeError, zlib.error):
        packed = str(json.loads(view)["state"]).removeprefix("deflate;")
        charts = json.loads(zlib.decompress(base64.b64decode(packed)))["compareRunCharts"]
        return rule_keys(key for chart in charts for key in chart.get("selectedMetricKeys", ()))
    return set()


def chart_view(pairs: Sequence[str], image_step: int | None, rules: Collection[str]) -> str:
    """Value of the experiment tag `VIEW_TAG`.

    Args:
        pairs: what there are charts of; all, if none is known yet.
        image_step: where the pictures open, if there are any.
        rules: series of rules' states; each family of rules is a chart.
    """
    charts: list[dict[str, object]] = []
    sections: list[dict[str, object]] = []
    for plot in PLOTS:
        # A chart's own title is not shown, so each plot is a section of its own, with a chart for each pair.
        section = _section(f"{plot.section}: {plot.title}", sections)
        for pair in pairs or PAIRS:
            if keys := plot.keys(pair):
                charts.append(_chart("LINE", section, len(charts), keys[0]) | _line(keys, plot.of.scale))
        if plot.of.name == "p95" and image_step is not None:
            section = _section(_PICTURES, sections)
            for pair in pairs:
                key = f"{PREFIX}{pair}/tail"
                charts.append(_chart("IMAGE", section, len(charts), key) | {"imageKeys": [key], "step": image_step})
    families: dict[str, list[str]] = {}
    for key in sorted(rules):
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
            "cardHeight": 480 if title == _PICTURES else 380,
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
