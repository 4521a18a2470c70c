"""OpenTelemetry: spans as OTLP's JSON has them, as the SDK's own exporter prints them, and what their attributes mean.

The conventions: OpenInference, OpenTelemetry's `gen_ai`, OpenLLMetry's `traceloop` and MLflow's own.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from sys import intern
from typing import Any

from tracker_diag.samples.traces.trace import Kind, Span, kept, kind_of, parsed, seconds_of, status_of_error

KIND_KEYS = ("openinference.span.kind", "gen_ai.operation.name", "mlflow.spanType", "traceloop.span.kind")
NAME_KEYS = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
INPUT_KEYS = ("gen_ai.tool.call.arguments", "gen_ai.input.messages", "mlflow.spanInputs", "input.value",
              "traceloop.entity.input", "tool.parameters")  # fmt: skip
OUTPUT_KEYS = ("gen_ai.tool.call.result", "gen_ai.output.messages", "mlflow.spanOutputs", "output.value",
               "traceloop.entity.output")  # fmt: skip
TOKEN_KEYS = ("gen_ai.usage.output_tokens", "llm.token_count.completion", "gen_ai.usage.completion_tokens")

NANO = 1e9
OPENINFERENCE = re.compile(r"llm\.(input|output)_messages\.(\d+)\.message\.(.+)")
_CALL = re.compile(r"tool_calls\.(\d+)\.tool_call\.(id|function\.name|function\.arguments)")
_TEXT = re.compile(r"contents\.(\d+)\.message_content\.text")


def is_otlp(document: Mapping[str, Any]) -> bool:
    """Whether it is a request of OTLP, with resources, scopes and spans in it."""
    return "resourceSpans" in document or "resource_spans" in document


def is_printed(document: Mapping[str, Any]) -> bool:
    """Whether it is a span as the SDK prints it."""
    context = document.get("context")
    return isinstance(context, Mapping) and "span_id" in context


def spans_of_otlp(document: Mapping[str, Any]) -> Iterator[Span]:
    """All spans of a request of OTLP.

    Ids are texts and are not taken apart: they are in hex by the specification, and in base64 as protobuf writes them.
    """
    for resource in _list(document, "resourceSpans", "resource_spans"):
        about = _attributes(_mapping(resource.get("resource")).get("attributes"))
        for scope in _list(resource, "scopeSpans", "scope_spans"):
            for span in _list(scope, "spans"):
                status = _mapping(span.get("status"))
                events = [
                    {"name": event.get("name"), "attributes": _attributes(event.get("attributes"))}
                    for event in _list(span, "events")
                ]
                yield span_of(
                    (
                        str(span.get("traceId", span.get("trace_id"))),
                        str(span.get("spanId", span.get("span_id"))),
                        span.get("parentSpanId", span.get("parent_span_id")),
                    ),
                    str(span.get("name", "")),
                    (
                        seconds_of(span.get("startTimeUnixNano", span.get("start_time_unix_nano")), NANO),
                        seconds_of(span.get("endTimeUnixNano", span.get("end_time_unix_nano")), NANO),
                    ),
                    about | _attributes(span.get("attributes")),
                    failed=status.get("code") in {2, "2", "STATUS_CODE_ERROR"},
                    errors=[status.get("message"), *map(_exception, events)],
                )


def span_of_printed(document: Mapping[str, Any]) -> Span:
    """A span as `ReadableSpan.to_json` of the SDK writes it, which is what its console exporter prints."""
    context, status = _mapping(document.get("context")), _mapping(document.get("status"))
    about = _mapping(_mapping(document.get("resource")).get("attributes"))
    return span_of(
        (str(context.get("trace_id")), str(context.get("span_id")), document.get("parent_id")),
        str(document.get("name", "")),
        (seconds_of(document.get("start_time")), seconds_of(document.get("end_time"))),
        {**about, **_mapping(document.get("attributes"))},
        failed=status.get("status_code") == "ERROR",
        errors=[status.get("description"), *map(_exception, _list(document, "events"))],
    )


def span_of(
    ids: tuple[str, str, Any],
    name: str,
    times: tuple[float | None, float | None],
    attributes: Mapping[str, Any],
    *,
    failed: bool,
    errors: list[Any],
) -> Span:
    """A span by the meaning of its attributes.

    Args:
        ids: of the trace, of the span and of its parent, if it has one.
        times: of its start and its end, in seconds since 1970.
        failed: whether its status says so.
        said: texts that say what went wrong, if anything did.
    """
    kind = kind_of(*(parsed(attributes[key]) for key in KIND_KEYS if key in attributes))
    inputs, outputs = _first(attributes, INPUT_KEYS), _first(attributes, OUTPUT_KEYS)
    if kind == "llm":
        inputs, outputs = _of_model(attributes, inputs, outputs)
    failed = failed or bool(attributes.get("error.type"))
    status = status_of_error(attributes.get("error.type"), *errors) if failed else "ok"
    about = {**_mapping(parsed(attributes.get("metadata"))), **attributes}
    tool = _first(attributes, NAME_KEYS) if kind == "tool" else None
    trace, span, parent = ids
    return Span(
        intern(trace), span, intern(str(parent)) if parent else None, kind,
        intern(str(tool or name.removeprefix("execute_tool "))),
        *times, status, inputs, outputs, _tokens(attributes, kind), kept(about),
    )  # fmt: skip


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
        if not (at := OPENINFERENCE.fullmatch(key)):
            continue
        message = sides[at[1]][int(at[2])]
        if call := _CALL.fullmatch(at[3]):
            tool_call = message.setdefault("tool_calls", {}).setdefault(int(call[1]), {"function": {}})
            if call[2] == "id":
                tool_call["id"] = value
            else:
                tool_call["function"][call[2].removeprefix("function.")] = value
        elif text := _TEXT.fullmatch(at[3]):
            message.setdefault("texts", {})[int(text[1])] = value
        else:
            message[at[3]] = value
    return {side: [_message(messages[place]) for place in sorted(messages)] for side, messages in sides.items()}


def _message(fields: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "user", **fields}
    for name, key in (("tool_calls", "tool_calls"), ("texts", "content")):
        if name in fields:
            message[key] = [fields[name][place] for place in sorted(fields[name])]
    return message


def _tokens(attributes: Mapping[str, Any], kind: Kind) -> float | None:
    usage = _mapping(parsed(attributes.get("mlflow.chat.tokenUsage"))).get("output_tokens")
    tokens = usage if usage is not None else _first(attributes, TOKEN_KEYS)
    try:
        return None if kind == "other" or tokens is None else float(tokens)
    except (TypeError, ValueError):
        return None


def _first(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((parsed(attributes[key]) for key in keys if attributes.get(key) is not None), None)


def _exception(event: Mapping[str, Any]) -> str:
    attributes = _mapping(event.get("attributes"))
    return f"{attributes.get('exception.type', '')} {attributes.get('exception.message', '')}".strip()


def _attributes(given: Any) -> dict[str, Any]:
    """Attributes as OTLP writes them, a list of keys and values that say their type."""
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
            return [_value(item) for item in _mapping(inner).get("values", ())]
        if kind in {"kvlistValue", "kvlist_value"}:
            return _attributes(_mapping(inner).get("values"))
        if kind in {"intValue", "int_value"}:
            return int(inner)
        return inner
    return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(holder: Mapping[str, Any], *names: str) -> list[Mapping[str, Any]]:
    """The mappings in the list that `holder` has under one of `names`."""
    items = next((holder[name] for name in names if name in holder), None)
    return [item for item in items if isinstance(item, Mapping)] if isinstance(items, list | tuple) else []
