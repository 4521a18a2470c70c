"""Chats: an object of messages a line, with its reward and more in it; some trackers keep traces as such objects.

verifiers 0.4 has a graph of messages with named rewards: the branch to its newest message is the chat.
"""

from collections.abc import Mapping
from typing import Any

from tracker_diag.samples.messages import Message, calls_in, is_cut, messages_in, split
from tracker_diag.samples.records import PROMPTS, TEXTS, as_number, messages_of
from tracker_diag.samples.traces.gather import record_of, record_of_spans, turns_of
from tracker_diag.samples.traces.spans import Span, between, kind_of, mapping, seconds_of, status_of_error
from tracker_diag.trackers.odd import Odd

TIMES = ("time", "timestamp", "started_at", "start_time", "created_at", "created")
DURATIONS = {"duration_ms": 1e3, "latency_ms": 1e3, "seconds": 1.0}
"""Names of how long something took, and how many of its unit make a second."""
IDS = ("id", "trace_id", "request_id", "custom_id")


def is_chat(document: Mapping[str, Any]) -> bool:
    """Whether it holds messages, or a prompt and a completion."""
    pair = any(name in document for name in PROMPTS) and any(name in document for name in TEXTS)
    return pair or bool(document.get("spans")) or bool(_messages(document))


def record_of_chat(document: Mapping[str, Any], place: str, odd: Odd) -> dict[str, Any]:
    """The sample record of one chat; spans next to the messages say times and failures."""
    holders = [mapping(document.get("metadata")), document]
    name = next((str(document[key]) for key in IDS if document.get(key)), place)
    messages = _messages(document)
    prompt, completion = split(messages) if messages else messages_of(document)
    calls = calls_in(completion)
    if isinstance(document.get("calls"), list):  # a sample record, as --samples writes it
        calls = [dict(call) for call in document["calls"] if isinstance(call, Mapping)]
    own = record_of(
        name,
        holders,
        prompt,
        completion,
        calls=calls,
        turns=turns_of(completion),
        time=next((at for fields in holders for key in TIMES if (at := seconds_of(fields.get(key))) is not None), None),
        seconds=next((took for fields in holders if (took := _duration(fields)) is not None), None),
        truncated=True if is_cut(document.get("response", document)) else None,
    )
    given = document.get("spans")
    spans = [_span(span, name) for span in given if isinstance(span, Mapping)] if isinstance(given, list) else []
    if not spans:
        return own
    spanned = record_of_spans(name, spans, odd, holders)
    turns = max(own.get("turns", 0), spanned.get("turns", 0))
    return {**spanned, **own, "calls": spanned["calls"] or calls} | ({"turns": turns} if turns else {})


def _messages(document: Mapping[str, Any]) -> list[Message]:
    """Of the object itself; or of a request and its response, as logs of a model's server have them."""
    asked = messages_in(document.get("messages")) or messages_in(document.get("request"))
    return [*asked, *messages_in(document.get("response"))] if asked else []


def _span(span: Mapping[str, Any], trace: str) -> Span:
    """A span next to the messages, of plain values."""
    start, took = seconds_of(span.get("start_time")), _duration(span)
    usage = mapping(span.get("usage"))
    tokens = usage.get("completion_tokens", usage.get("output_tokens"))
    failed = span.get("error") or str(span.get("status", "ok")).lower() in {"error", "failed", "failure", "timeout"}
    return Span(
        trace,
        str(span.get("id")),
        str(span["parent_id"]) if span.get("parent_id") else None,
        kind_of(span.get("kind", "")),
        str(span.get("name", "")),
        start,
        between(start, seconds_of(span.get("end_time"))) if took is None else took,
        status_of_error(span.get("status"), span.get("error")) if failed else "ok",
        span.get("input"),
        span.get("output"),
        float(tokens) if isinstance(tokens, int | float) else None,
        mapping(span.get("metadata")),
    )


def _duration(fields: Mapping[str, Any]) -> float | None:
    known = ((fields.get(key), size) for key, size in DURATIONS.items())
    return next((value / size for value, size in known if isinstance(value, int | float) and value >= 0), None)


LIMITS = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}
"""Stop conditions that cut an episode off, as verifiers' own `is_truncated` counts them."""


def as_chat(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A trace of verifiers as an object of messages, any other object as it is.

    Its reward is the weighted sum of those that were scored.
    """
    nodes = document.get("nodes")
    if not (isinstance(nodes, list) and isinstance(document.get("rewards"), Mapping)):
        return document
    place, path = len(nodes) - 1, list[Any]()
    while isinstance(place, int) and 0 <= place < len(nodes) and isinstance(nodes[place], Mapping):
        path.append(nodes[place].get("message"))
        before = nodes[place].get("parent")
        place = before if isinstance(before, int) and before < place else -1  # parents come first
    scored = {name: given for name, given in document["rewards"].items() if isinstance(given, Mapping)}
    parts = {
        name: score * (as_number(given.get("weight", 1.0)) or 0.0)
        for name, given in scored.items()
        if (score := as_number(given.get("score"))) is not None
    }
    task = document.get("task")
    about: Mapping[str, Any] = task if isinstance(task, Mapping) else {}
    calls: Any = document.get("calls")
    last = calls[-1] if isinstance(calls, list) and calls and isinstance(calls[-1], Mapping) else {}
    cut = str(document.get("stop_condition")) in LIMITS or last.get("finish_reason") == "length"
    chat = {"id": document.get("id"), "messages": path[::-1], "components": parts if len(parts) > 1 else None}
    chat |= {"reward": sum(parts.values()) if parts else None, "env": about.get("type"), "group": about.get("key")}
    chat |= {"truncated": cut if calls else None}
    return {name: value for name, value in chat.items() if value is not None}
