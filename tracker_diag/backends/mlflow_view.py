"""A chart view for MLflow's run page: tails, effective sample size, KL and pictures, ready to open.

The format is that of MLflow 3.17's front end and undocumented: best effort, never a reason to fail.
"""

import base64
import json
import time
import zlib
from collections.abc import Sequence

from tracker_diag.metrics.registry import PREFIX
from tracker_diag.slices import CONTEXT

VIEW_KEY = "tracker-diag"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW_KEY}"

_LINES = {
    "Tails: p95 of |log-ratio| by slice": ("p95", "log"),
    "Effective sample size of tokens, share of n": ("ess", "linear"),
    "Effective sample size of sequences, share of n": ("ess_sequence", "linear"),
}
_PICTURES = "Distribution of |log-ratio|, step by step"


def view_path(experiment_id: str) -> str:
    """Where the view opens, below the address of the MLflow server."""
    return f"/#/experiments/{experiment_id}/runs?compareRunsMode=CHART&viewStateShareKey={VIEW_KEY}"


def chart_view(pairs: Sequence[str], image_step: int) -> str:
    """Value of the experiment tag `VIEW_TAG`: charts of `pairs`, the pictures opened at `image_step`."""
    charts: list[dict[str, object]] = []
    sections: list[dict[str, object]] = []
    for title, (stat, scale) in _LINES.items():
        section = _section(title, sections)
        for pair in pairs:
            keys = [f"{PREFIX}{pair}/{name}/{stat}" for name in CONTEXT]
            charts.append(_chart("LINE", section, len(charts), keys[0]) | _line(keys, scale))
        if stat == "p95":
            section = _section(_PICTURES, sections)
            for pair in pairs:
                key = f"{PREFIX}{pair}/tail"
                charts.append(_chart("IMAGE", section, len(charts), key) | {"imageKeys": [key], "step": image_step})
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
    return json.dumps({"name": "Tail diagnostics", "createdAt": now, "updatedAt": now, "state": packed})


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
