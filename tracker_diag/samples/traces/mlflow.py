"""A trace of MLflow, as `Trace.to_json` writes it."""

from collections.abc import Iterable, Mapping
from typing import Any

from tracker_diag.samples.traces.gather import record_of_spans
from tracker_diag.samples.traces.otel import span_of
from tracker_diag.samples.traces.spans import GIVEN, mapping
from tracker_diag.trackers.odd import Odd

BY_SOURCE = {"HUMAN": "human", "LLM_JUDGE": "judge", "CODE": "verifier"}
"""Which column of `samples` an assessment is, by who made it."""


def is_mlflow(document: Mapping[str, Any]) -> bool:
    """Whether it is a trace as `Trace.to_json` writes it."""
    return isinstance(document.get("info"), Mapping) and isinstance(document.get("data"), Mapping)


def record_of_mlflow(document: Mapping[str, Any], place: str, odd: Odd) -> dict[str, Any] | None:
    """The sample record of a trace; None of one that has no spans, which is counted."""
    info = document["info"]
    name = str(info.get("trace_id") or info.get("request_id") or place)
    spans = [span_of(span, {}, name) for span in document["data"].get("spans") or ()]
    if not spans:
        odd.count("traces without spans, left out", name)
        return None
    scores, tags = _assessments(info.get("assessments") or (), name, odd), mapping(info.get("tags"))
    metadata = mapping(info.get("trace_metadata", info.get("request_metadata")))
    return record_of_spans(name, spans, odd, [scores, tags, metadata])


def _assessments(given: Iterable[Mapping[str, Any]], trace: str, odd: Odd) -> dict[str, Any]:
    """Feedback by the column that it is: by its name, else by who gave it."""
    columns: dict[str, Any] = {}
    for assessment in given:
        value = mapping(assessment.get("feedback")).get("value")
        name = str(assessment.get("assessment_name"))
        if value is None or assessment.get("valid") is False:
            continue
        column = name if name in GIVEN else BY_SOURCE.get(mapping(assessment.get("source")).get("source_type", ""), "")
        if not column or column in columns:
            odd.count("assessments after the first one of their kind, left out", f"{name} of {trace}")
        else:
            columns[column] = value
    return columns
