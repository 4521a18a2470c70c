"""Any traces: finds out what each object of a source is, and reads it."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.samples.traces.chats import is_chat, trace_of_chat
from tracker_diag.samples.traces.documents import documents
from tracker_diag.samples.traces.gather import Gather
from tracker_diag.samples.traces.mlflow import is_mlflow, trace_of_mlflow
from tracker_diag.samples.traces.otel import is_otlp, is_printed, span_of_printed, spans_of_otlp
from tracker_diag.samples.traces.trace import Trace, Traces, without_texts
from tracker_diag.samples.traces.verifiers import as_chat
from tracker_diag.samples.traces.weave import WeaveCalls
from tracker_diag.scrub import without_password
from tracker_diag.trackers.finished import Progress
from tracker_diag.trackers.odd import Odd

STORES = "tracker_diag.traces"
"""Entry points of this group give the traces of `<their name>:<name>`. They are called with that name, the source as it
may be shown, and an `Odd`; they give pairs of a place and an object."""


def collect(source: str, progress: Progress | None = None, *, texts: bool = True) -> Traces:
    """Read the traces of `source`, whatever wrote them; a file may hold several formats.

    Args:
        source: a file of JSON objects, one a line, in a list or indented: OTLP's JSON, spans as the SDK prints them,
            calls of W&B Weave, traces of MLflow, Trackio or verifiers, messages of OpenAI or Anthropic. Or
            `mlflow:<run id, or name or id of an experiment>[@tracking uri]`, `trackio:<project>[/<run>]`.
        texts: whether to keep what was said; else only the last answer.

    Raises:
        MissingExtra: mlflow is not installed.
        SourceError: in one line, what cannot be read, where, and why.
    """
    odd = Odd()
    tracker, _, name = source.partition(":")
    shown = without_password(source)
    stores = {entry.name: entry for entry in entry_points(group=STORES)}
    given: Iterable[tuple[str, Mapping[str, Any]]]
    if name and tracker in stores:
        given = stores[tracker].load()(name.removeprefix("//"), shown, odd)
    elif source and Path(source).is_file():
        given = documents(Path(source), odd, progress)
    else:
        raise SourceError(
            f"{shown or 'no source'}: no such file, and none of {', '.join(f'{known}:' for known in sorted(stores))}"
        )
    traces = [trace if texts else without_texts(trace) for trace in _traces(given, odd)]
    if not traces:
        raise SourceError("; ".join((f"{shown}: no traces in it", *odd.notes)))
    ordered = sorted(traces, key=lambda trace: (trace.time is None, trace.time or 0.0))
    return Traces(shown, tuple(ordered), odd.notes)


def _traces(given: Iterable[tuple[str, Mapping[str, Any]]], odd: Odd) -> Iterator[Trace]:
    """The traces that objects with their places hold, each read as what it is; spans wait for those of their trace."""
    gather = Gather(odd)
    weave = WeaveCalls()
    for place, written in given:
        document = as_chat(written)
        if is_otlp(document):
            for span in spans_of_otlp(document):
                gather.put_span(span)
        elif is_printed(document):
            gather.put_span(span_of_printed(document))
        elif weave.takes(document):
            weave.put_call(document)
        elif is_mlflow(document):
            if (trace := trace_of_mlflow(document, odd)) is not None:
                yield trace
        elif is_chat(document):
            yield trace_of_chat(document, place, odd)
        else:
            keys = ", ".join(list(document)[:5]) or "nothing"
            odd.count("objects that are no trace, left out", f"{place}, with {keys}")
    for span in weave.spans():
        gather.put_span(span)
    yield from gather.traces()
