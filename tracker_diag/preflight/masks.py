"""The mask audit: what is trained on, in one real batch, against what the policy has sampled."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, failed, judged, passed, unchecked
from tracker_diag.stats.arrays import BoolArray, IntArray
from tracker_diag.tensors.batch import running_count
from tracker_diag.tensors.given import flags_of, ids_of, unified

PADDING, PROMPT, TOOLS = "mask_padding", "mask_prompt", "mask_tools"
COVERAGE, END = "mask_coverage", "mask_end"
NAMES = (PADDING, PROMPT, TOOLS, COVERAGE, END)

MASKS = ("loss_mask", "attention_mask", "response_mask", "model_mask")
LEAST = 0.5
"""Share of the sampled tokens that the loss is to cover in the sequences that it takes: some tokens are left out on
purpose, and cut sequences whole."""

GIVE = "give batch=..., with loss_mask, token_ids, attention_mask, response_mask and model_mask"
AUTHORS = "give model_mask and response_mask in the batch"
LEAKS = {
    PADDING: (
        "padding",
        "loss_mask = loss_mask & attention_mask",
        "give attention_mask in the batch, or token_ids and pad_id",
    ),
    PROMPT: (
        "prompt, or of another's turn",
        "loss_mask = loss_mask & response_mask; see where the prompt's length is taken, and who wrote later turns",
        AUTHORS,
    ),
    TOOLS: (
        "tool output",
        "loss_mask = loss_mask & model_mask: the policy is otherwise trained to write what tools say",
        f"{AUTHORS}, for a batch in which a tool was called; without tools this needs no check",
    ),
}
"""Tokens that the loss should leave out: what they are, what to do where it does not, and what to give."""


@dataclass(frozen=True)
class Audited:
    """A batch, flattened to (N,) on the host; what was not given is None."""

    loss: BoolArray
    sequence: IntArray
    """Which sequence a token is of: 0, 0, …, 1, 1, …"""
    ids: IntArray | None
    attended: BoolArray | None
    """False on padding."""
    sampled: BoolArray | None
    """The model's tokens, or where only the response is known, all of it."""
    left_out: Mapping[str, BoolArray | None]
    """Tokens of each kind of `LEAKS`."""


def audited(batch: Mapping[str, Any], pad_id: int | None) -> Audited:
    """What `batch` holds of masks and ids, (B, T) or (N,) with `sequence_ids`; it has a `loss_mask`."""
    names = (*MASKS, "token_ids")
    arrays = unified({name: batch[name] for name in (*names, "sequence_ids") if name in batch}, names, ())
    arrays = {name: value.cpu().numpy() if hasattr(value, "cpu") else value for name, value in arrays.items()}
    shape = arrays["loss_mask"].shape
    for name, value in arrays.items():
        if value.shape != shape:
            raise BatchError(name, f"shape {value.shape}", f"{shape}, as loss_mask has")
    if not np.prod(shape):
        raise BatchError("loss_mask", f"shape {shape}", "one token or more")
    loss = flags_of("loss_mask", arrays["loss_mask"], True)
    attended, response, model = (flags_of(name, arrays[name], True) if name in arrays else None for name in MASKS[1:])
    ids = ids_of("token_ids", arrays["token_ids"]).astype(np.int64) if "token_ids" in arrays else None
    if "sequence_ids" in arrays:
        sequence = np.cumsum(np.diff(arrays["sequence_ids"], prepend=arrays["sequence_ids"][0]) != 0)
    else:
        sequence = np.repeat(np.arange(shape[0]), shape[1])
    if response is None and model is not None:  # from a sequence's first sampled token on, as `observe` has it
        response = model | (running_count(model, sequence) > 0)
        response = response if attended is None else response & attended
    padding = ~attended if attended is not None else None if ids is None or pad_id is None else ids == pad_id
    others = tools = None
    if response is not None:
        real = attended if attended is not None else running_count(response, sequence) == 0  # padding may come after it
        others = ~response & real
        tools = response & ~model if model is not None and (response & ~model).any() else None
    left_out = {PADDING: padding, PROMPT: others, TOOLS: tools}
    sampled = model if model is not None else response
    return Audited(loss, sequence.astype(np.int64), ids, attended, sampled, left_out)


