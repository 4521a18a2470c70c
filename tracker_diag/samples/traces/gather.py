"""Spans until all of their trace are there, and the sample record that they come to."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracker_diag.samples.columns import NUMBERS
from tracker_diag.samples.messages import Message, answer, calls_in, is_cut, messages_in, split, status_of
from tracker_diag.samples.records import as_number
from tracker_diag.samples.traces.spans import GIVEN, RUN_KEYS, STEP_KEYS, Span, mapping, parsed
from tracker_diag.trackers.odd import Odd


class Gather:
    """Takes spans in any order, and gives records; texts that no record is made of are let go at once."""

    def __init__(self, odd: Odd) -> None:
        self._odd = odd
        self._traces: dict[str, dict[str, Span]] = {}
        self._asked: dict[str, Span] = {}
        """Of each trace the last span that asked a model with messages: they hold what was said before it."""

    def put_span(self, span: Span) -> None:
        """Take in a span; of two with the same id the last one counts."""
        spans = self._traces.setdefault(span.trace, {})
        if span.id in spans:
            self._odd.count("spans that come twice, the last one counts", f"{span.name} {span.id}")
        spans[span.id] = span
        if span.parent is not None and span.kind in ("tool", "other"):
            spans[span.id] = _bare(span)
        elif span.parent is not None and span.kind == "llm" and span.start is not None:
            last = self._asked.get(span.trace)
            if last is not None and span.start < (last.start or 0.0):
                spans[span.id] = _bare(span)
            elif messages_in(span.inputs):
                if last is not None and last.id != span.id:
                    spans[last.id] = _bare(last)
                self._asked[span.trace] = span

    def records(self) -> Iterator[dict[str, Any]]:
        """One record for each trace, in the order in which they came; its spans are let go."""
        for trace in list(self._traces):
            self._asked.pop(trace, None)
            yield record_of_spans(trace, [*self._traces.pop(trace).values()], self._odd)


def _bare(span: Span) -> Span:
    """Without its texts, but for the arguments of a tool; what its result says of the call is kept."""
    if span.kind != "tool":
        return replace(span, inputs=None, outputs=None)
    cut = mapping(span.outputs).get("truncated")
    status = status_of(span.outputs) if span.status == "ok" else span.status
    return replace(span, outputs=None if cut is None else {"truncated": cut}, status=status)


def record_of_spans(
    trace: str, spans: Sequence[Span], odd: Odd, holders: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The sample record of one trace, of which these are the spans in any order.

    Args:
        holders: what the trace itself says, such as its tags; it counts before what the spans say.
    """
    ordered = sorted(spans, key=lambda span: (span.start is None, span.start or 0.0))
    root = _root(ordered, odd)
    models = [span for span in ordered if span.kind == "llm"]
    prompt, completion = _conversation(root, models)
    written = [span.tokens for span in models if span.tokens is not None]
    time = root.start if root.start is not None else ordered[0].start
    ends = [span.start + (span.seconds or 0.0) for span in ordered if span.start is not None]
    took = root.seconds if root.seconds is not None else max(ends) - time if time is not None else None
    return record_of(
        trace,
        [*holders, root.attributes, *(span.attributes for span in ordered if span.attributes)],
        prompt,
        completion,
        time=time,
        seconds=took if took is not None and took >= 0 else None,
        calls=[_call(span, odd) for span in ordered if span.kind == "tool"] or calls_in(completion),
        turns=len(models) or turns_of(completion),
        length=sum(written) if written else None,
        truncated=True if models and is_cut(models[-1].outputs) else None,
    )


def record_of(
    trace: str, holders: Sequence[Mapping[str, Any]], prompt: list[Message], completion: list[Message], **more: Any
) -> dict[str, Any]:
    """A sample record in JSON values; what is not known is left out.

    Args:
        holders: attributes, tags or metadata that may say step, run and columns; those that come first count.
        more: values by their names in the record, where no holder says them.
    """
    record = {"id": trace, "prompt": prompt or None, "completion": completion or None, **more}
    record["text"] = answer(completion) if completion else None
    for name in GIVEN:
        keys = (f"diag.{name}", name)
        value = next((holder[key] for holder in holders for key in keys if holder.get(key) is not None), None)
        if value is not None:
            number = as_number(value) if name in NUMBERS else None  # trackers keep numbers as texts
            record[name] = parsed(value) if number is None else number
    steps = (_whole(holder[key]) for holder in holders for key in STEP_KEYS if key in holder)
    record["step"] = next((step for step in steps if step is not None), None)
    record["run"] = next((str(holder[key]) for holder in holders for key in RUN_KEYS if holder.get(key)), None)
    return {name: value for name, value in record.items() if value is not None}


def turns_of(completion: Sequence[Message]) -> int | None:
    """How often the model was asked."""
    return sum(message["role"] == "assistant" for message in completion) or None


def _root(spans: Sequence[Span], odd: Odd) -> Span:
    """The span that the others are part of; of several, the first. What does not hang together is counted.

    Args:
        spans: in the order of time.
    """
    known = {span.id: span for span in spans}
    children: dict[str, list[Span]] = defaultdict(list)
    roots, orphans = list[Span](), list[Span]()
    for span in spans:
        if span.parent is None:
            roots.append(span)
        elif (parent := known.get(span.parent)) is None:
            orphans.append(span)
            odd.count("spans whose parent is missing, taken for parts of their trace", _named(span))
        else:
            children[parent.id].append(span)
            if span.start is not None and parent.start is not None and span.start < parent.start:
                odd.count("spans that begin before their parent: the clocks differ", _named(span))
    waiting, seen = [*roots, *orphans], set[str]()
    while waiting:
        if (span := waiting.pop()).id not in seen:
            seen.add(span.id)
            waiting += children[span.id]
    for span in spans:
        if span.id not in seen:
            odd.count("spans that are their own ancestors, taken for parts of their trace", _named(span))
    return (roots or orphans or spans)[0]


def _call(span: Span, odd: Odd) -> dict[str, Any]:
    seconds = span.seconds
    if seconds is not None and seconds < 0:
        odd.count("tool calls that end before they begin, their time is left out", _named(span))
        seconds = None
    inputs = span.inputs
    if isinstance(inputs, Mapping) and set(inputs) == {"arguments"}:
        inputs = inputs["arguments"]
    if isinstance(inputs, str) and not inputs.lstrip().startswith("{"):
        inputs = {"input": inputs} if inputs.strip() else ""  # a plain text, and no JSON that is broken
    cut = span.attributes.get("truncated", mapping(span.outputs).get("truncated"))
    call = {
        "name": span.name,
        "arguments": "" if inputs is None else inputs,
        "status": status_of(span.outputs) if span.status == "ok" else span.status,
        "seconds": seconds,
        "tokens": span.tokens,
        "truncated": None if cut is None else bool(cut),
    }
    return {key: value for key, value in call.items() if value is not None}


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


def _whole(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and number >= 0 else None


def _named(span: Span) -> str:
    return f"{span.name} {span.id} of trace {span.trace}"
