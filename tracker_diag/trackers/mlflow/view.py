"""A chart view for MLflow's run page: outcomes, tails, effective sample size, shape and rules, ready to open.

The format is that of MLflow 3.17's front end and undocumented: best effort, never a reason to fail.
"""

import base64
import json
import time
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from tracker_diag.errors import DiagError
from tracker_diag.metrics.registry import PREFIX
from tracker_diag.trackers.panels import CHARTS, NAME, OUTCOME, RULES, in_order, outcome_keys

VIEW_KEY = "tracker-diag"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"

RUNS = 50
"""Newest runs that are looked at for what there is to show."""

RULE = f"{PREFIX}rule/"
"""What the series of a rule's state begins with."""

COLUMNS = ["attributes.`Description`", *(f"tags.`{name}`" for name in ("diag.alert.state", "diag.first_break"))]
"""Of the list of runs."""

MOST_OUTCOMES = 8  # charts of rewards, evaluations and KL, where the runs of an experiment name them in their own ways


def view_path(experiment_id: str) -> str:
    """Where the view opens, below the address of the MLflow server."""
    return f"/#/experiments/{experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey={VIEW_KEY}"


def save_view(client: Any, name: str) -> tuple[str, bool]:
    """Save the view in an experiment, given by name or id; its id, and whether anything was written.

    Raises:
        DiagError: there is no such experiment, or the store cannot be reached.
    """
    from mlflow.exceptions import MlflowException

    try:
        experiment = client.get_experiment_by_name(name) or client.get_experiment(name)
        runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"], max_results=RUNS)
        present = experiment.tags.get(VIEW_TAG, "{}")
        view = chart_view(keys_in(present).union(*(shown_of(run.data.metrics) for run in runs)))
        if _shown(view) == _shown(present):
            return experiment.experiment_id, False
        client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, view)
    except MlflowException as error:
        raise DiagError(f"mlflow: experiment {name}: no view saved: {error}") from error
    return experiment.experiment_id, True


def _shown(view: str) -> tuple[object, object]:
    """What makes two views the same; when they were made does not."""
    parts = json.loads(view)
    return parts.get("name"), parts.get("state")


def shown_of(keys: Iterable[str]) -> set[str]:
    """Those of a run's `keys` that may have a chart: our own, and the outcomes of its trainer."""
    keys = list(keys)
    return {key for key in keys if key.startswith(PREFIX)} | {*outcome_keys(keys)}


def keys_in(view: str) -> set[str]:
    """The series that a view has charts of; none if it is no view of ours."""
    with suppress(ValueError, LookupError, TypeError, zlib.error):
        packed = str(json.loads(view)["state"]).removeprefix("deflate;")
        charts = json.loads(zlib.decompress(base64.b64decode(packed)))["compareRunCharts"]
        return {key for chart in charts for key in chart["selectedMetricKeys"]}
    return set()


def chart_view(keys: set[str]) -> str:
    """Value of the experiment tag `VIEW_TAG`.

    Args:
        keys: what there are charts of. Outcomes have one each, statistics one for each ratio pair, rules one a family.
    """
    charts: list[dict[str, object]] = []
    sections: list[dict[str, object]] = []

    def show(title: str, lines: Iterable[tuple[str, Sequence[str], str]]) -> None:
        """Add a section with a chart for each of `lines`: its title, its series, and the scale of its axis."""
        section = f"{VIEW_KEY}-section-{len(sections)}"
        there = [_chart(section, f"{section}-chart-{at}", *line) for at, line in enumerate(lines)]
        if there:
            size = {"columns": 2, "cardHeight": 280}  # wide enough for a legend with the names of the slices
            sections.append({"uuid": section, "name": title, "display": True, "isReordered": True, **size})
            charts.extend(there)

    outcomes = in_order(key for key in keys if not key.startswith(PREFIX))[:MOST_OUTCOMES]
    show(OUTCOME, ((key, [key], "linear") for key in outcomes))
    drawn = [chart for chart in CHARTS if not keys.isdisjoint(chart.keys)]
    for section, of_section in groupby(drawn, lambda chart: chart.section):
        show(section, ((chart.title, chart.keys, chart.statistic.scale) for chart in of_section))
    rules = sorted(key for key in keys if key.startswith(RULE))
    families = [[*family] for _, family in groupby(rules, lambda key: key.rstrip("0123456789"))]
    show(RULES, ((", ".join(key.removeprefix(RULE) for key in family), family, "linear") for family in families))
    state = {
        "compareRunCharts": charts,
        "compareRunSections": sections,
        "isAccordionReordered": True,
        "hideEmptyCharts": True,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        "selectedColumns": COLUMNS,
    }
    packed = "deflate;" + base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    now = int(time.time() * 1000)
    return json.dumps({"name": NAME, "createdAt": now, "updatedAt": now, "state": packed})


def _chart(section: str, uuid: str, title: str, keys: Sequence[str], scale: str) -> dict[str, object]:
    return {
        "uuid": uuid,
        "type": "LINE",
        "metricSectionId": section,
        "displayName": title,
        "nodeLevelSystemMetricConfiguration": {"metric": title, "type": "diag"},  # else several keys are the title
        "runsCountToCompare": 10,
        "metricKey": keys[0],
        "selectedMetricKeys": keys,
        "scaleType": scale,
        "xAxisKey": "step",
        "range": {},
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
