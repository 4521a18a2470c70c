"""W&B Weave: calls as an export has them, one object each."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.samples.traces.spans import (
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

MODELS = ("openai.", "anthropic.", "litellm.", "mistralai.", "google.", "cohere.", "groq.", "together.")
"""How the names of calls begin that Weave's own patches of model clients make."""


def is_weave(document: Mapping[str, Any]) -> bool:
    """Whether it is a call."""
    return "op_name" in document and "trace_id" in document


def span_of_weave(call: Mapping[str, Any]) -> Span:
    """The call as a span; its run and step are those of the run of W&B in which it was made."""
    operation = str(call["op_name"])
    name = operation.rpartition("/op/")[2].partition(":")[0] if "/op/" in operation else operation
    about = dict(mapping(call.get("attributes")))
    kind: Kind = "llm" if name.startswith(MODELS) else kind_of(mapping(about.get("weave")).get("kind", ""))
    if call.get("wb_run_id"):
        about.setdefault("run_id", str(call["wb_run_id"]).rpartition("/")[2])
    if call.get("wb_run_step") is not None:
        about.setdefault("step", call["wb_run_step"])
    start, exception = seconds_of(call.get("started_at")), call.get("exception")
    raised = mapping(parsed(exception))
    texts = [raised.get(key) for key in ("type", "message")]  # without where it was raised
    return Span(
        str(call["trace_id"]),
        str(call.get("id")),
        str(call["parent_id"]) if call.get("parent_id") else None,
        kind,
        name,
        start,
        between(start, seconds_of(call.get("ended_at"))),
        status_of_error(*([exception] if None in texts else texts)) if exception else "ok",
        call.get("inputs"),
        call.get("output"),
        _tokens(call.get("summary")) if kind == "llm" else None,
        kept(about),
    )


def _tokens(summary: Any) -> float | None:
    """Tokens that models have written, over all models of the call."""
    models = map(mapping, mapping(mapping(summary).get("usage")).values())
    counts = [model.get("completion_tokens", model.get("output_tokens")) for model in models]
    numbers = [float(count) for count in counts if isinstance(count, int | float)]
    return sum(numbers) if numbers else None
