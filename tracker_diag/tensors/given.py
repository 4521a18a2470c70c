"""What callers give, as arrays: lists, ragged lists, jagged tensors, one sequence alone, arrays of other libraries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.stats.arrays import Array


def unified(given: Mapping[str, Any], per_token: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """`given` with every value of `per_token` and `labels` as an array of numpy or a tensor of torch.

    Lists of numbers become arrays. Sequences of several lengths, as a list of lists, of arrays or of tensors, or as a
    jagged tensor, become packed arrays with their `sequence_ids`. One sequence alone, (T,) without ids, becomes (1, T).

    Raises:
        BatchError: what is in no such form, or has other lengths than the rest.
    """
    values = {name: value for name, value in given.items() if value is not None}
    if all(_plain(values[name]) for name in values if name in per_token):
        pass  # what trainers have, and all that there is to do in most runs
    elif any(_ragged(values[name]) for name in per_token if name in values):
        values = _packed(values, per_token, labels)
    else:
        values |= {name: _array(name, values[name]) for name in per_token if name in values}
    listed = [
        name
        for name in (*labels, "sequence_ids")
        if isinstance(values.get(name), list | tuple) and _numbers(values[name])
    ]
    values |= {name: _array(name, values[name]) for name in listed}
    token_level = [name for name in per_token if name in values]
    if "sequence_ids" not in values and token_level and all(values[name].ndim == 1 for name in token_level):
        shape = tuple(values[token_level[0]].shape)
        alone = [*token_level, *(name for name in labels if tuple(np.shape(values.get(name, 0))) == shape)]
        values |= {name: _rows(values[name]) for name in alone}
    return values


def _plain(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and not value.is_nested)


def _ragged(value: Any) -> bool:
    """Whether `value` is sequences one by one, rather than numbers."""
    if hasattr(value, "detach"):
        return bool(value.is_nested)
    return isinstance(value, list | tuple) and len(value) > 0 and np.ndim(value[0]) == 1


def _numbers(value: Sequence[Any]) -> bool:
    """Whether a list holds no names, which stay as they are."""
    return all(_numbers(one) if isinstance(one, list | tuple) else not isinstance(one, str | None) for one in value)


def _parts(name: str, value: Any) -> list[Array]:
    """The sequences of `value`, one by one."""
    if hasattr(value, "detach") and value.is_nested:
        return list(value.unbind())
    return [_part(f"{name}[{i}]", part) for i, part in enumerate(value)]


def _part(name: str, value: Any) -> Array:
    if isinstance(value, list | tuple) and not _numbers(value):
        return np.asarray(value, object)
    return _array(name, value)


def _packed(values: Mapping[str, Any], per_token: Sequence[str], labels: Sequence[str]) -> dict[str, Any]:
    """All sequences behind each other, with the number of each token's."""
    if "sequence_ids" in values:
        raise BatchError("sequence_ids", "ids beside a list of sequences", "none: the list says which token is whose")
    packed = dict(values)
    anchor, lengths = "", list[int]()
    for name in [*per_token, *labels]:
        if name not in values or (name in labels and not _ragged(values[name])):
            continue  # a label may have one value per sequence
        if not _ragged(values[name]):
            raise BatchError(name, _form(values[name]), "a list of sequences, as others are")
        parts = _parts(name, values[name])
        found = [len(part) for part in parts]
        anchor, lengths = anchor or name, lengths or found
        if len(found) != len(lengths):
            raise BatchError(name, f"{len(found)} sequences", f"{len(lengths)}, as {anchor} has")
        for i, (n, expected) in enumerate(zip(found, lengths, strict=True)):
            if n != expected:
                raise BatchError(name, f"sequence {i} of {n} tokens", f"{expected} tokens, as in {anchor}")
        packed[name] = _joined(parts)
    packed["sequence_ids"] = _ids(packed[anchor], lengths)
    return packed


def _form(value: Any) -> str:
    return f"an array of shape {tuple(value.shape)}" if _plain(value) else type(value).__name__


def _joined(parts: list[Array]) -> Array:
    if hasattr(parts[0], "detach"):
        import torch

        return torch.cat(parts)
    return np.concatenate(parts)


def _ids(beside: Array, lengths: list[int]) -> Array:
    """(N,) the number of each token's sequence, where `beside` is."""
    ids = np.repeat(np.arange(len(lengths)), lengths)
    if not hasattr(beside, "detach"):
        return ids
    import torch

    return torch.from_numpy(ids).to(beside.device)


def _array(name: str, value: Any) -> Array:
    """A list of numbers, or an array of another library such as jax, as numpy's."""
    if _plain(value):
        return value
    given = type(value).__name__
    if not isinstance(value, list | tuple) and not hasattr(value, "__array__"):
        raise BatchError(
            name, given, "a numpy array, a torch tensor or a list of numbers", f"np.asarray({name}) may do"
        )
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise BatchError(name, given, "numbers in a regular shape, or a list of sequences", str(error)) from error
    if array.dtype.kind not in "biuf":
        raise BatchError(name, f"{given} of {array.dtype}", "numbers, or booleans")
    return array


def _rows(value: Any) -> Any:
    """(1, T) from (T,)."""
    return value.reshape(1, -1) if _plain(value) else np.asarray(value, object).reshape(1, -1)
