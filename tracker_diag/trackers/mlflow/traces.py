"""MLflow: the traces of a run or an experiment, and what is written back to them."""

from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.trackers.mlflow.read import asking
from tracker_diag.trackers.odd import Odd

PAGE = 200
"""Traces that are asked for at once."""
NOT_THERE = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}
EXPECTED = "expected mlflow:<run id, or name or id of an experiment>[@tracking uri]"


def traces_in(name: str, source: str, odd: Odd) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ARG001  # as each store
    """The traces of `<run id, or name or id of an experiment>[@tracking uri]`: their ids, and what `to_dict` gives.

    Raises:
        MissingExtra: mlflow is not installed.
        SourceError: "source: what is wrong".
    """
    wanted, _, uri = name.rpartition("@") if "@" in name else (name, "", "")
    if not wanted:
        raise SourceError(f"{source}: {EXPECTED}")
    with asking(uri, source) as client:
        experiment, run = _place(client, wanted, source)
        place = "locations" if "locations" in signature(client.search_traces).parameters else "experiment_ids"
        token = None
        while True:
            page = client.search_traces(**{place: [experiment]}, run_id=run, max_results=PAGE, page_token=token)
            yield from ((trace.info.trace_id, trace.to_dict()) for trace in page)
            token = page.token
            if not token:
                return


def write_back(name: str, source: str, tags: Mapping[str, Mapping[str, str | None]], titles: Mapping[str, str]) -> None:
    """Write `tags` of traces, by the ids of these, as tags and as assessments; one that is None is taken away.

    MLflow before 3.2 gets tags alone.

    Args:
        titles: of the rules that tags name, for the rationale.

    Raises:
        SourceError: "source: what is wrong".
    """
    uri = name.rpartition("@")[2] if "@" in name else ""
    with asking(uri, source) as client:
        for trace, changed in tags.items():
            for key, value in changed.items():
                if value is None:
                    client.delete_trace_tag(trace, key)
                else:
                    client.set_trace_tag(trace, key, value)
            _assess(client, trace, changed, titles)


def _assess(client: Any, trace: str, tags: Mapping[str, str | None], titles: Mapping[str, str]) -> None:
    """Have the trace's assessments of ours be those of `tags`."""
    try:
        from mlflow.entities import AssessmentSource, Feedback
        from mlflow.tracing.client import TracingClient
    except ImportError:
        return
    assessing = TracingClient(client.tracking_uri)
    there = {
        known.name: known.assessment_id for known in client.get_trace(trace).info.assessments if known.name in tags
    }
    for key, value in tags.items():
        if value is None:
            if key in there:
                assessing.delete_assessment(trace, there[key])
            continue
        rationale = "; ".join(f"{rule} {titles[rule]}" for rule in value.split(", ") if rule in titles) or None
        source = AssessmentSource(source_type="CODE", source_id="tracker_diag")
        feedback = Feedback(name=key, value=value, source=source, rationale=rationale, trace_id=trace)
        if key in there:
            assessing.update_assessment(trace, there[key], feedback)
        else:
            assessing.log_assessment(trace, feedback)


def _place(client: Any, wanted: str, source: str) -> tuple[str, str | None]:
    """The experiment, and the run if it is one that is wanted."""
    experiment = client.get_experiment_by_name(wanted)
    if experiment is not None:
        return experiment.experiment_id, None
    try:
        run = client.get_run(wanted)
    except Exception as error:
        if getattr(error, "error_code", "") not in NOT_THERE:
            raise
    else:
        return run.info.experiment_id, wanted
    try:
        return client.get_experiment(wanted).experiment_id, None
    except Exception as error:
        if getattr(error, "error_code", "") not in NOT_THERE:
            raise
        raise SourceError(f"{source}: no run and no experiment {wanted!r}; {EXPECTED}") from error
