"""A trace of MLflow, as `Trace.to_json` writes it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tracker_diag.samples.traces.episode import episode
from tracker_diag.samples.traces.otel import NANO, span_of
from tracker_diag.samples.traces.sampled import MARKS_TAG, RULES_TAG
from tracker_diag.samples.traces.trace import GIVEN, Span, Trace, seconds_of
from tracker_diag.trackers.odd import Odd

BY_SOURCE = {"HUMAN": "human", "LLM_JUDGE": "judge", "CODE": "verifier"}
"""Which column of `samples` an assessment is, by who made it."""


def is_mlflow(document: Mapping[str, Any]) -> bool:
    """Whether it is a trace as `Trace.to_json` writes it."""
    return isinstance(document.get("info"), Mapping) and isinstance(document.get("data"), Mapping)


def trace_of_mlflow(document: Mapping[str, Any], odd: Odd) -> Trace | None:
    """What the agent did in a trace; None of one that has no spans, which is counted."""
    info, data = document["info"], document["data"]
    name = str(info.get("trace_id") or info.get("request_id"))
    spans = [_span(name, span) for span in data.get("spans") or ()]
    if not spans:
        odd.count("traces without spans, left out", name)
        return None
    tags, metadata = (_pairs(info, *keys) for keys in (("tags",), ("trace_metadata", "request_metadata")))
    scores = _assessments(info.get("assessments") or (), name, odd)
    return replace(episode(name, spans, odd, beside=[scores, tags, metadata]), tagged=frozenset(tags))


def _span(trace: str, span: Mapping[str, Any]) -> Span:
    """A span in the form of MLflow 3, or in that of MLflow 2."""
    status, context = span.get("status"), span.get("context") or {}
    if isinstance(status, Mapping):
        code, message = status.get("code"), status.get("message")
    else:
        code, message = span.get("status_code"), span.get("status_message")
    events = [event.get("attributes") or {} for event in span.get("events") or ()]
    errors = [f"{event.get('exception.type', '')} {event.get('exception.message', '')}" for event in events]
    return span_of(
        (
            trace,
            str(span.get("span_id") or context.get("span_id")),
            span.get("parent_span_id") or span.get("parent_id"),
        ),
        str(span.get("name", "")),
        (
            seconds_of(span.get("start_time_unix_nano", span.get("start_time")), NANO),
            seconds_of(span.get("end_time_unix_nano", span.get("end_time")), NANO),
        ),
        {key: value for key, value in (span.get("attributes") or {}).items() if key != "mlflow.traceRequestId"},
        failed=code in {"ERROR", "STATUS_CODE_ERROR"},
        errors=[message, *errors],
    )


def _pairs(info: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return next((dict(info[name]) for name in names if isinstance(info.get(name), Mapping)), {})


def _assessments(given: Iterable[Mapping[str, Any]], trace: str, odd: Odd) -> dict[str, Any]:
    """Feedback by the column that it is: by its name, else by who gave it."""
    columns: dict[str, Any] = {}
    for assessment in given:
        feedback = assessment.get("feedback")
        name, kind = str(assessment.get("assessment_name")), str((assessment.get("source") or {}).get("source_type"))
        if not isinstance(feedback, Mapping) or feedback.get("value") is None or assessment.get("valid") is False:
            continue
        if name in (RULES_TAG, MARKS_TAG):  # written back by us, and nobody's score
            continue
        column = name if name in GIVEN else BY_SOURCE.get(kind, "")
        if not column or column in columns:
            odd.count("assessments beside the first one of their kind, left out", f"{name} of {trace}")
        else:
            columns[column] = feedback["value"]
    return columns
