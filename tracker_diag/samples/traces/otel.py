"""OpenTelemetry: spans as OTLP's JSON, the SDK's own exporter and MLflow write them, and what their attributes mean.

The conventions: OpenInference, OpenTelemetry's `gen_ai`, OpenLLMetry's `traceloop` and MLflow's own.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any

from tracker_diag.samples.traces.gather import record_of_spans
from tracker_diag.samples.traces.spans import (
    GIVEN,
    Kind,
    Span,
    between,
    kept,
    kind_of,
    mapping,
    parsed,
    seconds_of,
    status_of_error,
)
from tracker_diag.trackers.odd import Odd

KIND_KEYS = ("openinference.span.kind", "gen_ai.operation.name", "mlflow.spanType", "traceloop.span.kind")
NAME_KEYS = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
INPUT_KEYS = ("gen_ai.tool.call.arguments", "gen_ai.input.messages", "mlflow.spanInputs", "input.value",
              "traceloop.entity.input", "tool.parameters")  # fmt: skip
OUTPUT_KEYS = ("gen_ai.tool.call.result", "gen_ai.output.messages", "mlflow.spanOutputs", "output.value",
               "traceloop.entity.output")  # fmt: skip
TOKEN_KEYS = ("gen_ai.usage.output_tokens", "llm.token_count.completion", "gen_ai.usage.completion_tokens")
FAILED = {2, "2", "STATUS_CODE_ERROR", "ERROR"}

NANO = 1e9
OPENINFERENCE = re.compile(r"llm\.(input|output)_messages\.(\d+)\.message\.(.+)")
_CALL = re.compile(r"tool_calls\.(\d+)\.tool_call\.(?:function\.)?(id|name|arguments)")
_TEXT = re.compile(r"contents\.(\d+)\.message_content\.text")


def is_otel(document: Mapping[str, Any]) -> bool:
    """Whether it is a request of OTLP, with resources, scopes and spans, or a span that the SDK printed."""
    requested = "resourceSpans" in document or "resource_spans" in document
    return requested or "span_id" in mapping(document.get("context"))


def spans_of_otel(document: Mapping[str, Any]) -> list[Span]:
    """The spans of a request of OTLP, or the one that the SDK has printed.

    Ids are texts and are not parsed: they are in hex by the specification, and in base64 as protobuf writes them.
    """
    if "context" in document:
        return [span_of(document, mapping(document.get("resource")))]
    return [
        span_of(span, mapping(resource.get("resource")))
        for resource in _list(document, "resourceSpans", "resource_spans")
        for scope in _list(resource, "scopeSpans", "scope_spans")
        for span in _list(scope, "spans")
    ]


def span_of(span: Mapping[str, Any], resource: Mapping[str, Any], trace: str | None = None) -> Span:
    """A span by the meaning of its attributes.

    Args:
        resource: whose `attributes` are those of the span as well.
        trace: the id of its trace, where the span does not have it.
    """
    fields = {**span, **mapping(span.get("context"))}
    attributes = _attributes(resource.get("attributes")) | _attributes(span.get("attributes"))
    kind = kind_of(*(parsed(attributes[key]) for key in KIND_KEYS if key in attributes))
    inputs, outputs = _first(attributes, INPUT_KEYS), _first(attributes, OUTPUT_KEYS)
    if kind == "llm":
        inputs, outputs = _of_model(attributes, inputs, outputs)
    start, end = (
        seconds_of(_first(fields, (f"{side}TimeUnixNano", f"{side}_time_unix_nano", f"{side}_time")), NANO)
        for side in ("start", "end")
    )
    parent = _first(fields, ("parentSpanId", "parent_span_id", "parent_id"))
    name = (_first(attributes, NAME_KEYS) if kind == "tool" else None) or str(span.get("name", ""))
    return Span(
        intern(trace or str(_first(fields, ("traceId", "trace_id")))),
        str(_first(fields, ("spanId", "span_id"))),
        intern(str(parent)) if parent else None,
        kind,
        intern(str(name).removeprefix("execute_tool ")),
        start,
        between(start, end),
        _status(span, attributes),
        inputs,
        outputs,
        _tokens(attributes, kind),
        kept({**mapping(parsed(attributes.get("metadata"))), **attributes}),
    )


def _status(span: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    status, error = mapping(span.get("status")) or span, attributes.get("error.type")  # MLflow 2 has it in the span
    if status.get("code", status.get("status_code")) not in FAILED and not error:
        return "ok"
    events = [_attributes(event.get("attributes")) for event in _list(span, "events")]
    raised = (event.get(f"exception.{part}") for event in events for part in ("type", "message"))
    texts = (status.get(key) for key in ("message", "description", "status_message"))
    return status_of_error(error, *texts, *raised)


def _of_model(attributes: Mapping[str, Any], inputs: Any, outputs: Any) -> tuple[Any, Any]:
    """Messages to and from a model, with the reason why it stopped."""
    flat = _openinference(attributes)
    inputs, outputs = flat["input"] or inputs, flat["output"] or outputs
    if system := parsed(attributes.get("gen_ai.system_instructions")):
        inputs = {"system": system, "messages": inputs}
    reasons = parsed(attributes.get("gen_ai.response.finish_reasons"))
    if isinstance(reasons, list | tuple) and reasons:
        outputs = {"messages": outputs, "finish_reason": reasons[0]}
    return inputs, outputs


def _openinference(attributes: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Messages that OpenInference has spread over attributes, such as `llm.input_messages.0.message.role`."""
    sides: dict[str, dict[int, dict[str, Any]]] = {"input": defaultdict(dict), "output": defaultdict(dict)}
    for key, value in attributes.items():
        if at := OPENINFERENCE.fullmatch(key):
            sides[at[1]][int(at[2])][at[3]] = value
    return {side: [_message(messages[place]) for place in sorted(messages)] for side, messages in sides.items()}


