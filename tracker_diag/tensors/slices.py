"""Slices: each model token gets one row of each slicing dimension that is known of it."""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from tracker_diag.metrics.series import CELLS, CONTEXT, FIRST, FIXED, NAMED_ROWS, OTHER, Dimension
from tracker_diag.scrub import name_without_secrets
from tracker_diag.stats.arrays import Array, namespace
from tracker_diag.tensors.batch import TokenBatch


def size(dimension: Dimension) -> int:
    """How many rows `dimension` has; the row after them is that of tokens which are in none."""
    return len(FIXED[dimension]) if dimension in FIXED else NAMED_ROWS


class Names:
    """Which row of `tool` and of `env` a name has. Names beyond the rows share the last, and are listed here."""

    def __init__(self) -> None:
        self.rows: dict[Dimension, list[str]] = {dimension: [] for dimension in CELLS}
        self.folded: dict[Dimension, list[str]] = {dimension: [] for dimension in CELLS}
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

    def adopt(self, rows: Mapping[Dimension, Sequence[str]]) -> None:
        """Give the names of `rows` rows here too, in their order."""
        for dimension, known in rows.items():
            for name in known:
                self.row(dimension, name)

    def slices(self, dimension: Dimension) -> dict[str, int]:
        """Rows of `dimension` by the name that each has in keys: `post_tool`, `tool:search`."""
        if dimension in FIXED:
            rows = {value: row for row, value in enumerate(FIXED[dimension])}
        else:
            rows = {value: row for row, value in enumerate(self.rows[dimension])} | {OTHER: NAMED_ROWS - 1}
        return rows if dimension == "context" else {f"{dimension}:{value}": row for value, row in rows.items()}

    def state_dict(self) -> dict[str, Any]:
        return deepcopy({"rows": self.rows, "folded": self.folded})

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "Names":
        """The names that `state_dict` was taken of."""
        names = cls()
        for dimension in CELLS:
            names.rows[dimension] = list(map(str, state["rows"][dimension]))
            names.folded[dimension] = list(map(str, state["folded"][dimension]))
        return names


def key_part(name: str) -> str:
    """`name` with what MLflow takes in a key, and no "/", which parts a key; 40 characters, no secret."""
    return re.sub(r"[^\w\-. ]", "_", name_without_secrets(name), flags=re.ASCII)[:40] or "_"


def label(batch: TokenBatch, names: Names) -> dict[Dimension, Array]:
    """For each dimension that the batch tells: (N,) int32 row of each token, `size(dimension)` where it has none.

    Only model tokens have rows. Rejection and clipping masks of the trainer are not applied, so what the optimiser
    drops is still seen. `context` and, where the masks show tool results, `turn` and `after_tool_k` follow from the
    masks. A tool token is a response token after the sequence's first model token that the policy did not sample. What
    is before that is its prompt. It may end with a tool result too, if `begins_after_tool` or the turns of
    `trajectory_ids` say so.
    """
    xp = namespace(batch.model_mask)
    tool = batch.tool_output
    # A turn begins with a run of tool tokens; no such run begins a sequence, so none spans two.
    rows = rows_of_history(
        batch,
        batch.running_count(tool) > 0,
        lambda: batch.model_count - batch.running_max(xp.where(tool, batch.model_count, 0)) > FIRST,
        lambda: batch.running_count(tool & ~before(tool)),
        flags=beginnings(batch),
        after_tool=batch.after_tool,
    ) | rows_given(batch, names, batch.labels)

    whole = {dimension: xp.where(batch.model_mask, row, size(dimension)) for dimension, row in rows.items()}
    if xp is np:
        return {dimension: row.astype(np.int32, copy=False) for dimension, row in whole.items()}
    return {dimension: row.to(xp.int32) for dimension, row in whole.items()}


