"""Samples: the sequences of a step as columns of numbers, which calls of `samples` add up to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.samples.calls import Calls
from tracker_diag.samples.columns import NUMBERS, Columns, components, groups, listed, numbers, rows_of, versions
from tracker_diag.samples.texts import text_features, token_features
from tracker_diag.scrub import name_without_secrets
from tracker_diag.stats.arrays import Float64Array

UPDATE = ("reward", "advantage")
"""Columns that the update is made of: NaN in them is reported."""

COMPONENT = "component:"
"""Before the name of a part of the reward, as a key of `Samples.columns`."""

Shown: TypeAlias = str | bytes | None


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
        return self.columns[name] if name in self.columns else np.full(self.n, np.nan)

    @property
    def components(self) -> dict[str, Float64Array]:
        """Parts of the reward by name."""
        parts = (name for name in self.columns if name.startswith(COMPONENT))
        return {name.removeprefix(COMPONENT): self.columns[name] for name in parts}

    @classmethod
    def from_columns(cls, given: Columns, *, texts: bool = False) -> "Samples":
        """Check what was given to `samples`."""
        columns: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if unknown := [name for name in columns if name not in Columns.__annotations__]:
            raise BatchError(unknown[0], "it is", f"one of {', '.join(Columns.__annotations__)}")
        if not columns:
            raise BatchError("samples", "no column", f"at least one of {', '.join(Columns.__annotations__)}")
        parts = components(columns.pop("components", None))
        n = rows_of({**columns, **{f"components[{part!r}]": column for part, column in parts.items()}})
        values = {name: numbers(name, columns[name], n) for name in NUMBERS if name in columns}
        broken = tuple(f"{name} of samples" for name in UPDATE if _is_broken(columns.get(name), values.get(name)))
        for part, column in parts.items():
            values[COMPONENT + part] = numbers(f"components[{part!r}]", column, n)
        values |= _features(columns, values.get("length"), n)
        calls = Calls.from_sequences(listed("calls", columns["calls"]) if "calls" in columns else ())
        if "calls" in columns:
            values["calls"] = np.bincount(calls["sequence"], minlength=n).astype(float)
            by_text = values.get("behaviour", np.full(n, np.nan))  # of those that call nothing the text is what they do
            values["behaviour"] = np.where((values["calls"] > 0) | np.isnan(by_text), calls.behaviour(n), by_text)
        finite = {name: np.where(np.isfinite(column), column, np.nan) for name, column in values.items()}
        envs = listed("env", columns["env"]) if "env" in columns else [None] * n
        shown: list[Shown] = [None] * n
        if texts and "text" in columns:
            shown = listed("text", columns["text"])
        named = (None if env is None else name_without_secrets(str(env)) for env in envs)
        return cls(n, finite, calls, tuple(zip(named, shown, strict=True)), broken)

    def merged(self, other: "Samples") -> "Samples":
        """These and those of a further call; what only one of them knows is unknown of the other's."""
        names = dict.fromkeys([*self.columns, *other.columns])
        columns = {name: np.concatenate([self[name], other[name]]) for name in names}
        broken = tuple(dict.fromkeys([*self.broken, *other.broken]))
        calls = self.calls.merged(other.calls, self.n)
        return Samples(self.n + other.n, columns, calls, (*self.shown, *other.shown), broken)

    def state_dict(self) -> dict[str, Any]:
        """All but the texts, in JSON values."""
        columns = {
            name: [None if value != value else value for value in column.tolist()]  # noqa: PLR0124
            for name, column in self.columns.items()
        }
        return {"n": self.n, "columns": columns, "calls": self.calls.state_dict(), "broken": list(self.broken)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Samples":
        """What `state_dict` was taken of, without texts."""
        columns = {name: np.array(column, dtype=float) for name, column in state["columns"].items()}
        n = int(state["n"])
        return cls(n, columns, Calls.from_state(state["calls"]), ((None, None),) * n, tuple(state["broken"]))


def _features(columns: Mapping[str, Any], length: Float64Array | None, n: int) -> dict[str, Float64Array]:
    """(n,) float64 of the columns that are no numbers, by name."""
    features: dict[str, Float64Array] = {}
    if "group" in columns:
        features["group"] = groups(listed("group", columns["group"]))
    if "policy_version" in columns:
        features |= versions(columns["policy_version"], n)
    if "scorer_error" in columns:
        features["scorer_error"] = np.array(list(map(bool, listed("scorer_error", columns["scorer_error"]))), float)
    if "text" in columns:
        return features | text_features(listed("text", columns["text"]))
    return features | token_features(columns["tokens"], length) if "tokens" in columns else features


def _is_broken(given: Any, values: Float64Array | None) -> bool:
    """Whether a column holds NaN or infinity that was given as such; None is a value that is not known."""
    if values is None:
        return False
    unknown = sum(value is None for value in given) if isinstance(given, list | tuple) else 0
    return int((~np.isfinite(values)).sum()) > unknown
