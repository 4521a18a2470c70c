"""Any traces: reads the objects of a source, finds out what each of them is, and makes sample records of them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.samples.traces.chats import as_chat, is_chat, record_of_chat
from tracker_diag.samples.traces.gather import Gather
from tracker_diag.samples.traces.otel import is_mlflow, is_otel, record_of_mlflow, spans_of_otel
from tracker_diag.samples.traces.weave import is_weave, span_of_weave
from tracker_diag.scrub import without_password
from tracker_diag.trackers.files.text import head_of, read_document, read_lines
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.odd import Odd

STORES = "tracker_diag.traces"
"""Entry points of this group give the traces of `<their name>:<name>`. They are called with that name, the source as it
may be shown, and an `Odd`; they give pairs of a place and an object."""


def records_in(source: str, odd: Odd, *, texts: bool = True) -> list[dict[str, Any]]:
    """The sample records of all traces of `source`, in the order of time; a file may hold several formats.

    Args:
        source: a file of JSON objects, one a line, in a list or indented, or `<store>:<name>`.
        texts: whether to keep what was said; else only the last answer, as `text`.
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
    dropped = () if texts else ("prompt", "completion")
    records = [
        {name: value for name, value in record.items() if name not in dropped} for record in _records(objects, odd)
    ]
    if not records:
        raise SourceError("; ".join((f"{shown}: no traces in it", *odd.notes)))
    return sorted(records, key=lambda record: record.get("time", float("inf")))


def _records(objects: Iterable[tuple[str, Mapping[str, Any]]], odd: Odd) -> Iterator[dict[str, Any]]:
    """A record for each object that is a trace, and for each trace that spans of several objects are of."""
    gather = Gather(odd)
    for place, written in objects:
        document = as_chat(written)
        if is_otel(document):
            for span in spans_of_otel(document):
                gather.put_span(span)
        elif is_weave(document):
            gather.put_span(span_of_weave(document))
        elif is_mlflow(document):
            if (record := record_of_mlflow(document, place, odd)) is not None:
                yield record
        elif is_chat(document):
            yield record_of_chat(document, place, odd)
        else:
            keys = ", ".join(list(document)[:5]) or "nothing"
            odd.count("objects that are no trace, left out", f"{place}, with {keys}")
    yield from gather.records()


def documents(file: Path, odd: Odd) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where each object is, and the object. What cannot be read is left out and counted."""
    objects = 0
    for place, document in _of_list(file, odd) if _is_list(file) else _of_lines(file, odd):
        if isinstance(document, Mapping):
            objects += 1
            yield place, document
        else:
            odd.count("values that are no JSON objects, left out", place)
    if not objects:
        raise SourceError("; ".join((f"{file}: no JSON object in it, expected traces", *odd.notes)))


def _is_list(file: Path) -> bool:
    head = head_of(file)
    if not head.strip():
        raise SourceError(f"{file}: the file is empty")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _of_list(file: Path, odd: Odd) -> Iterator[tuple[str, object]]:
    items, wrong = read_document(file)
    yield from ((f"element {n}", item) for n, item in enumerate(items, 1))
    if wrong:
        odd.count("lists that break off", f"after element {len(items)}")


def _of_lines(file: Path, odd: Odd) -> Iterator[tuple[str, object]]:
    """Lines, and objects that are indented: from a line with a brace alone to the next one that closes it."""
    block: list[str] = []
    begun = 0
    for number, text, _ in read_lines(file):
        at, line = number, text
        if "\ufffd" in line:
            odd.count("lines with bytes that are no UTF-8", f"line {at}")
        if line.rstrip() == "{":
            if block:
                odd.count("objects that cannot be read, left out", f"line {begun}: it breaks off")
            block, begun = [line], at
            continue
        if block:
            block.append(line)
            if line.rstrip() != "}":
                continue
            line, at, block = "".join(block), begun, []
        if line.strip(" \t\r\n\0"):
            try:
                yield f"line {at}", json.loads(line)
            except (ValueError, RecursionError) as error:
                odd.count("lines that cannot be read, left out", f"line {at}: {one_line(error)}")
    if block:
        odd.count("objects that cannot be read, left out", f"line {begun}: it breaks off")
