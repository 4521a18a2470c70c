"""What callers give, as arrays of the dtypes that a batch holds.

Lists, ragged lists, jagged tensors, one sequence alone, arrays of other libraries; log-probabilities, masks, labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tracker_diag.errors import BatchError
from tracker_diag.stats.arrays import Array, IntArray, namespace, on_device

NAMED = ("tool", "env")
"""Labels whose codes have names."""

KINDS = {"turn": "iu", "policy_lag": "iu", "advantages": "f", "control": "biuf", "begins_after_tool": "biuf"}
"""Labels that are numbers, and the kinds of dtype that say them."""

GROUPINGS = ("prompt", "trajectory_ids")
"""Labels that only say which sequences go together."""

LABELS = (*NAMED, *GROUPINGS, *KINDS)
"""What else may be known of each token."""

UNNAMED = tuple(str(code) for code in range(15))
"""Names of integer tools and environments for which none were given."""


def unified(given: Mapping[str, Any], per_token: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """`given` with every value of `per_token` as an array of numpy, or a tensor of torch on its device.

    Lists of numbers become arrays, those of `labels` too. Sequences of several lengths become packed arrays with their
    `sequence_ids`. They may be a list of lists, of arrays or of tensors, or a jagged tensor. One sequence alone, (T,)
    without ids, becomes (1, T).

    Raises:
        BatchError: what is in no such form, or has other lengths than the rest.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if any(_ragged(values[name]) for name in per_token if name in values):
        values = _packed(values, per_token, labels)
    values |= {name: array_of(name, values[name]) for name in (*per_token, "sequence_ids") if name in values}
    for name in labels:
        if isinstance(values.get(name), list | tuple) and _numbers(values[name]):
            values[name] = array_of(name, values[name])
    token_level = [name for name in per_token if name in values]
    if "sequence_ids" not in values and token_level and all(values[name].ndim == 1 for name in token_level):
        shape = tuple(values[token_level[0]].shape)
        alone = [*token_level, *(name for name in labels if tuple(np.shape(values.get(name, 0))) == shape)]
        for name in alone:
            value = values[name]
            values[name] = (np.asarray(value, object) if isinstance(value, list | tuple) else value).reshape(1, -1)
    return values


def array_of(name: str, value: Any) -> Array:
    """`value` as a numpy array, or as it is on its device; BatchError of the field `name` if it is neither."""
    if on_device(value):
        return value.detach()
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach()
        # numpy has no bfloat16; float32 holds each of its values
        return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if isinstance(value, np.ndarray):
        return value
    kind = type(value).__name__
    if not isinstance(value, list | tuple) and not hasattr(value, "__array__"):
        do = f"np.asarray({name}) may do"
        raise BatchError(name, kind, "a numpy array, a torch tensor or a list of numbers", do)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise BatchError(name, kind, "numbers in a regular shape, or a list of sequences", str(error)) from error
    if array.dtype.kind not in "biuf":
        raise BatchError(name, f"{kind} of {array.dtype}", "numbers, or booleans")
    return array


def _ragged(value: Any) -> bool:
    """Whether `value` is sequences one by one, rather than numbers."""
    if hasattr(value, "detach"):
        return bool(value.is_nested)
    return isinstance(value, list | tuple) and len(value) > 0 and np.ndim(value[0]) == 1


def _numbers(value: Sequence[Any]) -> bool:
    """Whether a list holds no names, which stay as they are."""
    return all(_numbers(part) if isinstance(part, list | tuple) else not isinstance(part, str | None) for part in value)


