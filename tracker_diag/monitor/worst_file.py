"""File: the worst sequences with their token ids, only on this machine's disk, next to the journals.

An `.npz` without pickle. One entry a sequence: `pair`, `slice`, `onset`, `moment`, `step`, `batch`, `sequence`, `tool`,
`length`, `first`, `position`, `limit`, `share`, and `end`: where its tokens end in the arrays of tokens. These have one
entry a token: `token_ids`, `logprobs` (2, N), `sampled`, `tool_output`, `in_slice`.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tracker_diag.health import folder
from tracker_diag.records import WorstSequence

OF_SLICE = ("pair", "slice", "onset", "moment", "step", "limit")
OF_SEQUENCE = ("batch", "sequence", "tool", "length", "first", "position")
OF_TOKENS = ("sampled", "tool_output", "in_slice")

LARGEST = 8 << 20
"""Bytes that the file may have."""
HEADERS, OF_FACTS = 8192, 1024
"""Bytes of an empty file, and of what is known of each sequence, at most."""


def unused() -> Path:
    """A file for this process among the journals, which is made; none that another run has left is taken."""
    folder().mkdir(parents=True, exist_ok=True)
    for number in count():
        path = folder() / f"worst-{os.getpid()}{f'-{number}' if number else ''}.npz"
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            return path
    raise AssertionError


def save(path: Path, sequences: Sequence[WorstSequence]) -> None:
    """Write `sequences` to `path`, whole or not at all; those that come last are left out where it would be too large.

    Raises:
        OSError: the disk is full, for example; the file that was there before stays.
    """
    of_token = 8 + 2 * 4 + len(OF_TOKENS)
    total = HEADERS + np.cumsum([sequence.in_slice.size * of_token + OF_FACTS for sequence in sequences])
    kept = sequences[: int(np.searchsorted(total, LARGEST, side="right"))]
    new = path.with_suffix(".new")
    try:
        with os.fdopen(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            np.savez(file, allow_pickle=False, **_arrays(kept))
        new.replace(path)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def _arrays(sequences: Sequence[WorstSequence]) -> dict[str, Any]:
    names = (*OF_SLICE, *OF_SEQUENCE)
    arrays: dict[str, Any] = {name: np.array([getattr(sequence, name) for sequence in sequences]) for name in names}
    arrays["share"] = np.array([np.nan if sequence.share is None else sequence.share for sequence in sequences])
    arrays["end"] = np.cumsum([sequence.in_slice.size for sequence in sequences])
    arrays["token_ids"] = np.concatenate([_ids(sequence) for sequence in sequences])
    arrays["logprobs"] = np.concatenate([sequence.logprobs for sequence in sequences], axis=1).astype(np.float32)
    return arrays | {name: np.concatenate([getattr(sequence, name) for sequence in sequences]) for name in OF_TOKENS}


def _ids(sequence: WorstSequence) -> Any:
    return np.full(sequence.in_slice.size, -1) if sequence.token_ids is None else sequence.token_ids
