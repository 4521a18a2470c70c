"""Samples: the sequences of a step as columns of numbers, which calls of `samples` add up to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.samples.calls import Calls
from tracker_diag.samples.columns import NUMBERS, Columns, components, groups, listed, numbers, rows_of, versions
from tracker_diag.samples.texts import text_features, token_features
from tracker_diag.stats.arrays import Float64Array

UPDATE = ("reward", "advantage")
"""Columns that the update is made of: NaN in them is told."""

COMPONENT = "component:"
"""Before the name of a part of the reward, as a key of `Samples.columns`."""

Shown: TypeAlias = Any
"""A text, bytes, or a pair of what decodes ids and the ids."""


@dataclass(frozen=True)
class Samples:
    """The sequences of one or several calls of `samples`."""

    n: int
    columns: Mapping[str, Float64Array]
    """(n,) each, by name; NaN where a value is not known. `group` and `behaviour` are hashes."""
    calls: Calls
    shown: tuple[tuple[str | None, Shown], ...]
    """(environment, text) of each sequence, as far as they may be shown; empty after a resume."""
    broken: tuple[str, ...] = ()
    """Columns in which NaN or infinity was given and should not be."""

    def __getitem__(self, name: str) -> Float64Array:
        """(n,) values of a column; NaN throughout if it was never given."""
        found = self.columns.get(name)
        return np.full(self.n, np.nan) if found is None else found

    @property
    def components(self) -> dict[str, Float64Array]:
        """Parts of the reward by name."""
        return {name[len(COMPONENT) :]: of for name, of in self.columns.items() if name.startswith(COMPONENT)}

    @classmethod
    def of(cls, given: Columns, *, texts: bool = False) -> "Samples":
        """Check what was given to `samples`.

        Raises:
            BatchError: naming the column that is unknown, of another length than the others, or of a wrong kind.
        """
        columns = {name: value for name, value in given.items() if value is not None}
        decode: Any = columns.pop("decode", None)
        if unknown := [name for name in columns if name not in Columns.__annotations__]:
            raise BatchError(unknown[0], "it is", f"one of {', '.join(Columns.__annotations__)}")
        if not columns:
            raise BatchError("samples", "no column", f"at least one of {', '.join(Columns.__annotations__)}")
        n = rows_of(columns)
        found = _read(columns, n)
        calls = Calls.of(listed("calls", columns["calls"])) if "calls" in columns else Calls.none()
        if "calls" in columns:
            found["calls"] = np.bincount(calls.sequence, minlength=n).astype(float)
            said = found.get("behaviour", np.full(n, np.nan))  # of those that call nothing the text is what they do
            found["behaviour"] = np.where((found["calls"] > 0) | np.isnan(said), calls.behaviour(n), said)
        broken = tuple(f"{name} of samples" for name in UPDATE if _is_broken(columns.get(name), found, name))
        finite = {name: np.where(np.isfinite(of), of, np.nan) for name, of in found.items()}
        return cls(n, finite, calls, _shown(columns, n, decode, texts=texts), broken)

    def merged(self, other: "Samples") -> "Samples":
        """These and those of a further call; what only one of them knows is unknown of the other's."""
        names = dict.fromkeys([*self.columns, *other.columns])
        columns = {name: np.concatenate([self[name], other[name]]) for name in names}
        broken = tuple(dict.fromkeys([*self.broken, *other.broken]))
        return Samples(
            self.n + other.n, columns, self.calls.merged(other.calls, self.n), (*self.shown, *other.shown), broken
        )

    def state_dict(self) -> dict[str, Any]:
        """All but the texts, in JSON values."""
        columns = {name: [None if np.isnan(one) else float(one) for one in of] for name, of in self.columns.items()}
        return {"n": self.n, "columns": columns, "calls": self.calls.state_dict(), "broken": list(self.broken)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Samples":
        """What `state_dict` was taken of, without texts."""
        columns = {name: np.array(of, dtype=float) for name, of in state["columns"].items()}
        n = int(state["n"])
        return cls(n, columns, Calls.of_state(state["calls"]), ((None, None),) * n, tuple(state["broken"]))


def _read(columns: Mapping[str, Any], n: int) -> dict[str, Float64Array]:
    """(n,) float64 of all columns but `calls`, by name."""
    found = {name: numbers(name, columns[name], n) for name in NUMBERS if name in columns}
    for part, values in components(columns.get("components")).items():
        found[COMPONENT + part] = numbers(f"components[{part!r}]", values, n)
    if "group" in columns:
        found["group"] = groups(listed("group", columns["group"]))
    if "policy_version" in columns:
        found |= versions(columns["policy_version"], n)
    if "scorer_error" in columns:
        found["scorer_error"] = np.array([bool(one) for one in listed("scorer_error", columns["scorer_error"])], float)
    if "text" in columns:
        return found | text_features(listed("text", columns["text"]))
    return found | token_features(columns["tokens"], found.get("length")) if "tokens" in columns else found


def _is_broken(given: Any, found: Mapping[str, Float64Array], name: str) -> bool:
    """Whether a column holds NaN or infinity that was given as such; None is a value that is not known."""
    if given is None or np.isfinite(found[name]).all():
        return False
    missing = sum(one is None for one in given) if isinstance(given, list | tuple) else 0
    return int((~np.isfinite(found[name])).sum()) > missing


def _shown(columns: Mapping[str, Any], n: int, decode: Any, *, texts: bool) -> tuple[tuple[str | None, Shown], ...]:
    """What may be shown of each sequence; texts are cut, and ids decoded, when they are."""
    envs = (
        [None if one is None else str(one) for one in listed("env", columns["env"])] if "env" in columns else [None] * n
    )
    said: Sequence[Any] = [None] * n
    if texts and "text" in columns:
        said = listed("text", columns["text"])
    elif decode is not None and "tokens" in columns:
        said = [(decode, ids) for ids in columns["tokens"]]
    return tuple(zip(envs, said, strict=True))
