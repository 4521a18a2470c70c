"""The mask audit: what is trained on, in one real batch, against what the policy has sampled."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, failed, judged, passed, unchecked
from tracker_diag.stats.arrays import BoolArray, IntArray
from tracker_diag.tensors.batch import running_count
from tracker_diag.tensors.given import flags_of, of_kind, unified

NAMES = PADDING, PROMPT, TOOLS, COVERAGE, END = "mask_padding", "mask_prompt", "mask_tools", "mask_coverage", "mask_end"

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


def _flat(batch: Mapping[str, Any]) -> tuple[dict[str, Any], IntArray]:
    """Masks and ids of `batch`, (B, T) or (N,) with `sequence_ids`, as (N,) on the host; and each token's sequence."""
    names = (*MASKS, "token_ids")
    arrays = unified({name: batch[name] for name in (*names, "sequence_ids") if name in batch}, names, ())
    arrays = {name: value.cpu().numpy() if hasattr(value, "cpu") else value for name, value in arrays.items()}
    shape = arrays["loss_mask"].shape
    for name, value in arrays.items():
        if value.shape != shape:
            raise BatchError(name, f"shape {value.shape}", f"{shape}, as loss_mask has")
    if not np.prod(shape):
        raise BatchError("loss_mask", f"shape {shape}", "one token or more")
    flat = {name: flags_of(name, arrays[name], True) for name in MASKS if name in arrays}
    if "token_ids" in arrays:
        flat["token_ids"] = of_kind("token_ids", arrays["token_ids"], "iu", "integers").reshape(-1)
    if "sequence_ids" not in arrays:
        return flat, np.repeat(np.arange(shape[0]), shape[1])
    return flat, np.cumsum(np.diff(arrays["sequence_ids"], prepend=arrays["sequence_ids"][0]) != 0)


def mask_checks(batch: Mapping[str, Any], pad_id: int | None = None, eos_id: int | None = None) -> Iterator[Check]:
    """Padding, prompt, tool tokens and the end, each against the loss mask."""
    if batch.get("loss_mask") is None:
        yield from (unchecked(name, "no loss_mask in the batch", GIVE) for name in NAMES)
        return
    flat, sequence = _flat(batch)
    loss: BoolArray = flat["loss_mask"]
    attended, response, model, ids = map(flat.get, (*MASKS[1:], "token_ids"))
    if not loss.any():
        reason = f"the loss_mask is 0 on all {len(loss):,} tokens: nothing is trained"
        do = "look whether all sequences were cut, or the mask is inverted or of another type"
        yield failed(COVERAGE, reason, do)
        others = (name for name in NAMES if name != COVERAGE)
        yield from (unchecked(name, f"{COVERAGE} failed", f"fix {COVERAGE} first") for name in others)
        return
    if response is None and model is not None:  # from a sequence's first sampled token on, as `observe` has it
        response = model | (running_count(model, sequence) > 0)
        response = response if attended is None else response & attended
    left_out: dict[str, BoolArray | None] = dict.fromkeys(LEAKS)
    if attended is not None:
        left_out[PADDING] = ~attended
    elif ids is not None and pad_id is not None and pad_id != eos_id:
        left_out[PADDING] = ids == pad_id
    if response is not None:
        real = attended if attended is not None else running_count(response, sequence) == 0  # padding may come after it
        left_out[PROMPT] = ~response & real
        if model is not None and (response & ~model).any():
            left_out[TOOLS] = response & ~model
    yield from (_leak(name, wrong, loss, sequence) for name, wrong in left_out.items())
    yield _coverage(loss, response if model is None else model, sequence)
    if eos_id is None or ids is None:
        yield unchecked(END, "the end of a response is not known", "give eos_id=... and token_ids in the batch")
        return
    ends = (running_count(loss, sequence) > 0) & (ids == eos_id)
    first = ends & (running_count(ends, sequence) == 1)
    yield _end(loss, first if attended is None or pad_id == eos_id else first & attended, sequence, eos_id, pad_id)


def _leak(name: str, wrong: BoolArray | None, loss: BoolArray, sequence: IntArray) -> Check:
    """Fails if any token is trained on that should be left out."""
    what, do, give = LEAKS[name]
    if wrong is None:
        return unchecked(name, f"no token is known to be {what}", give)
    trained = wrong & loss
    n, total = int(trained.sum()), int(loss.sum())
    if not n:
        return passed(name, f"none of {total:,} trained tokens is {what}", trained=total)
    first = int(np.flatnonzero(trained)[0])
    where = f"first in sequence {sequence[first]}, at token {first - int(np.searchsorted(sequence, sequence[first]))}"
    return failed(name, f"{n:,} of {total:,} trained tokens are {what}, {where}", do, wrong=n, trained=total)


def _coverage(loss: BoolArray, sampled: BoolArray | None, sequence: IntArray) -> Check:
    if sampled is None:
        return unchecked(COVERAGE, "nothing says which tokens were sampled", AUTHORS)
    kept = np.isin(sequence, np.unique(sequence[loss]))  # cut sequences may be left out whole
    for by, side in ((1, "late"), (-1, "early")):
        moved = np.roll(sampled, by) & (np.roll(sequence, by) == sequence)
        if (loss != sampled)[kept].any() and np.array_equal(loss[kept], moved[kept]):
            do = "logits at position t are about token t + 1: shift the mask with the labels, or neither"
            return failed(COVERAGE, f"loss_mask is the mask of sampled tokens, one token {side}", do)
    covered, total = int((loss & sampled).sum()), int((sampled & kept).sum())
    reason = f"the loss covers {covered:,} of {total:,} sampled tokens of the sequences that it takes"
    do = "look whether loss_mask is inverted, shifted, or of another batch"
    return judged(COVERAGE, reason, [(covered < LEAST * total, reason, do)], covered=covered, sampled=total)


def _end(loss: BoolArray, ends: BoolArray, sequence: IntArray, eos_id: int, pad_id: int | None) -> Check:
    """Whether the loss covers `ends`, the first end token of each response."""
    ended, trained = int(ends.sum()), int((ends & loss).sum())
    if not ended:
        do = "raise the limit of tokens, or see whether eos_id is the token that the chat template ends a turn with"
        return failed(END, f"none of {len(np.unique(sequence[loss]))} responses has the end token {eos_id}", do)
    reason = f"the end token is trained in {trained} of the {ended} responses that have it"
    if trained < ended:
        same = pad_id == eos_id
        why = "it is the padding token as well, and masked with it" if same else "the mask ends one token too early"
        do = "take another padding token" if same else "let the mask reach to the end token and include it"
        return failed(END, f"{reason}: {why}, so the policy never learns to stop", do, trained=trained, ended=ended)
    return passed(END, reason, trained=trained, ended=ended)
