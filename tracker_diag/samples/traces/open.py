"""Any traces: finds out what each object of a source is, and reads it."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError, without_password
from tracker_diag.samples.traces import mlflow, trackio
from tracker_diag.samples.traces.chats import is_chat, trace_of_chat
from tracker_diag.samples.traces.documents import documents
from tracker_diag.samples.traces.gather import Gather
from tracker_diag.samples.traces.otel import is_otlp, is_printed, span_of_printed, spans_of_otlp
from tracker_diag.samples.traces.trace import Trace, Traces, without_texts
from tracker_diag.samples.traces.weave import WeaveCalls
from tracker_diag.trackers.finished import Progress
from tracker_diag.trackers.odd import Odd


def collect(source: str, progress: Progress | None = None, *, texts: bool = True) -> Traces:
    """Read the traces of `source`, whatever wrote them; a file may hold several formats.

    Args:
        source: a file of JSON objects, one a line, in a list or indented: OTLP's JSON, spans as the SDK prints them,
            calls of W&B Weave, traces of MLflow or Trackio, messages of OpenAI or Anthropic. Or
            `mlflow:<run id, or name or id of an experiment>[@tracking uri]`, `trackio:<project>[/<run>]`.
        texts: whether to keep what was said; else only the last answer.

    Raises:
        MissingExtra: mlflow is not installed.
        SourceError: in one line, what cannot be read, where, and why.
    """
    odd = Odd()
    tracker, _, name = source.partition(":")
    shown = without_password(source)
    given: Iterable[tuple[str, Mapping[str, Any]]]
    if tracker == "mlflow" and name:
        given = ((str(one["info"].get("trace_id")), one) for one in mlflow.traces_in(name.removeprefix("//"), shown))
    elif tracker == "trackio" and name:
        given = trackio.traces_in(name.removeprefix("//"), shown, odd)
    elif source and Path(source).is_file():
        given = documents(Path(source), odd, progress)
    else:
        raise SourceError(f"{shown or 'no source'}: no such file, and none of mlflow:, trackio:")
    traces = [one if texts else without_texts(one) for one in _of(given, odd)]
    if not traces:
        raise SourceError("; ".join((f"{shown}: no traces in it", *odd.notes)))
    ordered = sorted(traces, key=lambda one: (one.time is None, one.time or 0.0))
    return Traces(shown, tuple(ordered), odd.notes)


def _of(given: Iterable[tuple[str, Mapping[str, Any]]], odd: Odd) -> Iterator[Trace]:
    gather = Gather(odd)
    weave = WeaveCalls()
    for place, one in given:
        if is_otlp(one):
            for span in spans_of_otlp(one):
                gather.add(span)
        elif is_printed(one):
            gather.add(span_of_printed(one))
        elif weave.takes(one):
            weave.add(one)
        elif mlflow.is_mlflow(one):
            if (trace := mlflow.trace_of_mlflow(one, odd)) is not None:
                yield trace
        elif is_chat(one):
            yield trace_of_chat(one, place, odd)
        else:
            odd.count("objects that are no trace, left out", f"{place}, with {', '.join(list(one)[:5]) or 'nothing'}")
    for span in weave.spans():
        gather.add(span)
    yield from gather.traces()
