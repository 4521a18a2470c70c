"""Chats: an object of messages a line, with its reward and more beside it; Trackio's traces are such objects too."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.samples.messages import calls_in, is_cut, messages_in, split
from tracker_diag.samples.records import PROMPTS, TEXTS, messages_of
from tracker_diag.samples.traces.episode import episode
from tracker_diag.samples.traces.trace import Span, Trace, kind_of, seconds_of, status_of_error, told
from tracker_diag.trackers.odd import Odd

TIMES = ("time", "timestamp", "started_at", "start_time", "created_at", "created")
IDS = ("id", "trace_id", "request_id", "custom_id")


def is_chat(document: Mapping[str, Any]) -> bool:
    """Whether it holds messages, or a prompt and a completion."""
    pair = any(name in document for name in PROMPTS) and any(name in document for name in TEXTS)
    return pair or bool(document.get("spans")) or bool(_messages(document))


def trace_of_chat(document: Mapping[str, Any], place: str, odd: Odd) -> Trace:
    """What the agent did in one chat; spans beside the messages, as Trackio has them, tell times and failures."""
    metadata = document.get("metadata")
    beside = [metadata, document] if isinstance(metadata, Mapping) else [document]
    name = next((str(document[key]) for key in IDS if document.get(key)), place)
    messages = _messages(document)
    prompt, completion = split(messages) if messages else messages_of(document)
    step, run, given = told(beside)
    if is_cut(document.get("response", document)):
        given.setdefault("truncated", True)
    calls, turns = calls_in(completion), sum(message["role"] == "assistant" for message in completion)
    if isinstance(document.get("calls"), list):  # a sample record, as --samples writes it
        calls = [dict(call) for call in document["calls"] if isinstance(call, Mapping)]
    time = next((at for fields in beside for key in TIMES if (at := seconds_of(fields.get(key))) is not None), None)
    seconds = _duration(*beside)
    spans = document.get("spans")
    if isinstance(spans, list) and (read_spans := [_span(span, name) for span in spans if isinstance(span, Mapping)]):
        spanned = episode(name, read_spans, odd, beside=beside)
        calls, turns, given = spanned.calls or calls, max(turns, spanned.turns), {**spanned.given, **given}
        time, seconds = time or spanned.time or None, seconds or spanned.seconds
        if not messages:
            prompt, completion = spanned.prompt, spanned.completion
    return Trace(name, run, step, time, seconds, prompt, completion, calls, turns, given)


def _messages(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the object itself; or of a request and its response, as logs of a model's server have them."""
    if messages := messages_in(document.get("messages")):
        return [*messages, *messages_in(document.get("response"))]
    if asked := messages_in(document.get("request")):
        return [*asked, *messages_in(document.get("response"))]
    return []


def _span(span: Mapping[str, Any], trace: str) -> Span:
    """A span of Trackio."""
    start, duration = seconds_of(span.get("start_time")), span.get("duration_ms")
    end = seconds_of(span.get("end_time"))
    if end is None and start is not None and isinstance(duration, int | float):
        end = start + duration / 1e3
    if start is None and isinstance(duration, int | float):
        start, end = 0.0, duration / 1e3  # when it was is not known, but how long it took
    usage = span.get("usage")
    tokens = usage.get("completion_tokens", usage.get("output_tokens")) if isinstance(usage, Mapping) else None
    failed = span.get("error") or str(span.get("status", "ok")).lower() in {"error", "failed", "failure", "timeout"}
    metadata = span.get("metadata")
    return Span(
        trace,
        str(span.get("id")),
        str(span["parent_id"]) if span.get("parent_id") else None,
        kind_of(span.get("kind", "")),
        str(span.get("name", "")),
        start,
        end,
        status_of_error(span.get("status"), span.get("error")) if failed else "ok",
        span.get("input"),
        span.get("output"),
        float(tokens) if isinstance(tokens, int | float) else None,
        metadata if isinstance(metadata, Mapping) else {},
    )


def _duration(*beside: Mapping[str, Any]) -> float | None:
    for fields in beside:
        for key, size in (("duration_ms", 1e3), ("latency_ms", 1e3), ("seconds", 1.0)):
            if isinstance(value := fields.get(key), int | float) and value >= 0:
                return value / size
    return None
