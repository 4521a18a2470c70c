"""Slices: each model token gets one row of each slicing dimension that is known of it."""

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tracker_diag.metrics.series import FIRST, FIXED, NAMED_ROWS, OTHER, Dimension
from tracker_diag.stats.arrays import Array, RowArray, namespace
from tracker_diag.tensors.batch import TokenBatch


def size(dimension: Dimension) -> int:
    """How many rows `dimension` has; the row after them is that of tokens which are in none."""
    return len(FIXED[dimension]) if dimension in FIXED else NAMED_ROWS


class Names:
    """Which row of `tool` and of `env` a name has. Names beyond the rows share the last, and are kept apart here."""

    def __init__(self) -> None:
        self.rows: dict[Dimension, list[str]] = {"tool": [], "env": []}
        self.folded: dict[Dimension, list[str]] = {"tool": [], "env": []}
        """Names without a row of their own, a hundred at most."""

    def row(self, dimension: Dimension, name: str) -> int:
        """The row of `name`, a new one if it has none yet."""
        name = key_part(name)
        known, folded = self.rows[dimension], self.folded[dimension]
        if name not in known:
            if len(known) == NAMED_ROWS - 1:
                if name not in folded and len(folded) < 100:
                    folded.append(name)
                return NAMED_ROWS - 1
            known.append(name)
        return known.index(name)

    def slices(self, dimension: Dimension) -> dict[str, int]:
        """Rows of `dimension` by the name that each has in keys: `post_tool`, `tool:search`."""
        if dimension in FIXED:
            rows = {value: row for row, value in enumerate(FIXED[dimension])}
        else:
            rows = {value: row for row, value in enumerate(self.rows[dimension])} | {OTHER: NAMED_ROWS - 1}
        return rows if dimension == "context" else {f"{dimension}:{value}": row for value, row in rows.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "rows": {dimension: list(names) for dimension, names in self.rows.items()},
            "folded": {dimension: list(names) for dimension, names in self.folded.items()},
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Names":
        """The names that `state_dict` was taken of."""
        names = cls()
        for dimension in names.rows:
            names.rows[dimension] = [str(name) for name in state["rows"][dimension]]
            names.folded[dimension] = [str(name) for name in state["folded"][dimension]]
        return names

    def table(self, dimension: Dimension, names: tuple[str, ...]) -> RowArray:
        """(len(names) + 2,) int32: the row of each code; then of codes without a name, then of −1, none."""
        rows = [self.row(dimension, name) for name in names]
        return np.array([*rows, NAMED_ROWS - 1, NAMED_ROWS], np.int32)


def key_part(name: str) -> str:
    """`name` with what MLflow takes in a key, and no "/", which parts a key; 40 characters at most."""
    return re.sub(r"[^\w\-. ]", "_", name, flags=re.ASCII)[:40] or "_"


def label(batch: TokenBatch, names: Names) -> dict[Dimension, Array]:
    """For each dimension that the batch tells: (N,) int32 row of each token, `size(dimension)` where it has none.

    Only model tokens have rows, and they have them before any rejection or clipping mask of the trainer, so
    that what the optimiser drops is still seen. `context` and, where the masks show tool results,
    `turn` and `after_tool_k` follow from the masks. A tool token is a response token that the policy
    did not sample, after the sequence's first model token; what stands before that is its prompt, which may end with
    a tool result too, where `begins_after_tool` says so.
    """
    xp = namespace(batch.model_mask)
    tool = batch.tool_output
    answered = batch.running_count(tool)
    begins = batch.labels.get("begins_after_tool")
    resulted = answered > 0 if begins is None else (answered > 0) | begins
    after = resulted if batch.after_tool is None else batch.after_tool

    rows: dict[Dimension, Array] = {"context": after * np.int32(1)}
    if batch.after_tool is None:
        rows["after_tool_k"] = _since_result(batch, tool, resulted)
    if batch.after_tool is None and begins is None:
        # A turn begins with a run of tool tokens; no such run begins a sequence, so none spans two.
        rows["turn"] = _counted(batch.running_count(tool & ~_before(tool)), "turn")
    given = batch.labels
    if "turn" in given:
        rows["turn"] = _counted(given["turn"], "turn")
    if "policy_lag" in given:
        rows["policy_lag"] = _counted(given["policy_lag"], "policy_lag")
    if "control" in given:
        rows["control"] = ~given["control"] * np.int32(1)
    if "advantages" in given:
        advantage = given["advantages"]  # NaN compares as none of the three, and has no row
        below = xp.where(advantage < 0, 1, xp.where(advantage == 0, 2, size("advantage")))
        rows["advantage"] = xp.where(advantage > 0, 0, below)
    if "tool" in given:
        rows["tool"] = _named(batch, "tool", names)
    if "env" in given:
        rows["env"] = _named(batch, "env", names)
    return {
        dimension: xp.where(batch.model_mask, row, size(dimension)).astype(np.int32, copy=False)
        if xp is np
        else xp.where(batch.model_mask, row, size(dimension)).to(xp.int32)
        for dimension, row in rows.items()
    }


def _counted(values: Array, dimension: Dimension) -> Array:
    """Rows of 0, 1, 2 and so on, the last for all that are larger; none for what is negative."""
    last = size(dimension) - 1
    xp = namespace(values)
    return xp.where(values < 0, last + 1, xp.clip(values, 0, last))


def _named(batch: TokenBatch, dimension: Literal["tool", "env"], names: Names) -> Array:
    codes, known = batch.labels[dimension], batch.names[dimension]
    table = batch.beside(names.table(dimension, known))
    xp = namespace(codes)
    return table[xp.where(codes < 0, len(known) + 1, xp.clip(codes, 0, len(known)))]


def _since_result(batch: TokenBatch, tool: Array, resulted: Array) -> Array:
    """(N,) 0 on the first `FIRST` model tokens after a tool result, 1 on later ones, 2 before any result."""
    xp = namespace(tool)
    at_result = batch.running_max(xp.where(tool, batch.model_count, 0))
    later = batch.model_count - at_result > FIRST
    return xp.where(resulted, later * np.int32(1), 2)


def _before(flags: Array) -> Array:
    """(N,) `flags` of the token before."""
    before = namespace(flags).zeros_like(flags)
    before[1:] = flags[:-1]
    return before
