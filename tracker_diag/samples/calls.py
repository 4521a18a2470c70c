"""Tool calls: from what a framework has in its hands to flat arrays, one row a call."""

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tracker_diag.errors import BatchError
from tracker_diag.stats.arrays import Float64Array

Call: TypeAlias = Mapping[str, Any]
"""`name`; `arguments`, a mapping or JSON text; `status`; `seconds`; `tokens` of the result; `truncated`.

`status` is "ok", "error", "timeout" or "malformed", or whether it worked; left out, the call worked. `name` and
`arguments` may stand in `function`, as OpenAI writes them, and calls that a call made itself in `calls`.
"""

Conversation: TypeAlias = Sequence[Call]

WORKED = {"ok", "success", "succeeded", "completed", "done", "true", ""}
TIMED_OUT = {"timeout", "timed_out", "timed out"}
MALFORMED = {"malformed", "invalid", "parse_error"}

DEPTH = 8
"""Levels of calls within calls that are looked at."""


@dataclass(frozen=True)
class Calls:
    """(c,) values of each call, by sequence and in the order in which they were made."""

    sequence: npt.NDArray[np.int64]
    """Row of the sequence that made it."""
    tool: npt.NDArray[np.int64]
    """Place of its name in `names`."""
    failed: Float64Array
    timeout: Float64Array
    malformed: Float64Array
    """Its arguments could not be parsed. It counts as failed."""
    repeated: Float64Array
    """The same name and arguments had been called in the sequence before."""
    seconds: Float64Array
    """NaN where it is not known, as in the next two."""
    tokens: Float64Array
    truncated: Float64Array
    signature: Float64Array
    """A hash of name and arguments."""
    names: tuple[str, ...]

    @classmethod
    def none(cls) -> "Calls":
        """No calls."""
        return _made(np.zeros(0), ())

    @classmethod
    def of(cls, given: Sequence[Any]) -> "Calls":
        """The calls of each sequence.

        Raises:
            BatchError: a sequence's calls are no list of mappings with a name.
        """
        flat = array("d")  # a million tuples would take as much memory again
        names: dict[str, int] = {}
        for sequence, conversation in enumerate(given):
            seen: set[int] = set()
            for call in _flat(conversation, DEPTH):
                name, arguments, malformed = _read(call)
                status = call.get("status")
                said = "" if status is None else str(status).lower() if not isinstance(status, bool) else ""
                timeout = said in TIMED_OUT
                malformed = malformed or said in MALFORMED
                failed = timeout or malformed or status is False or said not in WORKED
                signature = crc32(f"{name}\0{arguments}".encode("utf-8", "replace"))
                flat.extend(
                    (
                        sequence, names.setdefault(name, len(names)), failed, timeout, malformed, signature in seen,
                        _number(call, "seconds"), _number(call, "tokens"), _number(call, "truncated"), signature,
                    )
                )  # fmt: skip
                seen.add(signature)
        return _made(np.frombuffer(flat), tuple(names))

    def merged(self, other: "Calls", sequences: int) -> "Calls":
        """These, and `other` of sequences that come after the first `sequences`."""
        names = tuple(dict.fromkeys([*self.names, *other.names]))
        place = np.array([names.index(name) for name in other.names], dtype=np.int64)
        moved: dict[str, Any] = {name: getattr(other, name) for name in _ARRAYS}
        moved |= {"sequence": other.sequence + sequences, "tool": place[other.tool] if len(place) else other.tool}
        arrays: dict[str, Any] = {name: np.concatenate([getattr(self, name), of]) for name, of in moved.items()}
        return Calls(**arrays, names=names)

    def behaviour(self, n: int) -> Float64Array:
        """(n,) a number for the calls that each sequence made, in their order; the same for the same calls."""
        found = np.zeros(n)
        for sequence, signature in zip(self.sequence.tolist(), self.signature.tolist(), strict=True):
            found[sequence] = (found[sequence] * 1_000_003 + signature + 1) % ((1 << 31) - 1)
        return found

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: [None if one != one else one for one in getattr(self, name).tolist()] for name in _ARRAYS}  # noqa: PLR0124
        return {"arrays": arrays, "names": list(self.names)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Calls":
        arrays = state["arrays"]
        table = np.array([arrays[name] for name in _ARRAYS], dtype=np.float64).T
        return _made(table, tuple(state["names"]))


_ARRAYS = tuple(field.name for field in fields(Calls) if field.name != "names")


def _made(rows: Float64Array, names: tuple[str, ...]) -> Calls:
    table = rows.reshape(-1, len(_ARRAYS))
    columns: dict[str, Any] = dict(zip(_ARRAYS, table.T, strict=True))
    columns |= {name: columns[name].astype(np.int64) for name in ("sequence", "tool")}
    return Calls(**columns, names=names)


def _flat(conversation: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    """The calls of one sequence, and those that they made themselves after them."""
    if conversation is None:
        return
    if isinstance(conversation, str | bytes | Mapping) or not hasattr(conversation, "__iter__"):
        raise BatchError("calls", f"{type(conversation).__name__} for a sequence", "a list of calls, each a mapping")
    for call in conversation:
        if not isinstance(call, Mapping):
            raise BatchError("calls", f"{type(call).__name__} as a call", "a mapping with a name")
        yield call
        if depth and call.get("calls"):
            yield from _flat(call["calls"], depth - 1)


def _read(call: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Name, arguments as text, and whether they could not be parsed."""
    function = call.get("function")
    of: Mapping[str, Any] = function if isinstance(function, Mapping) else call
    name = of.get("name", function if isinstance(function, str) else None)
    if name is None:
        raise BatchError("calls", f"a call with {', '.join(map(str, call)) or 'nothing'}", "a call with a name")
    arguments = of.get("arguments", "")
    if isinstance(arguments, str | bytes):
        text = arguments.decode("utf-8", "replace") if isinstance(arguments, bytes) else arguments
        return str(name), text, bool(text.strip()) and not _parses(text)
    try:
        return str(name), json.dumps(arguments, sort_keys=True, default=repr), False
    except (TypeError, ValueError, RecursionError):
        return str(name), repr(arguments), False


def _parses(text: str) -> bool:
    """Whether `text` is the JSON that a call's arguments are written in: an object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _number(call: Mapping[str, Any], name: str) -> float:
    value = call.get(name)
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise BatchError("calls", f"{name} {value!r}", "a number") from error
