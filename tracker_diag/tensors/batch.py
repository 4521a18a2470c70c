"""TokenBatch: validated per-token arrays of one observation, whatever shape and library they came in."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, get_args

import numpy as np

from tracker_diag.errors import BatchError, UnknownName
from tracker_diag.metrics.series import PAIRS, Pair
from tracker_diag.stats.arrays import Array, namespace, on_device, starts_of
from tracker_diag.stats.once import once
from tracker_diag.tensors.given import LABELS, flags_of, floats_of, ids_of, kind_of, label_of, unified

if TYPE_CHECKING:
    from typing_extensions import Unpack

Tensor: TypeAlias = Any
"""A numpy array or a torch tensor, as a caller gives it; or one of the forms that `unified` makes these of."""

LOGPROBS = ("logprobs", "old_logprobs", "rollout_logprobs", "ref_logprobs")
MASKS = ("response_mask", "model_mask", "after_tool")
APPLIED = "applied_weights"
TOKENS = "token_ids"


class Tensors(TypedDict, total=False):
    """What a trainer knows of the tokens of a batch: numpy arrays or torch tensors, (B, T) padded or (N,) packed.

    Taken as well: lists of numbers; sequences of several lengths as a list of lists, arrays or tensors, or as a jagged
    tensor; one sequence alone, (T,) without `sequence_ids`; arrays of other libraries, such as jax, in host memory.
    """

    logprobs: Tensor
    """Natural log-probabilities of the sampled tokens under the current policy. Float16, bfloat16, float32 or
    float64, like the three below; at least two of them that form a pair of `PAIRS`."""
    old_logprobs: Tensor
    """Under the proximal policy, that of the batch's start."""
    rollout_logprobs: Tensor
    """Under the policy that sampled, as the inference engine tells."""
    ref_logprobs: Tensor
    """Under the reference policy."""
    response_mask: Tensor
    """Bool or 0/1: model and tool tokens. Without it every token from a sequence's first model token on is taken
    for response. At least one of the two masks is needed."""
    model_mask: Tensor
    """Bool or 0/1: tokens that the policy sampled. Without it `response_mask` is taken for it, with its gaps as tool
    output: so it is where a trainer has a loss mask alone."""
    after_tool: Tensor
    """Bool or 0/1: tokens that follow a tool result, if you know better than the masks do; otherwise a gap in
    `model_mask` counts as one."""
    begins_after_tool: Tensor
    """Bool or 0/1, one value per sequence: its prompt ends with a tool result, as where each turn of a trajectory is a
    sequence of its own. Then its tokens follow one from the first on."""
    trajectory_ids: Tensor
    """Integers or strings, one value per sequence: its trajectory, if several sequences are turns of one. `turn` then
    says which turn. The prompt of a later turn has what a tool or the environment said to the turn before. Without
    `turn` and `begins_after_tool`, sequences that share a trajectory have unknown context up to their first gap. So do
    those with a negative `turn`."""
    sequence_ids: Tensor
    """(N,) integers, for packed arrays only; the tokens of a sequence are adjacent."""
    tool: Tensor
    """Which tool answered last: strings, or codes from 0 on that `tool_names` may name; empty, None or negative for
    none. Like the six below of the same shape, or one value per sequence."""
    tool_names: "Sequence[str] | None"
    env: Tensor
    """Which environment a sequence is from: strings, or codes from 0 on."""
    prompt: Tensor
    """Which prompt a sequence answers: integers or strings, the same for all samples of one prompt. They are alike, so
    the sampling error of a tail is that of prompts; without it, of as many sequences as stand next to each other."""
    turn: Tensor
    """Integers: turns of the sequence before the token's own."""
    policy_lag: Tensor
    """Integers: updates of the policy since the token was sampled."""
    advantages: Tensor
    """Floats: their signs are slices, and their sizes give the share of each slice in the gradient."""
    control: Tensor
    """Bool or 0/1: delimiters of the chat template and of tool calls."""
    applied_weights: Tensor
    """Importance weights as the optimiser used them, after truncation, clipping or masking: of mismatch if
    rollout_logprobs are given, else of policy."""
    token_ids: Tensor
    """Integers: the tokens themselves. They stay in memory. They are kept for sequences that carry the tail of a slice,
    while a rule is pending or firing there."""


