"""Values as the dtypes that a batch holds: log-probabilities, masks, and what else is known of each token."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tracker_diag.errors import BatchError
from tracker_diag.stats.arrays import Array, IntArray, on_device

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


def array_of(name: str, value: Any) -> Array:
    """`value` as a numpy array, or as it is on its device; BatchError of the field `name` if it is neither."""
    if on_device(value):
        return value.detach()
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # numpy has none; float32 holds each of its values
            value = value.float()
        value = value.numpy()
    if not isinstance(value, np.ndarray):
        raise BatchError(name, type(value).__name__, "a numpy array or a torch tensor")
    return value


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


def floats_of(name: str, value: Array) -> Array:
    """(N,) float64 or float32 of `value`, which is of floats; BatchError otherwise."""
    if kind_of(value) != "f":
        raise BatchError(name, f"dtype {value.dtype}", "floats", "token ids are not log-probabilities")
    flat = value.reshape(-1)
    if isinstance(flat, np.ndarray):
        return flat if flat.dtype == np.float64 else flat.astype(np.float32, copy=False)
    return flat if str(flat.dtype) == "torch.float64" else flat.float()


def ids_of(name: str, value: Array) -> Array:
    """(N,) integers of `value`; BatchError of another dtype."""
    if kind_of(value) not in "iu":
        raise BatchError(name, f"dtype {value.dtype}", "integers")
    return value.reshape(-1)


def label_of(name: str, value: Any, names: Sequence[str] | None, check: bool) -> tuple[Array, tuple[str, ...] | None]:
    """The values of a label in their own shape, and for one of `NAMED` what its codes stand for.

    Raises:
        BatchError: values of another dtype than the label's.
    """
    if name in KINDS:
        return _numbers(name, array_of(name, value), check), None
    if not hasattr(value, "detach"):
        texts = np.asarray(value, dtype=object if isinstance(value, list | tuple) else None)
        if texts.dtype.kind in "OUS":
            return _codes(texts) if name in NAMED else (_checksums(texts), None)
    array = array_of(name, value)
    if kind_of(array) not in "iu":
        raise BatchError(name, f"dtype {array.dtype}", "integers, or strings")
    codes = array.astype(np.int64) if isinstance(array, np.ndarray) else array.long()  # uint8 would index as a mask
    if name not in NAMED:
        return codes, None
    return codes, UNNAMED if names is None else tuple(names)


def _numbers(name: str, array: Array, check: bool) -> Array:
    kinds = KINDS[name]
    if kind_of(array) not in kinds:
        wanted = {"f": "floats", "iu": "integers"}.get(kinds, "booleans, or 0 and 1")
        raise BatchError(name, f"dtype {array.dtype}", wanted)
    return flags_of(name, array, check).reshape(array.shape) if kinds == "biuf" else array


def _codes(texts: npt.NDArray[Any]) -> tuple[IntArray, tuple[str, ...]]:
    """Codes of `texts` in the order in which they appear; −1 for what is empty or None."""
    flat = texts.reshape(-1).tolist()
    names = [text for text in dict.fromkeys(flat) if text]
    codes = dict.fromkeys(flat, -1) | {text: code for code, text in enumerate(names)}
    found = np.fromiter(map(codes.__getitem__, flat), np.int64, len(flat))
    return found.reshape(texts.shape), tuple(map(str, names))


def _checksums(texts: npt.NDArray[Any]) -> IntArray:
    """A number for each of `texts`, the same in every batch and on every rank; integers among them stay as they are."""
    flat = [text if isinstance(text, int) else crc32(str(text).encode()) for text in texts.reshape(-1).tolist()]
    return np.array(flat, np.int64).reshape(texts.shape)
