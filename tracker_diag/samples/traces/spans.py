"""Spans of an agent: plain values that all readers give, whatever wrote them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from tracker_diag.samples.columns import Columns

Kind: TypeAlias = Literal["tool", "agent", "llm", "other"]

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("tool", "execute_tool", "function", "search", "retriever"), "tool"),
    **dict.fromkeys(("llm", "chat_model", "chat", "generation", "completion", "text_completion"), "llm"),
    **dict.fromkeys(("agent", "invoke_agent", "create_agent"), "agent"),
    "generate_content": "llm",
}
"""What the formats call the three kinds of span that count, in lower case. A retriever is a tool that searches."""

STEP_KEYS = (
    "step", "training_step", "train_step", "global_step", "train/global_step", "trainer/global_step", "diag.step"
)  # fmt: skip
RUN_KEYS = ("run_id", "mlflow.sourceRun", "training_run_id")
OTHERS = {"retokenised", "turns", "calls", "text", "tokens"}
GIVEN = tuple(name for name in Columns.__annotations__ if name not in OTHERS)
"""Columns of `samples` that an attribute of a span or a trace may give, by this name or as `diag.<name>`."""

READ = {*GIVEN, *(f"diag.{name}" for name in GIVEN), *STEP_KEYS, *RUN_KEYS}
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of an agent."""

    trace: str
    id: str
    parent: str | None
    kind: Kind
    name: str
    start: float | None
    """Seconds since 1970; None where it is not known."""
    seconds: float | None
    """How long it took."""
    status: str = "ok"
    """As that of a call: ok, error or timeout."""
    inputs: Any = None
    outputs: Any = None
    tokens: float | None = None
    """That a model has written, or the result of a tool has."""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What may say step, run, reward and other columns."""


def kept(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of `attributes` that are read; most spans have none, and there may be a million of them."""
    return {key: value for key, value in attributes.items() if key in READ} or NOTHING


def kind_of(*words: object) -> Kind:
    """The kind that the first known word of `words` says."""
    for word in words:
        if (kind := KINDS.get(str(word).strip().lower())) is not None:
            return kind
    return "other"


def status_of_error(*texts: object) -> str:
    """The status of what has failed, by the name of the exception or the message."""
    text = " ".join(str(text_part) for text_part in texts if text_part).lower()
    return "timeout" if "timeout" in text or "timed out" in text else "error"


def seconds_of(value: Any, per_second: float = 1.0) -> float | None:
    """A point in time in seconds since 1970: of a number of which `per_second` make one, or of ISO 8601 text."""
    if isinstance(value, str) and not value.strip().isdecimal():
        try:
            at = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
        return (at if at.tzinfo else at.replace(tzinfo=timezone.utc)).timestamp()
    try:
        seconds = float(value) / per_second
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def between(start: float | None, end: float | None) -> float | None:
    """Seconds from `start` to `end`, where both are known."""
    return None if start is None or end is None else end - start


def parsed(value: Any) -> Any:
    """The JSON in a text; the text itself if it is none."""
    if isinstance(value, str) and value[:1] in '{["' and value[-1:] in '}]"':
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