def rows_of_history(
    batch: TokenBatch, answered: Array, is_late: Callable[[], Array], turns: Callable[[], Array],
    *, flags: tuple[Array | None, Array | None], after_tool: Array | None,
) -> dict[Dimension, Array]:  # fmt: skip
    """By dimension the rows of some tokens (n,), from what masks and trajectories say of what was before them.

    Args:
        answered: whether a tool has answered in the sequence before.
        is_late: whether a token is none of the first `FIRST` since then, or since the sequence began.
        turns: how many times tools have answered before.
        flags, after_tool: of these tokens, what `beginnings` gives, and what the caller knows.
    """
    xp, (begins, unknown) = namespace(answered), flags
    resulted = answered if begins is None else answered | begins
    after = resulted if after_tool is None else after_tool

    rows: dict[Dimension, Array] = {"context": after * np.int32(1)}
    if after_tool is None:
        rows["after_tool_k"] = xp.where(resulted, is_late() * np.int32(1), 2)
        if unknown is not None:
            rows["context"] = xp.where(unknown & ~resulted, len(CONTEXT), rows["context"])
            rows["after_tool_k"] = xp.where(unknown & ~resulted, size("after_tool_k"), rows["after_tool_k"])
    if after_tool is None and begins is None and unknown is None and "turn" not in batch.labels:
        rows["turn"] = _counted(batch, turns(), "turn")
    return rows


def rows_given(batch: TokenBatch, names: Names, given: Mapping[str, Array]) -> dict[Dimension, Array]:
    """By dimension the rows of the tokens that have the labels `given`, some of those of the batch."""
    xp = namespace(batch.model_mask)
    rows: dict[Dimension, Array] = {}
    counted: tuple[Dimension, ...] = ("turn", "policy_lag")
    for dimension in counted:
        if dimension in given:
            rows[dimension] = _counted(batch, given[dimension], dimension)
    if "control" in given:
        rows["control"] = ~given["control"] * np.int32(1)
    if "advantages" in given:
        advantage = given["advantages"]  # NaN compares as none of the three, and has no row
        below = xp.where(advantage < 0, 1, xp.where(advantage == 0, 2, size("advantage")))
        rows["advantage"] = xp.where(advantage > 0, 0, below)
    for dimension in CELLS:
        if dimension in given:
            known = [names.row(dimension, name) for name in batch.names[dimension]]
            table = np.array([NAMED_ROWS, *known, NAMED_ROWS - 1], np.int32)  # the last is of codes without a name
            rows[dimension] = _looked_up(given[dimension], batch.on_same_device(table))
    return rows


def beginnings(batch: TokenBatch) -> tuple[Array | None, Array | None]:
    """(N,) which tokens are of sequences whose prompt ends with a tool result, and of which nobody knows.

    None where that is the same for all: that no prompt does, and that all is known.
    """
    given = batch.labels
    if "begins_after_tool" in given:
        return given["begins_after_tool"], None
    if "trajectory_ids" not in given:
        return None, None
    if "turn" in given:
        return given["turn"] > 0, given["turn"] < 0
    return None, batch.per_token(_shared(*batch.first_of_sequence(given["trajectory_ids"])))


def _shared(ids: Array, counted: Array) -> Array:
    """(n,) whether a value of `ids` (n,) is there more than once, among those `counted`. No step waits for a device."""
    xp = namespace(ids)
    order = ids.argsort(kind="stable") if xp is np else ids.argsort(stable=True)  # what is not counted comes last
    there, value = counted[order], ids[order]
    same = (value[1:] == value[:-1]) & there[1:] & there[:-1]
    shared = xp.zeros_like(ids, dtype=bool if xp is np else xp.bool)
    shared[order[1:]] |= same
    shared[order[:-1]] |= same
    return shared


def _counted(batch: TokenBatch, values: Array, dimension: Dimension) -> Array:
    """Rows of 0, 1, 2 and so on, the last for all that are larger; none for what is negative."""
    none = size(dimension)
    return _looked_up(values, batch.on_same_device(np.array([none, *range(none)], np.int32)))


def _looked_up(codes: Array, table: Array) -> Array:
    """The entry of each code: `table` has first that of negative ones, then of 0, 1 and so on, last of all larger."""
    if isinstance(codes, np.ndarray):
        return table.take(np.add(codes, 1, dtype=np.int64, casting="unsafe"), mode="clip")
    return table[namespace(codes).clip(codes.long() + 1, 0, len(table) - 1)]


def before(flags: Array) -> Array:
    """(N,) `flags` of the token before."""
    before = namespace(flags).zeros_like(flags)
    before[1:] = flags[:-1]
    return before
