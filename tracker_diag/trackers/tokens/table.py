"""The token table: rows of Arrow, one a token or one a sequence with lists, as the arguments of `observe` by step."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tracker_diag.errors import SourceError
from tracker_diag.stats.arrays import Array, IntArray, RowArray, starts_of
from tracker_diag.trackers.finished import one_line
from tracker_diag.trackers.tokens.columns import (
    AUDIT_COLUMNS,
    KINDS,
    LABEL_COLUMNS,
    LOGPROB_COLUMNS,
    NAMED_COLUMNS,
    REQUIRED,
    Layout,
    is_list,
)
from tracker_diag.trackers.tokens.skipped import Skipped

WHOLE = {*REQUIRED, "after_tool", *AUDIT_COLUMNS}
"""Columns without nulls."""
ARGUMENTS = {"is_model": "model_mask", "sequence": "sequence_ids", "after_tool": "after_tool"} | (
    LOGPROB_COLUMNS | LABEL_COLUMNS | AUDIT_COLUMNS
)
"""Columns that are arguments of `observe` as they are."""
NOTHING = {"integer": -1, "floating": 0.0, "boolean": False}
"""What null says in a label: no tool yet, no turn of a prompt."""
MOST_TEXTS = 1 << 20
"""Different texts of tokens that are kept; a vocabulary has fewer."""


class Texts:
    """Numbers the texts of tokens, so that they go the way of token ids."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []

    def ids(self, texts: Collection[str]) -> IntArray:
        """(N,) the number of each text; those beyond `MOST_TEXTS` have none, −1."""
        for text in texts:
            if text not in self._numbers and len(self._texts) < MOST_TEXTS:
                self._numbers[text] = len(self._texts)
                self._texts.append(text)
        return np.fromiter((self._numbers.get(text, -1) for text in texts), np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The texts with these numbers behind each other."""
        return "".join(self._texts[id] if id >= 0 else "" for id in ids)


def typed(where: str, rows: Any, layout: Layout, known: Mapping[str, int], first: int = 0) -> Any:
    """`rows` as they were read, with a row for each token, our names, and the types of `KINDS`.

    `known` are columns of one value. Rows that are sequences without a number are numbered from `first` on.
    """
    import pyarrow as pa

    columns = {name: _whole(rows[theirs]) for name, theirs in layout.names.items()}
    n = rows.num_rows
    if layout.nested:
        columns.setdefault("sequence", pa.array(np.arange(first, first + n)))
        columns, n = _tokens_of(where, columns)
    columns |= {name: pa.array(np.full(n, value)) for name, value in known.items() if name not in columns}
    return pa.table({name: _typed(where, name, values) for name, values in columns.items()})


def _whole(column: Any) -> Any:
    """A column as one array, copied only if it has several parts."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _typed(where: str, name: str, values: Any) -> Any:
    import pyarrow as pa
    from pyarrow import compute, types

    kind = KINDS[name]
    try:
        if kind == "boolean" and not types.is_boolean(values.type):
            if compute.all(compute.is_in(values, pa.array([0, 1]).cast(values.type))).as_py() is False:
                raise SourceError(f"{where}: column {name}: {values.type} with values other than 0 and 1")
            values = values.cast(pa.bool_())
        elif kind == "integer":
            values = values.cast(pa.int64()) if not types.is_integer(values.type) else values
        elif name in NAMED_COLUMNS:
            if not types.is_dictionary(values.type):
                values = (values if types.is_integer(values.type) else values.cast("large_string")).dictionary_encode()
            texts = values.dictionary.cast("large_string")
            values = pa.DictionaryArray.from_arrays(values.indices.cast(pa.int32()), texts)
        elif types.is_null(values.type):
            values = values.cast(pa.float32())
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise SourceError(f"{where}: column {name}: {values.type} given, expected {kind}: {one_line(error)}") from error
    if name in WHOLE and values.null_count:
        raise SourceError(f"{where}: column {name}: {values.null_count} nulls, expected none")
    return values


def _tokens_of(where: str, columns: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The lists of each row one after the other, and its other values once for each token."""
    import pyarrow as pa
    from pyarrow import compute

    lists = {name: values for name, values in columns.items() if is_list(values.type)}
    sizes = {name: compute.list_value_length(values).fill_null(0).to_numpy() for name, values in lists.items()}
    (anchor, lengths), *others = sizes.items()
    for name, given in others:
        if (bad := np.flatnonzero(given != lengths)).size:
            what = f"row {bad[0]}: {given[bad[0]]} values given, expected {lengths[bad[0]]}, as {anchor} has"
            raise SourceError(f"{where}: column {name}: {what}")
    row = np.repeat(np.arange(len(lengths)), lengths)
    tokens = {name: values.flatten() if name in lists else values.take(row) for name, values in columns.items()}
    if "position" not in lists:
        tokens["position"] = pa.array(np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths))
    return tokens, len(row)


def by_step(
    where: str, rows: Any, texts: Texts | None, skipped: Skipped, step: int | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The arguments of `Monitor.observe` for each step of `rows`, in rising order; rows may have any order.

    A sequence of which rows are there twice is `skipped`. `step` is given where all rows are of one.
    """
    keys = ("sequence", "position") if step is not None else ("step", "sequence", "position")
    if not _are_in_order([rows[name].to_numpy() for name in keys]):
        rows = _in_order(where, rows, keys, skipped, step)
    if not len(rows):
        return
    read = {name: _array(where, name, _whole(rows[name])) for name in rows.column_names if name != "step"}
    names = {name: texts_of for name, (_, texts_of) in read.items()}
    steps = rows["step"].to_numpy() if step is None else np.array([step])
    for start, end in pairwise([*starts_of(steps).tolist(), len(rows)]):
        columns = {name: values[start:end] for name, (values, _) in read.items()}
        yield int(steps[start]), _arguments(columns, names, texts)


def _in_order(where: str, rows: Any, keys: Sequence[str], skipped: Skipped, step: int | None) -> Any:
    """`rows` in the order of `keys`, without sequences of which `skipped` has counted rows that are there twice."""
    rows = rows.take(np.lexsort([rows[name].to_numpy() for name in keys][::-1]))
    order = [rows[name].to_numpy() for name in keys]
    same = [values[1:] == values[:-1] for values in order]
    twice, of_sequence = np.logical_and.reduce(same), np.logical_and.reduce(same[:-1])
    if not twice.any():
        return rows
    at = int(twice.argmax())
    first = ", ".join(f"{name} {values[at]}" for name, values in zip(keys, order, strict=True))
    first = first if step is None else f"step {step}, {first}"
    what = f"{twice.sum()} rows are there twice, the first of them {first}"
    skipped(SourceError(f"{where}: {what}; give each sequence of a step a number of its own"))
    sequence = np.append(0, (~of_sequence).cumsum())
    return rows.filter(~np.isin(sequence, sequence[1:][twice]))


def _are_in_order(keys: Sequence[Array]) -> bool:
    """Whether rows are in the order of `keys`, the first of them first, none of them twice."""
    *first, last = keys
    new = first[-1][1:] != first[-1][:-1]
    for values in first[:-1]:
        new |= values[1:] != values[:-1]
    at = np.flatnonzero(new)
    rises, same = np.zeros(len(at), np.bool_), np.ones(len(at), np.bool_)
    for values in first:
        rises |= same & (values[at + 1] > values[at])
        same &= values[at + 1] == values[at]
    falls = np.flatnonzero(last[1:] <= last[:-1])
    return bool(rises.all() and new[falls].all())


def _arguments(columns: Mapping[str, Array], names: Mapping[str, list[str]], texts: Texts | None) -> dict[str, Any]:
    """What `observe` is given of the rows of a step; `names` are those of columns of codes."""
    given: dict[str, Any] = {argument: columns[name] for name, argument in ARGUMENTS.items() if name in columns}
    if "tool" in columns:
        given["tool"], given["tool_names"] = _codes(columns["tool"], names["tool"])
    for name in [name for name in ("env", "prompt") if name in columns]:
        # One for each sequence, where it is the same on all of its tokens.
        values, starts = columns[name], starts_of(columns["sequence"])
        values = values[starts] if np.isin(starts_of(values), starts).all() else values
        given[name] = np.array([*names[name], ""], object)[values]  # the last is that of null, −1
    if texts and "token" in columns:
        given["token_ids"] = texts.ids(columns["token"])
    if "after_tool" not in given and "tool" in given:
        given["after_tool"] = given["tool"] >= 0
    return given


def _array(where: str, name: str, values: Any) -> tuple[Array, list[str]]:
    """The values of a column or their codes, and what the codes mean."""
    from pyarrow import types

    try:
        if types.is_dictionary(values.type):
            return values.indices.fill_null(-1).to_numpy(zero_copy_only=False), values.dictionary.to_pylist()
        if name == "token":
            return values.cast("large_string").fill_null("").to_numpy(zero_copy_only=False), []
        if name in LABEL_COLUMNS and values.null_count:
            values = values.fill_null(NOTHING[KINDS[name]])
        bits = types.is_boolean(values.type) and not values.null_count
        array: Array = _flags(values) if bits else values.to_numpy(zero_copy_only=False)
    except Exception as error:  # bytes that are no UTF-8 raise one thing or another
        raise SourceError(f"{where}: column {name}: {one_line(error)}") from error
    return array.astype(np.float32, copy=False) if name == "advantage" else array, []


def _flags(values: Any) -> Array:
    """Bits of Arrow as numpy has them, in a tenth of the time that Arrow takes."""
    bits = np.frombuffer(values.buffers()[1], np.uint8)
    return np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :].view(np.bool_)


def _codes(codes: Array, names: list[str]) -> tuple[RowArray, list[str]]:
    """Codes in the order in which names first appear, −1 for no name, and the names that appear."""
    starts = starts_of(codes)
    here = [code for code in dict.fromkeys(codes[starts].tolist()) if code >= 0 and names[code]]
    if here == [*range(len(names))]:
        return codes, names
    table = np.full(len(names) + 1, -1, np.int32)
    table[here] = np.arange(len(here))
    return table[codes], [names[code] for code in here]