def mask_checks(batch: Mapping[str, Any], pad_id: int | None = None, eos_id: int | None = None) -> Iterator[Check]:
    """Padding, prompt, tool tokens and the end, each against the loss mask."""
    if batch.get("loss_mask") is None:
        yield from (unchecked(name, "no loss_mask in the batch", GIVE) for name in NAMES)
        return
    given = audited(batch, pad_id if pad_id != eos_id else None)
    if not given.loss.any():
        reason = f"the loss_mask is 0 on all {len(given.loss):,} tokens: nothing is trained"
        do = "look whether all sequences were cut, or the mask is inverted or of another type"
        yield failed(COVERAGE, reason, do)
        others = (name for name in NAMES if name != COVERAGE)
        yield from (unchecked(name, f"{COVERAGE} failed", f"fix {COVERAGE} first") for name in others)
        return
    yield from (_leak(name, given) for name in LEAKS)
    yield _coverage(given)
    yield _end(given, pad_id, eos_id)


def _leak(name: str, batch: Audited) -> Check:
    """Fails if any token is trained on that should be left out."""
    wrong, (what, do, give) = batch.left_out[name], LEAKS[name]
    if wrong is None:
        return unchecked(name, f"no token is known to be {what}", give)
    trained = wrong & batch.loss
    n, total = int(trained.sum()), int(batch.loss.sum())
    if not n:
        return passed(name, f"none of {total:,} trained tokens is {what}", trained=total)
    first = int(np.flatnonzero(trained)[0])
    sequence = batch.sequence[first]
    where = f"first in sequence {sequence}, at token {first - int(np.searchsorted(batch.sequence, sequence))}"
    return failed(name, f"{n:,} of {total:,} trained tokens are {what}, {where}", do, wrong=n, trained=total)


def _coverage(batch: Audited) -> Check:
    sampled = batch.sampled
    if sampled is None:
        return unchecked(COVERAGE, "nothing says which tokens were sampled", AUTHORS)
    kept = np.isin(batch.sequence, np.unique(batch.sequence[batch.loss]))  # cut sequences may be left out whole
    for by, side in ((1, "late"), (-1, "early")):
        moved = np.roll(sampled, by) & (np.roll(batch.sequence, by) == batch.sequence)
        if (batch.loss != sampled)[kept].any() and np.array_equal(batch.loss[kept], moved[kept]):
            do = "logits at position t are about token t + 1: shift the mask with the labels, or neither"
            return failed(COVERAGE, f"loss_mask is the mask of sampled tokens, one token {side}", do)
    covered, total = int((batch.loss & sampled).sum()), int((sampled & kept).sum())
    reason = f"the loss covers {covered:,} of {total:,} sampled tokens of the sequences that it takes"
    do = "look whether loss_mask is inverted, shifted, or of another batch"
    return judged(COVERAGE, reason, [(covered < LEAST * total, reason, do)], covered=covered, sampled=total)


def _end(batch: Audited, pad_id: int | None, eos_id: int | None) -> Check:
    if eos_id is None or batch.ids is None:
        return unchecked(END, "the end of a response is not known", "give eos_id=... and token_ids in the batch")
    ends = (running_count(batch.loss, batch.sequence) > 0) & (batch.ids == eos_id)
    first = ends & (running_count(ends, batch.sequence) == 1)
    if batch.attended is not None and pad_id != eos_id:
        first &= batch.attended
    ended, trained = int(first.sum()), int((first & batch.loss).sum())
    if not ended:
        total = len(np.unique(batch.sequence[batch.loss]))
        do = "raise the limit of tokens, or see whether eos_id is the token that the chat template ends a turn with"
        return failed(END, f"none of {total} responses has the end token {eos_id}", do)
    reason = f"the end token is trained in {trained} of the {ended} responses that have it"
    if trained < ended:
        same = pad_id == eos_id
        why = "it is the padding token as well, and masked with it" if same else "the mask ends one token too early"
        do = "take another padding token" if same else "let the mask reach to the end token and include it"
        return failed(END, f"{reason}: {why}, so the policy never learns to stop", do, trained=trained, ended=ended)
    return passed(END, reason, trained=trained, ended=ended)
