"""Tool calls: from what a framework has in its hands to a table, one row a call. What does not fit is a BatchError."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tracker_diag.errors import BatchError
from tracker_diag.scrub import name_without_secrets
from tracker_diag.stats.arrays import Float64Array

Call: TypeAlias = Mapping[str, Any]
"""`name`; `arguments`, a mapping or JSON text; `status`; `seconds`; `tokens` of the result; `truncated`.

`status` is "ok", "error", "timeout" or "malformed", or whether it worked; left out, the call worked. `name` and
`arguments` may be in `function`, as OpenAI writes them.
"""

Conversation: TypeAlias = Sequence[Call]

WORKED = {"ok", "success", "succeeded", "completed", "done", "true", ""}
TIMED_OUT = {"timeout", "timed_out", "timed out"}
MALFORMED = {"malformed", "invalid", "parse_error"}

ROW = np.dtype(
    [
        ("sequence", np.int64),  # row of the sequence that made it
        ("tool", np.int64),  # place of its name in `names`
        ("failed", float),
        ("timeout", float),
        ("malformed", float),  # its arguments could not be parsed; it counts as failed
        ("repeated", float),  # the same name and arguments had been called in the sequence before
        ("seconds", float),  # NaN where it is not known, as in the next two
        ("tokens", float),
        ("truncated", float),
        ("signature", float),  # a hash of name and arguments
    ]
)


@dataclass(frozen=True)
class Calls:
    """The calls of all sequences, by sequence and in the order in which they were made."""

    rows: npt.NDArray[np.void]
    """(c,) with the fields of `ROW`."""
    names: tuple[str, ...]

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        """(c,) values of a field of `ROW`."""
        return self.rows[field]

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def from_sequences(cls, given: Sequence[Any]) -> "Calls":
        """The calls of each sequence."""
        rows: list[tuple[float, ...]] = []
        names: dict[str, int] = {}
        for sequence, conversation in enumerate(given):
            seen: set[int] = set()
            for call in _calls_of(conversation):
                name, arguments, malformed = _asked(call)
                given_status = call.get("status")
                status = "" if given_status is None or isinstance(given_status, bool) else str(given_status).lower()
                timeout, malformed = status in TIMED_OUT, malformed or status in MALFORMED
                failed = timeout or malformed or given_status is False or status not in WORKED
                signature = crc32(f"{name}\0{arguments}".encode("utf-8", "replace"))
                tool = names.setdefault(name_without_secrets(name), len(names))
                numbers = (_number(call, field) for field in ("seconds", "tokens", "truncated"))
                rows.append((sequence, tool, failed, timeout, malformed, signature in seen, *numbers, signature))
                seen.add(signature)
        return cls(np.array(rows, ROW), tuple(names))

    def merged(self, other: "Calls", sequences: int) -> "Calls":
        """These, and `other` of sequences that come after the first `sequences`."""
        names = tuple(dict.fromkeys([*self.names, *other.names]))
        moved = other.rows.copy()
        moved["sequence"] += sequences
        if len(moved):
            moved["tool"] = np.array([names.index(name) for name in other.names])[moved["tool"]]
        return Calls(np.concatenate([self.rows, moved]), names)

    def behaviour(self, n: int) -> Float64Array:
        """(n,) a number for the calls that each sequence made, in their order; the same for the same calls."""
        hashes = np.zeros(n)
        for sequence, signature in zip(self["sequence"].tolist(), self["signature"].tolist(), strict=True):
            hashes[sequence] = (hashes[sequence] * 1_000_003 + signature + 1) % ((1 << 31) - 1)
        return hashes

    def state_dict(self) -> dict[str, Any]:
        rows = [[None if value != value else value for value in row] for row in self.rows.tolist()]  # noqa: PLR0124
        return {"rows": rows, "names": list(self.names)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Calls":
        rows = [tuple(np.nan if value is None else value for value in row) for row in state["rows"]]
        return cls(np.array(rows, ROW), tuple(state["names"]))


def _calls_of(conversation: Any) -> Iterator[Call]:
    """The calls of one sequence."""
    if conversation is None:
        return
    if isinstance(conversation, str | bytes | Mapping) or not hasattr(conversation, "__iter__"):
        raise BatchError("calls", f"{type(conversation).__name__} for a sequence", "a list of calls, each a mapping")
    for call in conversation:
        if not isinstance(call, Mapping):
            raise BatchError("calls", f"{type(call).__name__} as a call", "a mapping with a name")
        yield call


def _asked(call: Call) -> tuple[str, str, bool]:
    """Name, arguments as text, and whether they are no JSON object, which they are written in."""
    function = call.get("function")
    fields: Mapping[str, Any] = function if isinstance(function, Mapping) else call
    name = fields.get("name", function if isinstance(function, str) else None)
    if name is None:
        raise BatchError("calls", f"a call with {', '.join(map(str, call)) or 'nothing'}", "a call with a name")
    arguments = fields.get("arguments", "")
    if isinstance(arguments, bytes):
        arguments = arguments.decode("utf-8", "replace")
    try:
        if isinstance(arguments, str):
            return str(name), arguments, bool(arguments.strip()) and not isinstance(json.loads(arguments), dict)
        return str(name), json.dumps(arguments, sort_keys=True, default=repr), False
    except (TypeError, ValueError, RecursionError):
        return str(name), str(arguments), isinstance(arguments, str)


def _number(call: Call, name: str) -> float:
    value = call.get(name)
    try:
        return float("nan") if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise BatchError("calls", f"{name} {value!r}", "a number") from error
