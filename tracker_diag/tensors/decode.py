"""Decode: text of single tokens, by the user's own decoder, in a thread that training does not wait for."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Condition
from typing import TypeAlias

from tracker_diag.stats.arrays import IntArray
from tracker_diag.tensors.worker import Writer

Decode: TypeAlias = Callable[[list[int]], str]
"""Makes text of token ids, as a tokenizer's `decode` does."""

LONGEST = 200
"""Characters of a token's text that are kept."""
HUNG = 30.0
"""Seconds that a sequence may take before it is waited for no longer."""
UNFINISHED = "\ufffd"
"""What a decoder writes for a part of a character."""
MOST_PARTS = 4
"""Tokens that one character may have."""

Wanted: TypeAlias = tuple[IntArray, Sequence[range]]
"""The (W,) ids of a sequence, and which parts of it are to be decoded."""


def pieces(ids: Sequence[int], decode: Decode) -> list[str]:
    """The text that each of `ids` adds to those before it; of a character in several tokens the last one has it.

    A decoder may leave out the space at the beginning of its input. So each token is decoded after the ones before it.

    Raises:
        TypeError: `decode` gives no text; and whatever it raises.
    """
    texts = [""] * len(ids)
    begin = done = 0
    for i in range(len(ids)):
        before = _text(decode(list(ids[begin:done]))) if done > begin else ""
        whole = _text(decode(list(ids[begin : i + 1])))
        if not whole.endswith(UNFINISHED) or i + 1 == len(ids) or i + 1 - done == MOST_PARTS:
            texts[i] = whole[len(before) :][:LONGEST]
            begin, done = done, i + 1
    return texts


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f"decode: {type(given).__name__} returned, expected a str")
    return given


class Decoder:
    """Decodes in a thread of its own; where the decoder raises or hangs, text is left out, and nothing else."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[bytes, tuple[str, ...] | None] = {}
        """By what was asked; None where it failed."""
        self._asked: set[bytes] = set()
        self._thread: Writer | None = None
        self._failures: list[Exception] = []
        self._begun: float | None = None
        """When the sequence that is underway was begun."""
        self._progress = Condition()

    def texts(self, wanted: Sequence[Wanted]) -> list[tuple[str, ...] | None]:
        """The text of each, (W,), as far as it is known; what is not is begun. What is not wanted is forgotten."""
        keys = [ids.tobytes() + repr(parts).encode() for ids, parts in wanted]
        for key, (ids, parts) in zip(keys, wanted, strict=True):
            if key not in self._asked:
                self._asked.add(key)
                try:
                    self._thread = self._thread or Writer("tracker_diag-decode")
                    self._thread.put(partial(self._work, key, ids, parts))
                except RuntimeError as error:  # no thread starts in `atexit` from Python 3.12 on
                    self._failures.append(error)
                    self._known[key] = None
        self._asked &= {*keys}
        for key in [*self._known]:
            if key not in self._asked:
                del self._known[key]
        return [self._known.get(key) for key in keys]

    @property
    def busy(self) -> bool:
        """Whether text is still to come."""
        hangs = self._begun is not None and time.monotonic() > self._begun + HUNG
        return not hangs and not self._asked <= self._known.keys()

    def close(self, seconds: float) -> None:
        """Wait until all text is there, `seconds` at most, and let the thread end."""
        self.wait(seconds)
        if self._thread:
            self._thread.close(0.0)

    def wait(self, seconds: float) -> None:
        """Until all text is there, or `seconds` have passed, which is a failure."""
        with self._progress:
            done = self._progress.wait_for(lambda: self._asked <= self._known.keys(), seconds)
        if not done:
            left = len(self._asked - self._known.keys())
            self._failures.append(TimeoutError(f"decode: {left} sequences not decoded within {seconds:.0f} s"))

    def errors(self) -> list[Exception]:
        """What went wrong since the last time of asking."""
        failures, self._failures = self._failures, []
        return failures

    def _work(self, key: bytes, ids: IntArray, parts: Sequence[range]) -> None:
        decoded: tuple[str, ...] | None = None
        self._begun = time.monotonic()
        try:
            texts = [""] * len(ids)
            for part in parts:
                texts[part.start : part.stop] = pieces(ids[part.start : part.stop].tolist(), self._decode)
            decoded = tuple(texts)
        except Exception as error:  # noqa: BLE001  # whatever a decoder raises is to be counted
            self._failures.append(error)
        with self._progress:
            self._known[key] = decoded
            self._begun = None
            self._progress.notify_all()
