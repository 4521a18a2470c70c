"""The token table: Parquet, one row a token, read a piece at a time."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError, require
from tracker_diag.stats.arrays import BoolArray, IntArray
from tracker_diag.trackers.finished import one_line

LOGPROB_COLUMNS = {
    "logprob": "logprobs",
    "old_logprob": "old_logprobs",
    "rollout_logprob": "rollout_logprobs",
    "ref_logprob": "ref_logprobs",
}
LABEL_COLUMNS = {
    "tool": "tool",
    "env": "env",
    "prompt": "prompt",
    "turn": "turn",
    "policy_lag": "policy_lag",
    "advantage": "advantages",
    "control": "control",
}
AUDIT_COLUMNS = {
    "in_loss": "loss_mask",
    "token_id": "token_ids",
    "sampled_id": "sampled_ids",
    "logprob_again": "logprobs_again",
}
"""Columns for checks before training, which `observe` does not take."""
REQUIRED = ("step", "sequence", "position", "is_model")
KINDS = {
    **dict.fromkeys(("step", "sequence", "position"), "integer"),
    **dict.fromkeys(("is_model", "after_tool"), "boolean"),
    **dict.fromkeys(LOGPROB_COLUMNS, "floating"),
    **dict.fromkeys(("tool", "env", "token"), "string"),
    "prompt": "string or integer",
    **dict.fromkeys(("turn", "policy_lag"), "integer"),
    "advantage": "floating",
    "control": "boolean",
    "in_loss": "boolean",
    **dict.fromkeys(("token_id", "sampled_id"), "integer"),
    "logprob_again": "floating",
}
"""The columns that are read, with the kind of type that each must have."""


AT_ONCE = 1 << 18
"""Rows that are read at once, however many the file has in one piece."""
MOST_TEXTS = 1 << 20
"""Different texts of tokens that are kept; a vocabulary has fewer."""
MOST_TOKENS = 1 << 26
"""Tokens that a step may have, 67 million: a few bytes can claim to be any number of rows."""


class Texts:
    """Numbers the texts of tokens, so that they go the way of token ids."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def ids(self, texts: Iterable[str]) -> IntArray:
        """(N,) the number of each text; those beyond `MOST_TEXTS` have none, −1."""
        return np.fromiter(map(self._id, texts), np.int64)

    def _id(self, text: str) -> int:
        if text not in self._numbers:
            if len(self._texts) == MOST_TEXTS:
                return -1
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return self._numbers[text]

    def decode(self, ids: Iterable[int]) -> str:
        """The texts with these numbers behind each other."""
        return "".join(self._texts[token] if token >= 0 else "" for token in ids)


def read_tokens(file: Path, texts: Texts | None = None, *, audit: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """The arguments of `Monitor.observe` for each step of the table, in rising order of steps.

    Texts may be dictionaries, as categories are written. Memory is that of one step.

    Args:
        texts: numbers the tokens of a table that has their text; it is left out if None.
        audit: whether to read `AUDIT_COLUMNS` as well.

    Raises:
        SourceError: what is wrong with the file, and with which column or step.
    """
    require("pyarrow", "parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    last: int | None = None
    try:
        with pq.ParquetFile(file) as table:
            columns = _columns(file, table.schema_arrow, audit=audit)
            for step, rows in _steps(file, table.iter_batches(AT_ONCE, columns=columns, use_threads=False)):
                if last is not None and step <= last:
                    raise SourceError(
                        f"{file}: step {step} after step {last}, expected the rows in rising order of steps"
                    )
                last = step
                yield step, _observation(file, rows, texts)
    except (OSError, pa.ArrowException) as error:
        what = "no Parquet file" if last is None else f"cannot be read after step {last}"
        raise SourceError(f"{file}: {what}: {one_line(error)}") from error
    if last is None:
        raise SourceError(f"{file}: no rows")


def _steps(file: Path, batches: Iterator[Any]) -> Iterator[tuple[int, Any]]:
    """Rows with the same step that follow each other, as one table."""
    import pyarrow as pa

    waiting: list[Any] = []
    step = 0
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        for name in {*REQUIRED, "after_tool", *AUDIT_COLUMNS} & set(rows.column_names):
            if rows[name].null_count:
                raise SourceError(f"{file}: column {name}: {rows[name].null_count} nulls, expected none")
        steps = rows["step"].to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist()] if len(steps) else []
        for start, end in pairwise([*starts, len(steps)]):
            if waiting and steps[start] != step:
                yield step, pa.concat_tables(waiting)
                waiting = []
            step = int(steps[start])
            waiting.append(rows.slice(start, end - start))
            if sum(map(len, waiting)) > MOST_TOKENS:
                raise SourceError(f"{file}: step {step} has more than {MOST_TOKENS:,} tokens")
    if waiting:
        yield step, pa.concat_tables(waiting)


def _columns(file: Path, schema: Any, *, audit: bool) -> list[str]:
    """The columns of KINDS that the table has; SourceError if one is missing or of another kind."""
    missing = [name for name in REQUIRED if name not in schema.names]
    if missing:
        raise SourceError(f"{file}: column {missing[0]} is missing; it has {', '.join(schema.names)}")
    columns = [name for name in KINDS if name in schema.names and (audit or name not in AUDIT_COLUMNS)]
    for name in columns:
        given = schema.field(name).type
        if not _is(KINDS[name], given):
            raise SourceError(f"{file}: column {name}: {given} given, expected {KINDS[name]}")
    return columns


def _is(kind: str, given: Any) -> bool:
    """Whether the type `given` is of `kind`, or a dictionary of texts where they are expected."""
    from pyarrow import types

    if kind == "string or integer":
        return _is("string", given) or _is("integer", given)
    if kind != "string":
        return bool(getattr(types, f"is_{kind}")(given))
    given = given.value_type if types.is_dictionary(given) else given
    return any(getattr(types, f"is_{form}")(given) for form in ("string", "large_string", "string_view"))


def _observation(file: Path, rows: Any, texts: Texts | None) -> dict[str, Any]:
    order = np.lexsort((rows["position"].to_numpy(), rows["sequence"].to_numpy()))

    def column(name: str, nothing: object = None) -> Any:
        try:
            values = rows[name].cast("large_string") if "string" in KINDS[name] else rows[name]
            values = values if nothing is None else values.fill_null(nothing)
            return values.to_numpy(zero_copy_only=False)[order]
        except Exception as error:  # bytes that are no UTF-8 raise one thing or another
            raise SourceError(f"{file}: column {name}: {one_line(error)}") from error

    observation = {argument: column(name) for name, argument in LOGPROB_COLUMNS.items() if name in rows.column_names}
    observation |= {"model_mask": column("is_model").astype(bool), "sequence_ids": column("sequence")}
    observation |= {argument: column(name) for name, argument in AUDIT_COLUMNS.items() if name in rows.column_names}
    for name, argument in LABEL_COLUMNS.items():
        if name in rows.column_names:
            # Null is none: no tool yet, no turn of a prompt.
            values = column(name, {"integer": -1, "floating": 0.0, "boolean": False}.get(KINDS[name], ""))
            observation[argument] = values.astype(np.float32) if KINDS[name] == "floating" else values
    if texts and "token" in rows.column_names:
        observation["token_ids"] = texts.ids(column("token", ""))
    if "after_tool" in rows.column_names:
        observation["after_tool"] = column("after_tool").astype(bool)
    elif "tool" in observation:
        observation["after_tool"] = _named(observation["tool"])
    return observation


def _named(tool: Any) -> BoolArray:
    return np.array([bool(name) for name in tool])
