"""From the spans of a trace to what the agent did: prompt, completion, tool calls. Linear in the number of spans."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tracker_diag.samples.messages import Message, calls_in, is_cut, messages_in, split, status_of
from tracker_diag.samples.traces.trace import Span, Trace, told
from tracker_diag.trackers.odd import Odd


def episode(trace: str, spans: Sequence[Span], odd: Odd, *, beside: Sequence[Mapping[str, Any]] = ()) -> Trace:
    """What the agent did in one trace.

    Args:
        beside: what the trace itself says, such as its tags; it counts before what the spans say.
    """
    root = _root(spans, odd)
    ordered = sorted(spans, key=lambda span: (span.start is None, span.start or 0.0))
    models = [span for span in ordered if span.kind == "llm"]
    prompt, completion = _conversation(root, models)
    tools = [_call(span, odd) for span in ordered if span.kind == "tool"]
    step, run, given = told([*beside, root.attributes, *(span.attributes for span in ordered if span.attributes)])
    written = [span.tokens for span in models if span.tokens is not None]
    if written:
        given.setdefault("length", sum(written))
    if models and is_cut(models[-1].outputs):
        given.setdefault("truncated", True)
    begins = [span.start for span in spans if span.start is not None]
    ends = [span.end for span in spans if span.end is not None]
    time = root.start if root.start is not None else min(begins, default=None)
    end = root.end if root.end is not None else max(ends, default=None)
    seconds = end - time if time is not None and end is not None and end >= time else None
    requested = calls_in(completion)
    turns = len(models) or sum(message["role"] == "assistant" for message in completion)
    return Trace(trace, run, step, time, seconds, prompt, completion, tools or requested, turns, given)


def _root(spans: Sequence[Span], odd: Odd) -> Span:
    """The span that the others are part of; of several, the first. What does not hang together is counted."""
    known = {span.id: span for span in spans}
    children: dict[str, list[Span]] = defaultdict(list)
    roots: list[Span] = []
    for span in spans:
        if span.parent is None:
            roots.append(span)
        elif span.parent in known:
            children[span.parent].append(span)
            before = known[span.parent].start
            if span.start is not None and before is not None and span.start < before:
                odd.count("spans that begin before their parent: the clocks differ", _named(span))
    orphans = [span for span in spans if span.parent is not None and span.parent not in known]
    if orphans:
        odd.count("spans whose parent is missing, taken for parts of their trace", _named(orphans[0]), len(orphans))
    seen: set[str] = set()
    waiting = [*roots, *orphans]
    while waiting:
        span = waiting.pop()
        if span.id not in seen:
            seen.add(span.id)
            waiting += children[span.id]
    if lost := [span for span in spans if span.id not in seen]:
        odd.count("spans that are their own ancestors, taken for parts of their trace", _named(lost[0]), len(lost))
    return min(roots or orphans or spans, key=lambda span: (span.start is None, span.start or 0.0))


def _call(span: Span, odd: Odd) -> dict[str, Any]:
    seconds = None if span.start is None or span.end is None else span.end - span.start
    if seconds is not None and seconds < 0:
        odd.count("tool calls that end before they begin, their time is left out", _named(span))
        seconds = None
    inputs = span.inputs
    if isinstance(inputs, Mapping) and set(inputs) == {"arguments"}:
        inputs = inputs["arguments"]
    if isinstance(inputs, str) and not inputs.lstrip().startswith("{"):
        inputs = {"input": inputs} if inputs.strip() else ""  # a plain text, and no JSON that is broken
    status = status_of(span.outputs) if span.status == "ok" else span.status
    cut = span.attributes.get("truncated", span.outputs.get("truncated") if isinstance(span.outputs, Mapping) else None)
    call = {"name": span.name, "arguments": "" if inputs is None else inputs, "status": status}
    more = {"seconds": seconds, "tokens": span.tokens, "truncated": None if cut is None else bool(cut)}
    return call | {key: value for key, value in more.items() if value is not None}


def _conversation(root: Span, models: Sequence[Span]) -> tuple[list[Message], list[Message]]:
    """What the last request to the model held, and its answer; without messages what the root took and gave."""
    for span in reversed(models):
        if asked := messages_in(span.inputs):
            return split([*asked, *(messages_in(span.outputs) or _said("assistant", span.outputs))])
    asked = messages_in(root.inputs) or _said("user", root.inputs)
    answered = messages_in(root.outputs) or _said("assistant", root.outputs)
    if not answered and models:
        answered = _said("assistant", models[-1].outputs)
    if any(message["role"] == "user" for message in answered):  # the root gave back the whole conversation
        return split(answered)
    return split([*asked, *answered])


def _said(role: str, value: Any) -> list[Message]:
    """A message that says `value`: a text, the only text in a mapping, or JSON."""
    if isinstance(value, Mapping) and len(value) == 1:
        value = next(iter(value.values()))
    if value is None or value in ("", {}):
        return []
    return [{"role": role, "content": value if isinstance(value, str) else json.dumps(value, default=repr)}]


def _named(span: Span) -> str:
    return f"{span.name} {span.id} of trace {span.trace}"