@dataclass(frozen=True)
class TokenBatch:
    """Per-token arrays of one observation, flattened to (N,), with the sequence of each token.

    Build it with `TokenBatch.validated`. Within a sequence, tokens stand in the order of the text. The arrays are
    numpy's, or torch's on the device where they were.
    """

    logprobs: dict[str, Array]
    """Natural logarithms, (N,) floats, by the names of `LOGPROBS`; those that were given."""
    model_mask: Array
    """(N,) True on tokens that the policy sampled; all statistics are over these alone."""
    given_response: Array | None = None
    """(N,) `response_mask`, where the caller knows it; else None."""
    after_tool: Array | None = None
    """(N,) True on model tokens after a tool result, where the caller knows it; else None."""
    labels: dict[str, Array] = field(default_factory=dict[str, Array])
    """(N,) by the names of `LABELS`, those that were given; of tool and env the code, −1 for none."""
    names: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """What the codes of tool and env stand for."""
    applied_weights: Array | None = None
    """(N,) importance weights as the optimiser used them, where given."""
    width: int | None = None
    """T of padded arrays (B, T); None for packed ones."""
    ids: Array | None = None
    """(N,) index of each token's sequence, of packed arrays: 0, 0, …, 1, 1, …"""
    given_ids: Array | None = None
    """(N,) the same as the caller numbers them."""
    token_ids: Array | None = None
    """(N,) integers, where given."""

    @classmethod
    def validated(cls, *, check: bool = True, **given: "Unpack[Tensors]") -> "TokenBatch":
        """Validate the arrays of one observation and bring them into one shape.

        Args:
            given: see `Tensors`.
            check: whether to look at the values of masks and ids on a device too, which waits for it.

        Raises:
            BatchError: with the offending field, what was given, what is expected.
        """
        if unknown := sorted(given.keys() - Tensors.__annotations__.keys()):
            raise BatchError(unknown[0], "no such argument", f"one of {', '.join(Tensors.__annotations__)}")
        values = unified(given, (*LOGPROBS, *MASKS, APPLIED, TOKENS), LABELS)
        about = {name: values.pop(name) for name in LABELS if name in values}
        tool_names, given_ids = values.pop("tool_names", None), values.get("sequence_ids")
        _same_device(values)
        arrays = {name: values[name] for name in (*LOGPROBS, *MASKS, APPLIED, TOKENS) if name in values}
        shape, anchor = _same_shape(arrays)
        _forms_a_pair(arrays)
        check = check or not on_device(arrays[anchor])
        ids = _sequence(shape, anchor, given_ids, check)

        masks = {name: flags_of(name, arrays[name], check) for name in MASKS if name in arrays}
        response, model = masks.get("response_mask"), masks.get("model_mask")
        if model is None:
            if response is None:
                need = "response_mask, and model_mask if there are tools: 1 on the tokens that the policy sampled"
                raise BatchError("model_mask", "no mask", need)
            model, response = response, None  # what most trainers call the loss mask: its gaps are what tools said
        width = shape[1] if len(shape) == 2 else None
        model = model if response is None else model & response
        if check and not model.any():
            what, some = f"no model token among {len(model)}", "at least one True"
            if not all(masks[name].any() for name in ("response_mask", "model_mask") if name in masks):
                do = "micro-batches without one are no harm, if others have some"
                raise BatchError("model_mask", what, some, do, masked=True)
            raise BatchError("model_mask", what, some, "is the mask inverted or shifted?")
        batch = cls(
            logprobs={name: floats_of(name, arrays[name]) for name in LOGPROBS if name in arrays},
            model_mask=model,
            given_response=response,
            after_tool=masks.get("after_tool"),
            applied_weights=floats_of(APPLIED, arrays[APPLIED]) if APPLIED in arrays else None,
            width=width,
            ids=ids,
            given_ids=given_ids,
            token_ids=ids_of(TOKENS, arrays[TOKENS]) if TOKENS in arrays else None,
        )
        for name, value in about.items():
            label, names = label_of(name, value, tool_names if name == "tool" else None, check)
            batch.labels[name] = batch.spread(name, batch.on_same_device(label), shape)
            if names is not None:
                batch.names[name] = names
        return batch

    @property
    def is_on_device(self) -> bool:
        """Whether the arrays are torch's."""
        return namespace(self.model_mask) is not np

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The ratio pairs whose two log-probabilities were both given."""
        return tuple(pair for pair, (new, old) in PAIRS.items() if {new, old} <= self.logprobs.keys())

    @once
    def sequence(self) -> Array:
        """(N,) index of each token's sequence: 0, 0, …, 1, 1 and so on."""
        return self.ids if self.ids is not None else self.per_token(self.arange(self.sequences))

    @once
    def response_mask(self) -> Array:
        """(N,) True on model and tool tokens, False on prompt and padding: as given, or from a first model token on."""
        if self.given_response is not None:
            return self.given_response
        flags, n = self.model_mask, len(self.model_mask)
        if self.is_on_device:
            return flags | (self.model_count > 0)
        starts = np.arange(0, n, self.width) if self.ids is None else starts_of(self.ids)
        ends, rises = np.append(starts[1:], n), np.append(np.flatnonzero(flags[1:] > flags[:-1]) + 1, n)
        first = np.where(flags[starts], starts, np.minimum(rises[rises.searchsorted(starts)], ends))
        lengths = np.stack([first - starts, ends - first], 1).reshape(-1)
        return np.tile([False, True], len(starts)).repeat(lengths)

    @once
    def tool_output(self) -> Array:
        """(N,) True on what a tool or the environment said: response that was not sampled, after a sampled token."""
        return self.response_mask & ~self.model_mask & (self.model_count > 0)

    @once
    def model_count(self) -> Array:
        """(N,) model tokens from the start of each token's sequence up to and with it."""
        return self.running_count(self.model_mask)

    @once
    def sequences(self) -> int:
        """How many sequences there are; of packed arrays on a device, where this is not known, at most as many."""
        if self.ids is None:
            return int(len(self.model_mask) // (self.width or 1))
        return len(self.ids) if on_device(self.ids) else int(self.ids[-1]) + 1

    def log_ratio(self, pair: Pair) -> Array:
        """(N,) log-ratio r of `pair` in nats; off the model tokens its value means nothing."""
        if pair not in PAIRS:
            raise UnknownName("pair", pair, get_args(Pair))
        new, old = PAIRS[pair]
        with np.errstate(invalid="ignore"):  # inf − inf is NaN, which is counted, not dropped
            return self.logprobs[new] - self.logprobs[old]

    def running_count(self, flags: Array) -> Array:
        """(N,) how many of `flags` (N,) are set from the start of each token's sequence up to and with it."""
        return running_count(flags, self.ids, self.width)

    def running_max(self, values: Array) -> Array:
        """(N,) the largest of `values` (N,), integers in 0 … N, from the start of each token's sequence on."""
        if self.ids is None:
            rows = values.reshape(-1, self.width or 1)
            return (np.maximum.accumulate(rows, 1) if namespace(rows) is np else rows.cummax(1).values).reshape(-1)
        sequence = self.ids.astype(np.int64) if isinstance(self.ids, np.ndarray) else self.ids
        offset = sequence * (len(values) + 1)  # what one sequence adds, no value of another outgrows
        values = values + offset
        return (np.maximum.accumulate(values) if namespace(values) is np else values.cummax(0).values) - offset

    def per_token(self, values: Array) -> Array:
        """(N,) the value of each token's sequence, from `values` (sequences,)."""
        if self.ids is not None:
            return values[self.ids]
        if namespace(values) is np:
            return np.repeat(values, self.width or 1)
        return values[:, None].expand(-1, self.width).reshape(-1)

    def first_of_sequence(self, values: Array) -> tuple[Array, Array]:
        """(sequences,) the value of each sequence's first token, of `values` (N,), and whether there is such a one."""
        xp, numbers = namespace(values), self.arange(self.sequences)
        if self.ids is None:
            return values[:: self.width or 1], numbers >= 0
        places = xp.searchsorted(self.ids, numbers + 0 * self.ids[0])
        return values[xp.clip(places, None, len(values) - 1)], numbers <= self.ids[-1]

    def by_sequence(self, values: Array) -> Array:
        """(sequences,) float64 sums of `values` (N,) over each sequence."""
        xp = namespace(values)
        if self.width is not None:
            return values.reshape(-1, self.width).sum(1, dtype=xp.float64)
        if xp is np:
            starts = np.flatnonzero(np.diff(self.sequence, prepend=-1))
            return np.add.reduceat(values.astype(np.float64), starts)
        sums = xp.zeros(self.sequences, dtype=xp.float64, device=values.device)
        return sums.index_add_(0, self.ids, values.double())

    def arange(self, n: int) -> Array:
        """(n,) int32 0, 1, 2 and so on, where the batch is."""
        xp = namespace(self.model_mask)
        if xp is np:
            return np.arange(n, dtype=np.int32)
        return xp.arange(n, dtype=xp.int32, device=self.model_mask.device)

    def on_same_device(self, values: Array) -> Array:
        """`values` where the batch is: as they are, or on its device."""
        if on_device(self.model_mask) and isinstance(values, np.ndarray):
            import torch

            host = torch.from_numpy(values)  # copied from pinned memory, the host need not wait
            host = host.pin_memory() if self.model_mask.is_cuda else host
            return host.to(self.model_mask.device, non_blocking=True)
        return values

    def spread(self, name: str, values: Array, shape: tuple[int, ...]) -> Array:
        """(N,) from `values` of the batch's `shape`, or of one value per sequence; BatchError otherwise."""
        if tuple(values.shape) == shape:
            return values.reshape(-1)
        if tuple(values.shape) == (self.sequences,):
            return self.per_token(values)
        raise BatchError(name, f"shape {tuple(values.shape)}", f"{shape}, or ({self.sequences},), one per sequence")


def running_count(flags: Array, ids: Array | None, width: int | None = None) -> Array:
    """(N,) how many of `flags` are set from the start of each token's sequence up to and with it.

    Sequences are `width` tokens long, or else those of `ids` (N,). No step waits for a device.
    """
    xp = namespace(flags)
    if width is not None:
        return flags.reshape(-1, width).cumsum(1, dtype=xp.int32).reshape(-1)
    total = flags.cumsum(0, dtype=xp.int32)
    if xp is np:
        starts = starts_of(ids)
        return total - (total[starts] - flags[starts]).repeat(np.diff(starts, append=len(flags)))
    first = xp.ones_like(flags, dtype=xp.bool)
    first[1:] = ids[1:] != ids[:-1]  # type: ignore[index]
    # `total` never falls, so the largest count at a start so far is that of the token's own sequence.
    return total - xp.where(first, total - flags * 1, 0).cummax(0).values


def _same_device(arrays: dict[str, Array]) -> None:
    devices = {name: str(getattr(value, "device", "cpu")) for name, value in arrays.items()}
    anchor, first = next(iter(devices.items()), ("", ""))
    for name, device in devices.items():
        if device != first:
            raise BatchError(name, f"a tensor on {device}", f"{first}, where {anchor} is")


def _same_shape(arrays: dict[str, Array]) -> tuple[tuple[int, ...], str]:
    if not arrays:
        raise BatchError("logprobs", "nothing", "at least two of " + ", ".join(LOGPROBS))
    anchor, first = next(iter(arrays.items()))
    shape = tuple(first.shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise BatchError(anchor, f"shape {shape}", "(B, T) padded or (N,) packed, with one token or more")
    for name, value in arrays.items():
        if tuple(value.shape) != shape:
            raise BatchError(name, f"shape {tuple(value.shape)}", f"{shape}, as {anchor} has")
    return shape, anchor


def _forms_a_pair(arrays: dict[str, Array]) -> None:
    if not any(new in arrays and old in arrays for new, old in PAIRS.values()):
        have = ", ".join(name for name in LOGPROBS if name in arrays) or "no log-probabilities"
        wanted = ", or ".join(f"{new} and {old} ({pair})" for pair, (new, old) in PAIRS.items())
        raise BatchError("logprobs", have, wanted)


def _sequence(shape: tuple[int, ...], anchor: str, ids: Array | None, check: bool) -> Array | None:
    if len(shape) == 2:
        if ids is not None:
            raise BatchError("sequence_ids", f"ids for padded arrays of shape {shape}", "none, or packed arrays (N,)")
        return None
    if ids is None:
        raise BatchError("sequence_ids", f"nothing for packed {anchor} of shape {shape}", f"integers of shape {shape}")
    if tuple(ids.shape) != shape or kind_of(ids) not in "iu":
        raise BatchError("sequence_ids", f"{ids.dtype} of shape {tuple(ids.shape)}", f"integers of shape {shape}")
    xp = namespace(ids)
    if xp is np:
        first = starts_of(ids)
    else:
        starts = xp.ones_like(ids, dtype=xp.bool)
        starts[1:] = ids[1:] != ids[:-1]
        first = starts.nonzero()[:, 0] if check else starts
    if check and len(xp.unique(ids[first])) != len(first):
        raise BatchError("sequence_ids", "a sequence in several pieces", "the tokens of a sequence adjacent")
    if xp is np:
        return np.arange(len(first), dtype=np.int32).repeat(np.diff(first, append=len(ids)))
    return starts.cumsum(0) - 1
