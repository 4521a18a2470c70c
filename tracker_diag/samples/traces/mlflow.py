"""MLflow: traces of a run or an experiment, or as `Trace.to_json` writes them, and what is written back to them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.samples.traces.episode import episode
from tracker_diag.samples.traces.otel import NANO, span_of
from tracker_diag.samples.traces.sampled import MARKS_TAG, RULES_TAG
from tracker_diag.samples.traces.trace import GIVEN, Span, Trace, seconds_of
from tracker_diag.trackers.mlflow.read import asking
from tracker_diag.trackers.odd import Odd

PAGE = 200
"""Traces that are asked for at once."""
BY_SOURCE = {"HUMAN": "human", "LLM_JUDGE": "judge", "CODE": "verifier"}
"""Which column of `samples` an assessment is, by who made it."""
NOT_THERE = {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}
EXPECTED = "expected mlflow:<run id, or name or id of an experiment>[@tracking uri]"


def is_mlflow(document: Mapping[str, Any]) -> bool:
    """Whether it is a trace as `Trace.to_json` writes it."""
    return isinstance(document.get("info"), Mapping) and isinstance(document.get("data"), Mapping)


def traces_in(name: str, source: str) -> Iterator[Mapping[str, Any]]:
    """The traces of `<run id, or name or id of an experiment>[@tracking uri]`, as `Trace.to_dict` gives them.

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
            yield from (trace.to_dict() for trace in page)
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
        for trace, of in tags.items():
            for key, value in of.items():
                if value is None:
                    client.delete_trace_tag(trace, key)
                else:
                    client.set_trace_tag(trace, key, value)
            _assess(client, trace, of, titles)


def _assess(client: Any, trace: str, of: Mapping[str, str | None], titles: Mapping[str, str]) -> None:
    """Have the trace's assessments of ours be those of `of`."""
    try:
        from mlflow.entities import AssessmentSource, Feedback
        from mlflow.tracing.client import TracingClient
    except ImportError:
        return
    assessing = TracingClient(client.tracking_uri)
    there = {one.name: one.assessment_id for one in client.get_trace(trace).info.assessments if one.name in of}
    for key, value in of.items():
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


def trace_of_mlflow(document: Mapping[str, Any], odd: Odd) -> Trace | None:
    """What the agent did in a trace; None of one that has no spans, which is counted."""
    info, data = document["info"], document["data"]
    name = str(info.get("trace_id") or info.get("request_id"))
    spans = [_span(name, one) for one in data.get("spans") or ()]
    if not spans:
        odd.count("traces without spans, left out", name)
        return None
    tags, metadata = (_pairs(info, *keys) for keys in (("tags",), ("trace_metadata", "request_metadata")))
    scores = _assessments(info.get("assessments") or (), name, odd)
    return replace(episode(name, spans, odd, beside=[scores, tags, metadata]), tagged=frozenset(tags))


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


def _span(trace: str, one: Mapping[str, Any]) -> Span:
    """A span in the form of MLflow 3, or in that of MLflow 2."""
    status, context = one.get("status"), one.get("context") or {}
    if isinstance(status, Mapping):
        code, message = status.get("code"), status.get("message")
    else:
        code, message = one.get("status_code"), one.get("status_message")
    events = [event.get("attributes") or {} for event in one.get("events") or ()]
    said = [f"{event.get('exception.type', '')} {event.get('exception.message', '')}" for event in events]
    return span_of(
        (trace, str(one.get("span_id") or context.get("span_id")), one.get("parent_span_id") or one.get("parent_id")),
        str(one.get("name", "")),
        (
            seconds_of(one.get("start_time_unix_nano", one.get("start_time")), NANO),
            seconds_of(one.get("end_time_unix_nano", one.get("end_time")), NANO),
        ),
        {key: value for key, value in (one.get("attributes") or {}).items() if key != "mlflow.traceRequestId"},
        failed=code in {"ERROR", "STATUS_CODE_ERROR"},
        said=[message, *said],
    )


def _pairs(info: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return next((dict(info[name]) for name in names if isinstance(info.get(name), Mapping)), {})


def _assessments(given: Iterable[Mapping[str, Any]], trace: str, odd: Odd) -> dict[str, Any]:
    """Feedback by the column that it is: by its name, else by who gave it."""
    found: dict[str, Any] = {}
    for one in given:
        feedback = one.get("feedback")
        name, kind = str(one.get("assessment_name")), str((one.get("source") or {}).get("source_type"))
        if not isinstance(feedback, Mapping) or feedback.get("value") is None or one.get("valid") is False:
            continue
        if name in (RULES_TAG, MARKS_TAG):  # written back by us, and nobody's score
            continue
        column = name if name in GIVEN else BY_SOURCE.get(kind, "")
        if not column or column in found:
            odd.count("assessments beside the first one of their kind, left out", f"{name} of {trace}")
        else:
            found[column] = feedback["value"]
    return found
