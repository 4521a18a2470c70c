"""A JSON document read piece by piece, so that a long list in it is never held whole."""

import json
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import TextIO

from tracker_diag.errors import SourceError
from tracker_diag.trackers.finished import Progress, one_line

CHUNK = 1 << 16
BLANK = " \t\r\n"
END = BLANK + ",:]}"
"""What may follow a value."""


class BreaksOff(Exception):
    """The document ends before it is complete."""


def read_items(file: Path, lists: str, progress: Progress | None = None) -> Iterator[tuple[str, object]]:
    """Keys and values of the object in `file`; of the list under the key `lists`, one element after the other.

    Where the document is a list, its elements come under the key "". Each such list is announced by an empty one.

    Raises:
        BreaksOff: the document ends too early; what came before it is whole.
        SourceError: "file: character n: what is wrong".
    """
    try:
        with file.open(encoding="utf-8-sig") as handle:
            text = _Text(file, handle, progress)
            if text.peek() == "[":
                yield "", []
                yield from (("", element) for element in _elements(text))
                return
            text.expect("{")
            while text.peek() != "}":
                key = str(text.value())
                text.expect(":")
                if key == lists and text.peek() == "[":
                    yield key, []
                    yield from ((key, element) for element in _elements(text))
                else:
                    yield key, text.value()
                if text.peek() != "}":
                    text.expect(",")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{file}: {one_line(error)}") from error


def _elements(text: "_Text") -> Iterator[object]:
    text.expect("[")
    while text.peek() != "]":
        yield text.value()
        if text.peek() != "]":
            text.expect(",")
    text.expect("]")


class _Text:
    """What has been read of a file and not yet been used."""

    def __init__(self, file: Path, handle: TextIO, progress: Progress | None) -> None:
        self._file = file
        self._handle = handle
        self._progress = progress
        self._size = max(file.stat().st_size, 1)
        self._waiting = ""
        self._used = 0
        self._ended = False
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """The next character that is not blank."""
        while True:
            rest = self._waiting.lstrip(BLANK)
            self._used += len(self._waiting) - len(rest)
            self._waiting = rest
            if rest:
                return rest[0]
            if not self._more():
                raise BreaksOff

    def expect(self, character: str) -> None:
        if self.peek() != character:
            raise self._wrong(f"{self.peek()!r} given, expected {character!r}", 0)
        self._use(1)

    def value(self) -> object:
        self.peek()
        while True:
            try:
                value, end = self._decode(self._waiting)
            except JSONDecodeError as error:
                if self._more():
                    continue
                # Only what is at the very end can be a piece of something.
                if error.msg.startswith("Unterminated string") or len(self._waiting) - error.pos < len("-Infinity"):
                    raise BreaksOff from error
                raise self._wrong(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:
                raise self._wrong(one_line(error), 0) from error
            # A number may continue in what has not been read yet, "1." as well.
            if (self._waiting[end : end + 1] or "?") in END or not self._more():
                self._use(end)
                return value

    def _use(self, n: int) -> None:
        self._waiting = self._waiting[n:]
        self._used += n

    def _more(self) -> bool:
        """Read as much again as is waiting, so that a long value is not decoded too often."""
        piece = "" if self._ended else self._handle.read(max(CHUNK, len(self._waiting)))
        self._ended = not piece
        self._waiting += piece
        if piece and self._progress:
            self._progress(min((self._used + len(self._waiting)) / self._size, 1.0))
        return bool(piece)

    def _wrong(self, what: str, offset: int) -> SourceError:
        return SourceError(f"{self._file}: character {self._used + offset}: no JSON: {what}")
