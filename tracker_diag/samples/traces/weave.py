"""W&B Weave: calls as an export has them, one object each, and as the client sends them, begin and end separately."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tracker_diag.samples.traces.spans import Kind, Span, between, kept, kind_of, mapping, seconds_of, status_of_error

MODELS = ("openai.", "anthropic.", "litellm.", "mistralai.", "google.", "cohere.", "groq.", "together.")
"""How the names of calls begin that Weave's own patches of model clients make."""
READ = ("id", "trace_id", "parent_id", "op_name", "started_at", "ended_at", "inputs", "output", "exception", "summary",
        "attributes", "wb_run_id", "wb_run_step")  # fmt: skip
"""What is read of a call."""


class WeaveCalls:
    """Collects calls; the two halves of a call may come in either order."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, Any]] = {}

    def put_call(self, document: Mapping[str, Any]) -> bool:
        """Take in `document`, and say whether it is a call of Weave or one half of one."""
        call = document if "op_name" in document else mapping(document.get("start", document.get("end")))
        if "trace_id" in call:
            known = {key: call[key] for key in READ if call.get(key) is not None}
            self._calls.setdefault(str(call.get("id")), {}).update(known)
        return "trace_id" in call

    def spans(self) -> Iterator[Span]:
        """All calls, as spans; they are let go."""
        for call in list(self._calls):
            yield _span(self._calls.pop(call))


def _span(call: Mapping[str, Any]) -> Span:
    """The call as a span; its run and step are those of the run of W&B in which it was made."""
    operation = str(call.get("op_name", ""))
    name = operation.rpartition("/op/")[2].partition(":")[0] if "/op/" in operation else operation
    about = dict(mapping(call.get("attributes")))
    kind: Kind = "llm" if name.startswith(MODELS) else kind_of(mapping(about.get("weave")).get("kind", ""))
    if call.get("wb_run_id"):
        about.setdefault("run_id", str(call["wb_run_id"]).rpartition("/")[2])
    if call.get("wb_run_step") is not None:
        about.setdefault("step", call["wb_run_step"])
    start, exception = seconds_of(call.get("started_at")), call.get("exception")
    return Span(
        str(call["trace_id"]),
        str(call.get("id")),
        call.get("parent_id"),
        kind,
        name,
        start,
        between(start, seconds_of(call.get("ended_at"))),
        status_of_error(_without_trace(exception)) if exception else "ok",
        call.get("inputs"),
        call.get("output"),
        _tokens(call.get("summary")) if kind == "llm" else None,
        kept(about),
    )


def _without_trace(exception: Any) -> str:
    """Type and message of an exception, without where it was raised."""
    try:
        decoded = json.loads(exception)
        return f"{decoded['type']} {decoded['message']}"
    except (TypeError, ValueError, LookupError, RecursionError):
        return str(exception)


def _tokens(summary: Any) -> float | None:
    """Tokens that models have written, over all models of the call."""
    models = map(mapping, mapping(mapping(summary).get("usage")).values())
    counts = [model.get("completion_tokens", model.get("output_tokens")) for model in models]
    numbers = [float(count) for count in counts if isinstance(count, int | float)]
    return sum(numbers) if numbers else None
