"""MLflow: the traces of a run or an experiment."""

import re
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

from tracker_diag.trackers.mlflow.read import asking, experiment_called, paged
from tracker_diag.trackers.odd import Odd

PAGE = 200
"""Traces that are asked for at once."""


def traces_in(name: str, source: str, odd: Odd) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ARG001  # as each store
    """The traces of `<run id, or name or id of an experiment>[@tracking uri]`: their ids, and what `to_dict` gives.

    Raises:
        MissingExtra: mlflow is not installed.
        SourceError: "source: what is wrong".
    """
    with asking(name, source, "run id, or name or id of an experiment") as (client, wanted, _):
        run = wanted if re.fullmatch("[0-9a-f]{32}", wanted) else None
        experiment = client.get_run(run).info if run else experiment_called(client, wanted, source)
        place = "locations" if "locations" in signature(client.search_traces).parameters else "experiment_ids"
        query = {place: [experiment.experiment_id], "run_id": run, "max_results": PAGE}
        for trace in paged(client.search_traces, **query):
            yield trace.info.trace_id, trace.to_dict()