def _packed(values: Mapping[str, Any], per_token: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """All sequences behind each other, with the number of each token's."""
    if "sequence_ids" in values:
        raise BatchError("sequence_ids", "ids next to a list of sequences", "none: the list says which token is whose")
    packed = dict(values)
    anchor, lengths = "", list[int]()
    for name in [*per_token, *labels]:
        if name not in values or (name in labels and not _ragged(values[name])):
            continue  # a label may have one value per sequence
        value = values[name]
        if not _ragged(value):
            form = f"an array of shape {tuple(value.shape)}" if hasattr(value, "shape") else type(value).__name__
            raise BatchError(name, form, "a list of sequences, as others are")
        parts = value.unbind() if hasattr(value, "detach") else value
        arrays = [
            array_of(f"{name}[{i}]", part)
            if not isinstance(part, list | tuple) or _numbers(part)
            else np.asarray(part, object)
            for i, part in enumerate(parts)
        ]
        here = [len(part) for part in arrays]
        anchor, lengths = anchor or name, lengths or here
        if len(here) != len(lengths):
            raise BatchError(name, f"{len(here)} sequences", f"{len(lengths)}, as {anchor} has")
        for i, (n, expected) in enumerate(zip(here, lengths, strict=True)):
            if n != expected:
                raise BatchError(name, f"sequence {i} of {n} tokens", f"{expected} tokens, as in {anchor}")
        packed[name] = namespace(arrays[0]).concatenate(arrays)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    there = packed[anchor]
    packed["sequence_ids"] = namespace(there).from_numpy(ids).to(there.device) if on_device(there) else ids
    return packed


def kind_of(value: Array) -> str:
    """The kind of a dtype as numpy names it: b, i, u, f, or another."""
    if isinstance(value, np.ndarray):
        return str(value.dtype.kind)
    return "f" if value.is_floating_point() else "b" if str(value.dtype) == "torch.bool" else "i"


def flags_of(name: str, value: Array, check: bool) -> Array:
    """(N,) booleans of `value`, which holds 0 and 1; BatchError otherwise, if `check`."""
    flat = value.reshape(-1)
    if kind_of(flat) == "b":
        return flat
    if check and not ((flat == 0) | (flat == 1)).all():
        raise BatchError(name, f"{flat.dtype} with values other than 0 and 1", "booleans, or 0 and 1")
    return flat != 0


def of_kind(name: str, value: Array, kinds: str, wanted: str, do: str = "") -> Array:
    """`value`, whose dtype is of one of `kinds`; BatchError otherwise."""
    if kind_of(value) not in kinds:
        raise BatchError(name, f"dtype {value.dtype}", wanted, do)
    return value


def floats_of(name: str, value: Array) -> Array:
    """(N,) float64 or float32 of `value`, which is of floats; BatchError otherwise."""
    flat = of_kind(name, value, "f", "floats", "token ids are not log-probabilities").reshape(-1)
    if isinstance(flat, np.ndarray):
        return flat if flat.dtype == np.float64 else flat.astype(np.float32, copy=False)
    return flat if str(flat.dtype) == "torch.float64" else flat.float()


def ids_of(name: str, value: Array) -> Array:
    """(N,) integers of `value`; BatchError of another dtype."""
    return of_kind(name, value, "iu", "integers").reshape(-1)


def label_of(name: str, value: Any, names: Sequence[str] | None, check: bool) -> tuple[Array, tuple[str, ...] | None]:
    """The values of a label in their own shape, and for one of `NAMED` what its codes stand for.

    Raises:
        BatchError: values of another dtype than the label's.
    """
    if name in KINDS:
        wanted = {"f": "floats", "iu": "integers"}.get(KINDS[name], "booleans, or 0 and 1")
        array = of_kind(name, array_of(name, value), KINDS[name], wanted)
        return flags_of(name, array, check).reshape(array.shape) if KINDS[name] == "biuf" else array, None
    if not hasattr(value, "detach"):
        texts = np.asarray(value, dtype=object if isinstance(value, list | tuple) else None)
        if texts.dtype.kind in "OUS":
            return _codes(texts) if name in NAMED else (_checksums(texts), None)
    array = of_kind(name, array_of(name, value), "iu", "integers, or strings")
    if isinstance(array, np.ndarray):
        codes = array if array.dtype == np.int32 else array.astype(np.int64, copy=False)
    else:
        codes = array.long()  # uint8 would index as a mask
    if name not in NAMED:
        return codes, None
    return codes, UNNAMED if names is None else tuple(names)


def _codes(texts: npt.NDArray[Any]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes of `texts` in the order in which they appear; −1 for what is empty or None."""
    flat = texts.reshape(-1).tolist()
    names = [text for text in dict.fromkeys(flat) if text]
    codes = dict.fromkeys(flat, -1) | {text: code for code, text in enumerate(names)}
    each = np.fromiter(map(codes.__getitem__, flat), np.int64, len(flat))
    return each.reshape(texts.shape), tuple(map(str, names))


def _checksums(texts: npt.NDArray[Any]) -> IntArray:
    """A number for each of `texts`, the same in every batch and on every rank; integers among them stay as they are."""
    flat = [text if isinstance(text, int) else crc32(str(text).encode()) for text in texts.reshape(-1).tolist()]
    return np.array(flat, np.int64).reshape(texts.shape)
