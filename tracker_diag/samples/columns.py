"""Columns: what is known of each sequence of a batch, one value a sequence, checked and ready to be counted.

What does not fit is a BatchError, which names the column.
"""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias, TypedDict

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.samples.calls import Conversation
from tracker_diag.stats.arrays import Float64Array
from tracker_diag.tensors.slices import key_part

Numbers: TypeAlias = "Sequence[float | bool | None] | Any"
"""(n,) numbers, a list or an array of numpy or torch; None where one is not known."""


class Columns(TypedDict, total=False):
    """What `samples` takes: n values each, in the order of the sequences. All are optional, one at least is needed."""

    reward: Numbers
    """As it is trained on. NaN and infinity give a numerics finding; None is a sequence without a score."""
    components: "Mapping[str, Numbers]"
    """Parts of the reward by name; NaN or None where a part was not asked. They need not sum to the reward."""
    group: "Sequence[object] | Any"
    """The prompt or group of each sequence: anything hashable."""
    advantage: Numbers
    success: Numbers
    """1 or true where the task was solved, as the environment or a verifier says, else 0."""
    correct: Numbers
    """The same of the final answer alone, where `success` asks for more or is not known."""
    verifier: Numbers
    """Score that a program's check gave."""
    judge: Numbers
    """Score that a judge model gave."""
    human: Numbers
    """Score that a person gave."""
    length: Numbers
    """Tokens of the response."""
    truncated: Numbers
    """True where it was cut at a limit."""
    retokenised: Numbers
    """True where the token ids that are trained on are not those that were sampled: `sampled != trained`."""
    turns: Numbers
    void_turns: Numbers
    """Turns that neither called a tool nor answered."""
    logprob: Numbers
    """Mean log-prob of the sequence's model tokens under the policy, in nats."""
    policy_version: "Numbers"
    """(n,) version of the policy that sampled it, or (n, 2) the oldest and the newest; None where it is not known."""
    scorer_error: "Sequence[object] | Any"
    """What went wrong in scoring it, as text, an exception or true; None, false or "" where nothing did."""
    env: Sequence[str | None]
    """The environment's name: sixteen have a reward of their own, all stand in the table."""
    calls: "Sequence[Conversation | None]"
    """Tool calls of each sequence in their order; see `samples.calls`."""
    text: "Sequence[str | bytes | None]"
    """Completions. Counts of them are kept, and the text itself only where the run was wrapped with `texts=True`."""
    tokens: "Sequence[Any] | Any"
    """Token ids of the completions, where there is no text: n lists, or (n, T) padded on the right, with `length`."""


NUMBERS = (
    "reward", "advantage", "success", "correct", "verifier", "judge", "human", "length", "truncated",
    "retokenised", "turns", "void_turns", "logprob",
)  # fmt: skip
"""Columns that are numbers, and kept as they are."""


def numbers(field: str, given: Any, n: int) -> Float64Array:
    """(n,) float64 of `given`, NaN for None."""
    if hasattr(given, "detach"):
        given = given.detach().cpu().double().numpy()
    try:
        values = np.asarray(given, dtype=np.float64)  # None becomes NaN
    except (TypeError, ValueError) as error:
        raise BatchError(field, f"{type(given).__name__} ({error})", "one number for each sequence, or None") from error
    if values.shape != (n,):
        raise BatchError(field, f"shape {values.shape}", f"({n},), one number for each sequence")
    return values


def free_key(name: str, taken: Collection[str]) -> str:
    """`name` as a part of a series' key; with a number after it where another name has become the same one."""
    key = key_part(name)
    keys = itertools.chain([key], (f"{key}_{i}" for i in itertools.count(2)))
    return next(free for free in keys if free not in taken)


def rows_of(columns: Mapping[str, Any]) -> int:
    """How many sequences there are, by columns and parts of the reward."""
    expected = "a list or an array with one value for each sequence"
    for field, column in columns.items():
        if isinstance(column, str | bytes) or not hasattr(column, "__len__"):
            raise BatchError(field, type(column).__name__, expected)
        if getattr(column, "shape", None) == ():
            raise BatchError(field, "a single number", expected)
    lengths = {field: len(column) for field, column in columns.items()}
    first, n = next(iter(lengths.items()), ("", 0))
    for field, length in lengths.items():
        if length != n:
            raise BatchError(field, f"{length} values", f"{n}, as {first} has", "give one for each sequence")
    return n


def components(given: Any) -> Mapping[str, Any]:
    """Parts of the reward, by what they are called in the keys of series."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise BatchError("components", type(given).__name__, "a mapping from each part's name to its numbers")
    parts: dict[str, Any] = {}
    for name, values in given.items():
        parts[free_key(str(name), parts)] = values
    return parts


def listed(field: str, given: Any) -> list[Any]:
    """The values of a column that is no column of numbers."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise BatchError(field, type(given).__name__, "a list with one value for each sequence")
    values: Any = given  # an array of numpy or torch, perhaps
    return values.tolist() if hasattr(values, "tolist") else list(values)


def groups(ids: Sequence[Any]) -> Float64Array:
    """(n,) a number for each id, the same for equal ids, also of another call; NaN for None."""
    hashes: dict[Any, float] = {None: np.nan}
    try:
        for group in ids:
            if group not in hashes:
                text = repr(group.item() if isinstance(group, np.generic) else group)
                digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
                hashes[group] = float(int.from_bytes(digest, "big") >> 12)  # below 2^52, so that a float holds it
    except TypeError as error:
        expected = "hashable ids, such as text or numbers"
        raise BatchError("group", f"an id that cannot be hashed ({error})", expected) from error
    return np.array([hashes[group] for group in ids], dtype=float)


def versions(given: Any, n: int) -> dict[str, Float64Array]:
    """Whether the version is unknown, and how many versions a sequence spans, where two are given."""
    rows: list[Any] = given.tolist() if hasattr(given, "tolist") else list(given)
    pairs = [tuple(row) if isinstance(row, list | tuple) else (row, row) for row in rows]
    try:
        oldest, newest = np.array(pairs, dtype=float).reshape(n, 2).T
    except (TypeError, ValueError) as error:
        raise BatchError("policy_version", str(error), "a number, a pair of numbers or None for each") from error
    unknown = (np.isnan(oldest) | np.isnan(newest)).astype(float)
    spans = any(isinstance(row, list | tuple) for row in rows)
    return {"unversioned": unknown} | ({"version_span": newest - oldest} if spans else {})
