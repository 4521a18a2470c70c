"""Any traces: finds out what each object of a source is, and makes sample records of them."""

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.samples.traces.chats import is_chat, record_of_chat
from tracker_diag.samples.traces.documents import documents
from tracker_diag.samples.traces.gather import Gather
from tracker_diag.samples.traces.mlflow import is_mlflow, record_of_mlflow
from tracker_diag.samples.traces.otel import is_otel, spans_of_otel
from tracker_diag.samples.traces.verifiers import as_chat
from tracker_diag.samples.traces.weave import WeaveCalls
from tracker_diag.scrub import without_password
from tracker_diag.trackers.odd import Odd

STORES = "tracker_diag.traces"
"""Entry points of this group give the traces of `<their name>:<name>`. They are called with that name, the source as it
may be shown, and an `Odd`; they give pairs of a place and an object."""


def records_in(source: str, odd: Odd, *, texts: bool = True) -> list[dict[str, Any]]:
    """The sample records of all traces of `source`, in the order of time; a file may hold several formats.

    Args:
        source: a file of JSON objects, one a line, in a list or indented, or `<store>:<name>`.
        texts: whether to keep what was said; else only the last answer, as `text`.

    Raises:
        SourceError: in one line, what cannot be read, where, and why.
    """
    tracker, _, name = source.partition(":")
    shown = without_password(source)
    stores = {entry.name: entry for entry in entry_points(group=STORES)}
    objects: Iterable[tuple[str, Mapping[str, Any]]]
    if name and tracker in stores:
        objects = stores[tracker].load()(name.removeprefix("//"), shown, odd)
    elif source and Path(source).is_file():
        objects = documents(Path(source), odd)
    else:
        known = ", ".join(f"{store}:" for store in sorted(stores))
        raise SourceError(f"{shown or 'no source'}: no such file; runs of trackers begin with {known}")
    records: list[dict[str, Any]] = []
    for record in _records(objects, odd):
        if not texts:
            record.pop("prompt", None)
            record.pop("completion", None)
        records.append(record)
    if not records:
        raise SourceError("; ".join((f"{shown}: no traces in it", *odd.notes)))
    return sorted(records, key=lambda record: record.get("time", float("inf")))


def _records(objects: Iterable[tuple[str, Mapping[str, Any]]], odd: Odd) -> Iterator[dict[str, Any]]:
    """A record for each object that is a trace, and for each trace that spans of several objects are of."""
    gather, weave = Gather(odd), WeaveCalls()
    for place, written in objects:
        document = as_chat(written)
        if is_otel(document):
            for span in spans_of_otel(document):
                gather.put_span(span)
        elif weave.put_call(document):
            continue
        elif is_mlflow(document):
            if (record := record_of_mlflow(document, place, odd)) is not None:
                yield record
        elif is_chat(document):
            yield record_of_chat(document, place, odd)
        else:
            keys = ", ".join(list(document)[:5]) or "nothing"
            odd.count("objects that are no trace, left out", f"{place}, with {keys}")
    for span in weave.spans():
        gather.put_span(span)
    yield from gather.records()
