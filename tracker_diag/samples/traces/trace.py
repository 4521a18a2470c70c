"""Spans and traces: plain values that all readers give, whatever wrote them."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from tracker_diag.samples.messages import Message, answer

Kind: TypeAlias = Literal["tool", "agent", "llm", "other"]

KINDS: dict[str, Kind] = {
    **dict.fromkeys(("tool", "execute_tool", "function", "search", "retriever"), "tool"),
    **dict.fromkeys(("llm", "chat_model", "chat", "generation", "completion", "text_completion"), "llm"),
    **dict.fromkeys(("agent", "invoke_agent", "create_agent"), "agent"),
    "generate_content": "llm",
}
"""What the formats call the three kinds of span that count, in lower case. A retriever is a tool that searches."""

STEP_KEYS = ("step", "training_step", "train_step", "global_step", "train/global_step", "trainer/global_step")
RUN_KEYS = ("run_id", "mlflow.sourceRun", "training_run_id")
GIVEN = (
    "reward", "advantage", "success", "correct", "verifier", "judge", "human", "length", "truncated", "void_turns",
    "logprob", "group", "env", "components", "policy_version", "scorer_error",
)  # fmt: skip
"""Columns of `samples` that an attribute of a span or a trace may give, by this name or as `diag.<name>`."""
READ = {*GIVEN, *(f"diag.{name}" for name in GIVEN), *STEP_KEYS, "diag.step", *RUN_KEYS}
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
    """Seconds since 1970, as `end`; None where it is not known."""
    end: float | None
    status: str = "ok"
    """As that of a call: ok, error or timeout."""
    inputs: Any = None
    outputs: Any = None
    tokens: float | None = None
    """That a model has written, or the result of a tool has."""
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What else of it is read: step, run, reward."""


@dataclass(frozen=True)
class Trace:
    """What an agent did at one task: one sample."""

    id: str
    run: str | None
    step: int | None
    time: float | None
    """When it began, in seconds since 1970."""
    seconds: float | None
    prompt: list[Message]
    completion: list[Message]
    calls: list[dict[str, Any]]
    turns: int
    """How often the model was asked."""
    given: Mapping[str, Any]
    """Columns of `samples`, by name, that the trace says itself."""
    tagged: frozenset[str] = frozenset()
    """Tags that it has where it is kept."""

    @property
    def end(self) -> float | None:
        return None if self.time is None else self.time + (self.seconds or 0.0)


@dataclass(frozen=True)
class Traces:
    """The traces of a source, in the order of time."""

    source: str
    traces: tuple[Trace, ...]
    notes: tuple[str, ...]
    """What was odd about it, a sentence each."""


def kept(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of `attributes` that are read; most spans have none, and there may be a million of them."""
    return {key: value for key, value in attributes.items() if key in READ} or NOTHING


def without_texts(trace: Trace) -> Trace:
    """`trace`, of whose texts only the last answer is left, which rules look at."""
    last = [{"role": "assistant", "content": answer(trace.completion)}] if trace.completion else []
    return replace(trace, prompt=[], completion=last)


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


def parsed(value: Any) -> Any:
    """JSON that stands in a text; the text itself where it is none."""
    if isinstance(value, str) and value[:1] in '{["' and value[-1:] in '}]"':
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def told(attributes: Iterable[Mapping[str, Any]]) -> tuple[int | None, str | None, dict[str, Any]]:
    """Step, run and columns that `attributes` say; those that come first count."""
    step: int | None = None
    run: str | None = None
    given: dict[str, Any] = {}
    for holder in attributes:
        for name in GIVEN:
            value = holder.get(f"diag.{name}", holder.get(name))
            if value is not None:
                given.setdefault(name, parsed(value))
        if step is None:
            steps = (_whole(holder[key]) for key in (*STEP_KEYS, "diag.step") if key in holder)
            step = next((at for at in steps if at is not None), None)
        if run is None:
            run = next((str(holder[key]) for key in RUN_KEYS if holder.get(key)), None)
    return step, run, given


def _whole(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and number >= 0 else None
