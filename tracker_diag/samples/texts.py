"""Texts: what a completion shows without a model and in any language, by its beginning and its end.

The cost of a text does not grow with its length: a bounded part of it is looked at.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.samples.patterns import REFUSALS, claims_success, having
from tracker_diag.stats.arrays import Float64Array

START, END = 300, 600
"""Characters at the beginning and the end of a response that phrases are looked for in."""

LAST = 1024
"""Characters at the end that repetition is looked for in."""

FEWEST = 200
"""Characters below which nothing is said of repetition."""

REPEATS = 6.0
"""How many times smaller zlib makes a text that repeats itself; prose, code and tables are below 4."""

LAST_TOKENS = 512
FEWEST_TOKENS = 64
GRAM = 4
DISTINCT = 0.5
"""The same for ids: a sequence repeats itself where less than this part of its 4-grams is distinct."""

MARKS = "*#`|_!"
"""What a judge may like for its style: Markdown and exclamation marks, in any language."""

_PRIMES = np.array([1, 1_000_003, 998_244_353, 1_000_000_007], np.int64)
"""One for each place of a 4-gram, so that their sum is a hash of it."""

REASONING_ENDS = "</think>"


def text_features(texts: Sequence[Any]) -> dict[str, Float64Array]:
    """(n,) of each text: whether it refuses, claims success, repeats itself or is blank, its marks, and what it does.

    A text that is None is unknown.
    """
    decoded = [_decoded(text) for text in texts]
    starts = [_plain(text.rpartition(REASONING_ENDS)[2][:START].lstrip()) for text in decoded]
    ends = np.array([_of_end(text) for text in decoded], dtype=float).reshape(len(decoded), 3)
    features: dict[str, Any] = {
        "refuses": having(starts, REFUSALS),
        "claims": claims_success([_plain(text[-END:]) for text in decoded]),
        "blank": [not start for start in starts],
        **dict(zip(("repeats", "marks", "behaviour"), ends.T, strict=True)),
    }
    known = [text is not None for text in texts]
    return {name: np.where(known, values, np.nan) for name, values in features.items()}


def token_features(given: Any, lengths: Float64Array | None) -> dict[str, Float64Array]:
    """(n,) of the ids of each sequence: whether it repeats itself, and what it does."""
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    table = np.full((len(given), 2), np.nan)
    for row, ids in enumerate(given):
        if ids is None:
            continue
        if hasattr(ids, "detach"):
            ids = ids.detach().cpu().numpy()  # noqa: PLW2901
        if not hasattr(ids, "__len__") or isinstance(ids, str | bytes):
            raise BatchError("tokens", f"{type(ids).__name__} for a sequence", "a list of token ids")
        end = len(ids) if lengths is None or not np.isfinite(lengths[row]) else min(len(ids), int(lengths[row]))
        last = np.asarray(ids[max(0, end - LAST_TOKENS) : end])
        if last.size and (last.dtype.kind not in "iu" or last.ndim != 1):
            raise BatchError("tokens", f"{last.dtype} of shape {last.shape} for a sequence", "a list of token ids")
        table[row] = _repeats_ids(last.astype(np.int64)), zlib.crc32(last.tobytes(), end) if end else 0
    return {"repeats": table[:, 0], "behaviour": table[:, 1]}


def _decoded(text: Any) -> str:
    if text is None:
        return ""
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    if not isinstance(text, str):
        raise BatchError("text", f"{type(text).__name__} for a sequence", "text, bytes or None")
    return text


def _plain(text: str) -> str:
    """As phrases are written: lower case, plain apostrophes, no line breaks."""
    return text.lower().replace("\u2019", "'").replace("\n", " ")


def _of_end(text: str) -> tuple[float, float, float]:
    """Whether it repeats itself, its marks a character, and a hash."""
    end = text[-LAST:]
    last = end.encode("utf-8", "replace")
    repeats = len(last) >= FEWEST and len(last) > REPEATS * len(zlib.compress(last, 1))
    marks = sum(map(end.count, MARKS)) / max(1, len(end))
    return repeats, marks, zlib.crc32(last, zlib.crc32(text[:LAST].encode("utf-8", "replace"), len(text) & 0xFFFFFFFF))


def _repeats_ids(ids: Any) -> float:
    """Whether less than half of the n-grams are distinct."""
    if len(ids) < FEWEST_TOKENS:
        return 0.0
    last = len(ids) - GRAM + 1
    grams = np.sum([ids[i : last + i] * prime for i, prime in enumerate(_PRIMES)], axis=0)
    ordered = np.sort(grams)
    return float(1 + np.count_nonzero(ordered[1:] != ordered[:-1]) < DISTINCT * len(grams))
