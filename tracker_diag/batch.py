"""TokenBatch: validated per-token arrays of one observation, whatever shape and library they came in."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from tracker_diag.arrays import BoolArray, FloatArray, IntArray
from tracker_diag.errors import BatchError, UnknownName

Tensor: TypeAlias = Any
"""A numpy array or a torch tensor; torch is optional, so its type cannot stand here."""

Pair: TypeAlias = Literal["policy", "mismatch", "reference"]
"""Which two log-probabilities are subtracted, trainer first."""

PAIRS: dict[Pair, tuple[str, str]] = {
    "policy": ("logprobs", "old_logprobs"),
    "mismatch": ("old_logprobs", "rollout_logprobs"),
    "reference": ("logprobs", "ref_logprobs"),
}
LOGPROBS = ("logprobs", "old_logprobs", "rollout_logprobs", "ref_logprobs")
MASKS = ("response_mask", "model_mask", "after_tool")


@dataclass(frozen=True)
class TokenBatch:
    """Per-token arrays of one observation, flattened to (N,) with the sequence of each token.

    Build it with `TokenBatch.of`. Within a sequence, tokens stand in the order of the text.
    """

    logprobs: dict[str, FloatArray]
    """Natural logarithms, (N,) float32 or float64, by the names of `LOGPROBS`; those that were given."""
    response_mask: BoolArray
    """(N,) True on model and tool tokens, False on prompt and padding."""
    model_mask: BoolArray
    """(N,) True on tokens that the policy sampled; all statistics are over these alone."""
    after_tool: BoolArray | None
    """(N,) True on model tokens after a tool result, where the caller knows it; else None."""
    sequence: IntArray
    """(N,) index of the token's sequence: 0, 0, …, 1, 1, …"""

    @classmethod
    def of(
        cls,
        *,
        logprobs: Tensor = None,
        old_logprobs: Tensor = None,
        rollout_logprobs: Tensor = None,
        ref_logprobs: Tensor = None,
        response_mask: Tensor = None,
        model_mask: Tensor = None,
        after_tool: Tensor = None,
        sequence_ids: Tensor = None,
    ) -> "TokenBatch":
        """Validate the arrays of one observation and bring them into one shape.

        Args:
            logprobs, old_logprobs, rollout_logprobs, ref_logprobs: log-probabilities in nats of the
                sampled tokens under the current, the proximal, the sampling and the reference policy.
                (B, T) padded, or (N,) packed; float16, bfloat16, float32 or float64. At least two
                that form a pair of `PAIRS`.
            response_mask: same shape, bool or 0/1: model and tool tokens. Without it every token from
                a sequence's first model token on is taken for response.
            model_mask: same shape, bool or 0/1: tokens that the policy sampled. Without it every
                response token is one. At least one of the two masks is needed.
            after_tool: same shape, bool or 0/1: tokens that follow a tool result, if you know better
                than the masks do; otherwise a gap in `model_mask` counts as one.
            sequence_ids: (N,) integers, for packed arrays only; the tokens of a sequence are adjacent.

        Tensors on an accelerator are copied to the host.

        Raises:
            BatchError: with the offending field, what was given, what is expected.
        """
        given = {
            "logprobs": logprobs,
            "old_logprobs": old_logprobs,
            "rollout_logprobs": rollout_logprobs,
            "ref_logprobs": ref_logprobs,
            "response_mask": response_mask,
            "model_mask": model_mask,
            "after_tool": after_tool,
        }
        present = {name: value for name, value in given.items() if value is not None}
        _same_device({**present, "sequence_ids": sequence_ids})
        arrays = {name: _array(name, value) for name, value in present.items()}
        shape, anchor = _same_shape(arrays)
        _forms_a_pair(arrays)
        sequence = _sequence(shape, anchor, None if sequence_ids is None else _array("sequence_ids", sequence_ids))

        masks = {name: _mask(name, arrays[name]) for name in MASKS if name in arrays}
        response, model = masks.get("response_mask"), masks.get("model_mask")
        if model is None:
            if response is None:
                raise BatchError("model_mask", "no mask", "model_mask or response_mask, True on sampled tokens")
            model = response
        if response is None:
            response = model | (running_count(model, sequence) > 0)
        model = model & response
        if not model.any():
            what = f"no model token among {model.size}"
            raise BatchError("model_mask", what, "at least one True", "is the mask inverted or shifted?")
        return cls(
            logprobs={name: _floats(name, arrays[name]) for name in LOGPROBS if name in arrays},
            response_mask=response,
            model_mask=model,
            after_tool=masks.get("after_tool"),
            sequence=sequence,
        )

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The ratio pairs whose two log-probabilities were both given."""
        return tuple(pair for pair, (new, old) in PAIRS.items() if {new, old} <= self.logprobs.keys())

    def log_ratio(self, pair: Pair) -> FloatArray:
        """(N,) log-ratio r of `pair` in nats; off the model tokens its value means nothing."""
        if pair not in PAIRS:
            raise UnknownName("pair", pair, get_args(Pair))
        new, old = PAIRS[pair]
        with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is counted, not dropped
            return self.logprobs[new] - self.logprobs[old]

    def require_finite(self) -> None:
        """Raise BatchError if a log-probability of a model token is NaN or infinite."""
        for name, values in self.logprobs.items():
            bad = int(np.count_nonzero(~np.isfinite(values[self.model_mask])))
            if bad:
                what = f"{bad} NaN or infinite among {int(self.model_mask.sum())} model tokens"
                raise BatchError(
                    name, what, "finite log-probabilities", "take unscored tokens out of model_mask and response_mask"
                )


def running_count(flags: BoolArray, sequence: IntArray) -> IntArray:
    """(N,) how many of `flags` are set from the start of each token's sequence up to and with it."""
    total = np.cumsum(flags, dtype=np.int64)
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    before = (total - flags)[starts]
    return total - np.repeat(before, np.diff(starts, append=flags.size))


