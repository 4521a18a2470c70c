"""Lines of a text file and the JSON objects in them, one at a time, for files of any size; and JSON documents."""

import json
from collections.abc import Callable, Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import Progress, one_line

LONGEST = 1 << 26
"""Bytes that a line may have."""


def head_of(file: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of `file`."""
    try:
        with file.open("rb") as handle:
            return handle.read(size)
    except OSError as error:
        raise SourceError(f"{file}: {one_line(error.strerror or error)}") from error


def read_lines(file: Path, progress: Progress | None = None) -> Iterator[tuple[int, str, bool]]:
    """The number of each line, its text, and whether it ended with a line break: the last one may be cut off.

    Args:
        file: in UTF-8, with or without a byte order mark; other bytes are replaced by U+FFFD.
        progress: called once a megabyte.
    """
    number = done = shown = 0
    try:
        size = max(file.stat().st_size, 1)
        with file.open("rb") as handle:
            while raw := handle.readline(LONGEST):
                number += 1
                done += len(raw)
                ended = raw.endswith(b"\n")
                if not ended and len(raw) == LONGEST:
                    raise SourceError(f"{file}:{number}: a line of more than {LONGEST >> 20} MiB, expected text")
                if progress and done - shown > 1 << 20:
                    shown = done
                    progress(min(done / size, 1.0))
                text = raw.decode("utf-8", "replace" if ended else "ignore")  # a character may be cut where it ends
                yield number, text.removeprefix("\ufeff") if number == 1 else text, ended
    except OSError as error:
        raise SourceError(f"{file}: {one_line(error.strerror or error)}") from error


def read_objects(
    file: Path, count: Callable[[str, str], None], progress: Progress | None = None
) -> Iterator[tuple[int, dict[str, Any] | SourceError, bool]]:
    """The number of each line that is not blank, its JSON object or its error, and whether it ended.

    Args:
        count: called for lines with bytes that are no UTF-8, which are replaced: what they are, and where.
    """
    for at, line, ended in read_lines(file, progress):
        if not line.strip(" \t\r\n\0"):
            continue
        if "\ufffd" in line:
            count("lines with bytes that are no UTF-8", f"line {at}")
        try:
            row = _json(line)
        except (ValueError, RecursionError) as error:
            yield at, SourceError(f"{file}:{at}: no JSON object: {_said(error)}"), ended
            continue
        wrong = f"{file}:{at}: {type(row).__name__} given, expected a JSON object"
        yield at, row if isinstance(row, dict) else SourceError(wrong), ended


def read_document(file: Path) -> tuple[Any, str]:
    """The JSON object or list in `file`, and what is wrong with it from some place on, else "".

    Of a document that breaks off or is damaged all elements before that place are given.
    """
    text = ""
    try:
        text = file.read_text(encoding="utf-8-sig")
        return _json(text), ""
    except JSONDecodeError as error:
        head, msg = text[: error.pos], error.msg
    except (OSError, ValueError, RecursionError) as error:
        raise SourceError(f"{file}: no JSON: {one_line(error)}") from error
    # Only what is at the very end can be a piece of something.
    cut = msg.startswith("Unterminated string") or len(text) - len(head) < len("-Infinity")
    wrong = "the file breaks off" if cut else f"character {len(head)}: no JSON: {msg}"
    try:
        document: Any = from_json(head, allow_partial=True)
    except ValueError as error:
        raise SourceError(f"{file}: {wrong}") from error
    if not head.rstrip(" \t\r\n,").endswith(("}", "]", "[")):  # it ends within an element
        last = document if isinstance(document, list) else next(reversed(document.values()), None)
        if isinstance(last, list):
            del last[-1:]
    return document, wrong


def _said(error: Exception) -> str:
    """What is wrong with a line. Its own number is known; json counts lines too, from 1."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}; correct or remove the line"
    return one_line(error)


def _json(text: str) -> Any:
    """As `json.loads`, in a third of its time."""
    try:
        return from_json(text, cache_strings="keys")
    except ValueError:  # lone surrogates, deep nesting; and what is wrong is said in json's words
        return json.loads(text)
