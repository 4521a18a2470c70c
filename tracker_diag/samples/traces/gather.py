"""Spans until all of their trace are there: what no sample is made of is let go as soon as that can be known."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tracker_diag.samples.messages import messages_in, status_of
from tracker_diag.samples.traces.episode import episode
from tracker_diag.samples.traces.trace import Span, Trace
from tracker_diag.trackers.odd import Odd


@dataclass(slots=True)
class _Gathered:
    """The spans of one trace, by their ids."""

    spans: dict[str, Span] = field(default_factory=dict[str, Span])
    rooted: bool = False
    """Whether there is a span without a parent. What others than it, models and tools say is then of no use."""
    asked: Span | None = None
    """The last one that asked a model with messages; they hold what was said to the models before it."""

    def put_span(self, span: Span) -> None:
        self.spans[span.id] = span
        if span.parent is None and not self.rooted:
            self.rooted = True
            for child in [child for child in self.spans.values() if child.parent is not None and child.kind != "llm"]:
                self.spans[child.id] = _bare(child)
        elif span.kind == "llm":
            self._ask(span)
        elif self.rooted and span.parent is not None:
            self.spans[span.id] = _bare(span)

    def _ask(self, span: Span) -> None:
        before = self.asked
        if span.start is None or span.parent is None:
            return
        if before is not None and before.start is not None and span.start < before.start:
            self.spans[span.id] = _bare(span)
        elif messages_in(span.inputs):
            if before is not None and before.id in self.spans:
                self.spans[before.id] = _bare(self.spans[before.id])
            self.asked = span


class Gather:
    """Takes spans in any order, and gives traces."""

    def __init__(self, odd: Odd) -> None:
        self._odd = odd
        self._traces: dict[str, _Gathered] = {}

    def put_span(self, span: Span) -> None:
        """Take in a span; of two with the same id the last one counts."""
        gathered = self._traces.setdefault(span.trace, _Gathered())
        if span.id in gathered.spans:
            self._odd.count("spans that come twice, the last one counts", f"{span.name} {span.id}")
        gathered.put_span(span)

    def traces(self) -> Iterator[Trace]:
        """One trace for each id of a trace, in the order in which they came; its spans are let go."""
        for trace in list(self._traces):
            gathered = self._traces.pop(trace)
            yield episode(trace, list(gathered.spans.values()), self._odd)


def _bare(span: Span) -> Span:
    """Without its texts, but for the arguments of a tool; what its result says of the call is kept."""
    if span.kind != "tool":
        return replace(span, inputs=None, outputs=None)
    cut = span.outputs.get("truncated") if isinstance(span.outputs, Mapping) else None
    status = status_of(span.outputs) if span.status == "ok" else span.status
    return replace(span, outputs=None if cut is None else {"truncated": cut}, status=status)