def _array(name: str, value: Tensor) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach()
        if str(value.dtype) == "torch.bfloat16":  # numpy has none; float32 holds each of its values
            value = value.float()
        value = value.cpu().numpy()
    if not isinstance(value, np.ndarray):
        raise BatchError(name, type(value).__name__, "a numpy array or a torch tensor")
    return value


def _same_device(given: dict[str, Tensor]) -> None:
    devices = {name: str(value.device) for name, value in given.items() if hasattr(value, "device")}
    if devices:
        anchor, first = next(iter(devices.items()))
        for name, device in devices.items():
            if device != first:
                raise BatchError(name, f"a tensor on {device}", f"{first}, where {anchor} is")


def _same_shape(arrays: dict[str, npt.NDArray[Any]]) -> tuple[tuple[int, ...], str]:
    if not arrays:
        raise BatchError("logprobs", "nothing", "at least two of " + ", ".join(LOGPROBS))
    anchor, first = next(iter(arrays.items()))
    if first.ndim not in (1, 2):
        raise BatchError(anchor, f"shape {first.shape}", "(B, T) padded or (N,) packed")
    for name, value in arrays.items():
        if value.shape != first.shape:
            raise BatchError(name, f"shape {value.shape}", f"{first.shape}, as {anchor} has")
    return first.shape, anchor


def _forms_a_pair(arrays: dict[str, npt.NDArray[Any]]) -> None:
    if not any(new in arrays and old in arrays for new, old in PAIRS.values()):
        have = ", ".join(name for name in LOGPROBS if name in arrays) or "no log-probabilities"
        wanted = ", or ".join(f"{new} and {old} ({pair})" for pair, (new, old) in PAIRS.items())
        raise BatchError("logprobs", have, wanted)


def _sequence(shape: tuple[int, ...], anchor: str, ids: npt.NDArray[Any] | None) -> IntArray:
    if len(shape) == 2:
        if ids is not None:
            raise BatchError("sequence_ids", f"ids for padded arrays of shape {shape}", "none, or packed arrays (N,)")
        return np.repeat(np.arange(shape[0]), shape[1])
    if ids is None:
        raise BatchError("sequence_ids", f"nothing for packed {anchor} of shape {shape}", f"integers of shape {shape}")
    if ids.shape != shape or ids.dtype.kind not in "iu":
        raise BatchError("sequence_ids", f"{ids.dtype} of shape {ids.shape}", f"integers of shape {shape}")
    starts = np.diff(ids, prepend=ids[:1] - 1) != 0
    if np.unique(ids[starts]).size != np.count_nonzero(starts):
        raise BatchError("sequence_ids", "a sequence in several pieces", "the tokens of a sequence adjacent")
    return np.cumsum(starts) - 1


def _mask(name: str, value: npt.NDArray[Any]) -> BoolArray:
    flat = value.reshape(-1)
    if flat.dtype != np.bool_ and not np.isin(flat, (0, 1)).all():
        raise BatchError(name, f"{flat.dtype} with values other than 0 and 1", "booleans, or 0 and 1")
    return flat.astype(np.bool_)


def _floats(name: str, value: npt.NDArray[Any]) -> FloatArray:
    if value.dtype.kind != "f":
        raise BatchError(name, f"dtype {value.dtype}", "floats", "token ids are not log-probabilities")
    if value.dtype == np.float64:
        return value.reshape(-1)
    return value.reshape(-1).astype(np.float32, copy=False)
