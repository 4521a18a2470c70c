"""JSON objects of a file, whichever way they stand in it: a line each, a list, or one after the other, indented."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tracker_diag.errors import SourceError
from tracker_diag.trackers.files.text import read_document, read_lines
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.odd import Odd


def documents(file: Path, odd: Odd) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Where each object is, and the object. What cannot be read is left out and counted.

    Raises:
        SourceError: there is no such file, it is empty, or nothing in it is a JSON object.
    """
    objects = 0
    for place, document in _of_list(file, odd) if _head(file) == "[" else _of_lines(file, odd):
        if isinstance(document, Mapping):
            objects += 1
            yield place, document
        else:
            odd.count("values that are no JSON objects, left out", place)
    if not objects:
        raise SourceError("; ".join((f"{file}: no JSON object in it, expected traces", *odd.notes)))


def _head(file: Path) -> str:
    """The first character that is not blank."""
    try:
        with file.open("rb") as handle:
            head = handle.read(1 << 16)
    except OSError as error:
        raise SourceError(f"{file}: {one_line(error.strerror or error)}") from error
    if not head.strip():
        raise SourceError(f"{file}: the file is empty")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1].decode("utf-8", "replace")


def _of_list(file: Path, odd: Odd) -> Iterator[tuple[str, object]]:
    items, wrong = read_document(file)
    yield from ((f"element {n}", item) for n, item in enumerate(items, 1))
    if wrong:
        odd.count("lists that break off", f"after element {len(items)}")


def _of_lines(file: Path, odd: Odd) -> Iterator[tuple[str, object]]:
    """Lines, and objects that are indented: from a line with a brace alone to the next one that closes it."""
    block: list[str] = []
    begun = 0
    for number, text, _ in read_lines(file, errors="replace"):
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