def _message(fields: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "user"}
    calls, texts = defaultdict[int, dict[str, Any]](dict), dict[int, Any]()
    for key, value in fields.items():
        if call := _CALL.fullmatch(key):
            calls[int(call[1])][call[2]] = value
        elif text := _TEXT.fullmatch(key):
            texts[int(text[1])] = value
        else:
            message[key] = value
    for key, parts in (("tool_calls", calls), ("content", texts)):
        if parts:
            message[key] = [parts[place] for place in sorted(parts)]
    return message


def _tokens(attributes: Mapping[str, Any], kind: Kind) -> float | None:
    usage = mapping(parsed(attributes.get("mlflow.chat.tokenUsage"))).get("output_tokens")
    tokens = usage if usage is not None else _first(attributes, TOKEN_KEYS)
    try:
        return None if kind == "other" or tokens is None else float(tokens)
    except (TypeError, ValueError):
        return None


def _first(holder: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((parsed(holder[key]) for key in keys if holder.get(key) is not None), None)


def _attributes(given: Any) -> dict[str, Any]:
    """Attributes by name; OTLP writes a list of keys and values that say their type."""
    if isinstance(given, Mapping):
        return dict(given)
    return {
        str(attribute["key"]): _value(attribute.get("value"))
        for attribute in given or ()
        if isinstance(attribute, Mapping) and "key" in attribute
    }


def _value(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    for kind, inner in value.items():
        if kind in {"arrayValue", "array_value"}:
            return [_value(item) for item in mapping(inner).get("values", ())]
        if kind in {"kvlistValue", "kvlist_value"}:
            return _attributes(mapping(inner).get("values"))
        return int(inner) if kind in {"intValue", "int_value"} else inner
    return None


def _list(holder: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    """The mappings in the list that `holder` has under one of `names`."""
    items = next((holder[name] for name in names if name in holder), None)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list | tuple) else []


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
        if value is None or assessment.get("valid") is False:
            continue
        name = str(assessment.get("assessment_name"))
        column = name if name in GIVEN else BY_SOURCE.get(mapping(assessment.get("source")).get("source_type", ""), "")
        if not column or column in columns:
            odd.count("assessments after the first one of their kind, left out", f"{name} of {trace}")
        else:
            columns[column] = value
    return columns
