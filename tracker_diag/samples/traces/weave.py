"""W&B Weave: calls as an export has them, one object each, and as the client sends them, begin and end apart."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tracker_diag.samples.traces.trace import Kind, Span, kept, kind_of, seconds_of, status_of_error

MODELS = ("openai.", "anthropic.", "litellm.", "mistralai.", "google.", "cohere.", "groq.", "together.")
"""How the names of calls begin that Weave's own patches of model clients make."""
READ = {"id", "trace_id", "parent_id", "op_name", "started_at", "ended_at", "inputs", "output", "exception", "summary",
        "attributes", "wb_run_id", "wb_run_step"}  # fmt: skip
"""What is read of a call."""


class WeaveCalls:
    """Collects calls; the two halves of a call may come in either order."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, Any]] = {}

    @staticmethod
    def takes(document: Mapping[str, Any]) -> bool:
        """Whether `document` is a call or one half of one."""
        half = document.get("start", document.get("end"))
        return ("op_name" in document and "trace_id" in document) or (isinstance(half, Mapping) and "trace_id" in half)

    def put_call(self, document: Mapping[str, Any]) -> None:
        """Take in a call or one half of one."""
        half = document.get("start", document.get("end")) if "op_name" not in document else document
        known = self._calls.setdefault(str(half["id"] if half else ""), {})
        known.update({key: value for key, value in (half or {}).items() if key in READ and value is not None})

    def spans(self) -> Iterator[Span]:
        """All calls, as spans; they are let go."""
        for call in list(self._calls):
            yield _span(self._calls.pop(call))


def _span(call: Mapping[str, Any]) -> Span:
    operation = str(call.get("op_name", ""))
    name = operation.rpartition("/op/")[2].partition(":")[0] if "/op/" in operation else operation
    attributes = call.get("attributes")
    about: dict[str, Any] = dict(attributes) if isinstance(attributes, Mapping) else {}
    weave = about.pop("weave", None)
    weave_kind = weave.get("kind", "") if isinstance(weave, Mapping) else ""
    kind: Kind = "llm" if name.startswith(MODELS) else kind_of(weave_kind)
    if call.get("wb_run_id"):
        about.setdefault("run_id", str(call["wb_run_id"]).rpartition("/")[2])
    if call.get("wb_run_step") is not None:
        about.setdefault("step", call["wb_run_step"])
    exception = call.get("exception")
    return Span(
        str(call.get("trace_id")),
        str(call.get("id")),
        call.get("parent_id"),
        kind,
        name,
        seconds_of(call.get("started_at")),
        seconds_of(call.get("ended_at")),
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
    usage = summary.get("usage") if isinstance(summary, Mapping) else None
    models = [model for model in usage.values() if isinstance(model, Mapping)] if isinstance(usage, Mapping) else []
    counts = [model.get("completion_tokens", model.get("output_tokens")) for model in models]
    numbers = [float(count) for count in counts if isinstance(count, int | float)]
    return sum(numbers) if numbers else None
