"""The mask audit: what is trained on, in one real batch, against what the policy has sampled."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracker_diag.errors import BatchError
from tracker_diag.preflight.check import Check, failed, judged, passed, unchecked
from tracker_diag.stats.arrays import BoolArray, IntArray
from tracker_diag.tensors.batch import running_count
from tracker_diag.tensors.chat import ChatFormat
from tracker_diag.tensors.given import unified
from tracker_diag.tensors.labels import array_of, flags_of, ids_of

PADDING = "mask_padding"
PROMPT = "mask_prompt"
TOOLS = "mask_tools"
COVERAGE = "mask_coverage"
END = "mask_end"
IDS = "retokenisation"
NAMES = (PADDING, PROMPT, TOOLS, COVERAGE, END, IDS)

MASKS = ("loss_mask", "attention_mask", "response_mask", "model_mask")
LEAST = 0.5
"""Share of the sampled tokens that the loss is to cover in the sequences that it takes: some tokens are left out on
purpose, and cut sequences whole."""

GIVE = "give batch=..., with loss_mask, token_ids, attention_mask, response_mask and model_mask"


@dataclass(frozen=True)
class Audited:
    """One batch, flattened to (N,) on the host; what was not given is None."""

    loss: BoolArray
    sequence: IntArray
    """Which sequence a token is of: 0, 0, …, 1, 1, …"""
    ids: IntArray | None
    attended: BoolArray | None
    """False on padding."""
    response: BoolArray | None
    model: BoolArray | None

    @classmethod
    def of(cls, batch: Mapping[str, Any], tokenizer: Any = None, pad_id: int | None = None) -> "Audited | None":
        """What `batch` holds of masks and ids, (B, T) or (N,) with `sequence_ids`; None without a `loss_mask`.

        With a `tokenizer`, who wrote a token is told by its chat template where no masks say it.

        Raises:
            BatchError: shapes that differ, or values that are no masks.
        """
        if batch.get("loss_mask") is None:
            return None
        names = (*MASKS, "token_ids")
        values = unified({name: batch[name] for name in (*names, "sequence_ids") if name in batch}, names, ())
        host = {name: array_of(name, value) for name, value in values.items()}
        host = {name: value.cpu().numpy() if hasattr(value, "cpu") else value for name, value in host.items()}
        shape = host["loss_mask"].shape
        for name, value in host.items():
            if value.shape != shape:
                raise BatchError(name, f"shape {value.shape}", f"{shape}, as loss_mask has")
        if not np.prod(shape):
            raise BatchError("loss_mask", f"shape {shape}", "one token or more")
        flags = {name: flags_of(name, host[name], True) for name in MASKS if name in host}
        ids = ids_of("token_ids", host["token_ids"]).astype(np.int64) if "token_ids" in host else None
        if "sequence_ids" in host:
            starts = np.diff(host["sequence_ids"], prepend=host["sequence_ids"][0]) != 0
            sequence = np.cumsum(starts)
        else:
            sequence = np.repeat(np.arange(shape[0]), shape[1])
        if tokenizer is not None and ids is not None and not {"response_mask", "model_mask"} & {*flags}:
            keep = flags.get("attention_mask", np.ones(len(ids), bool) if pad_id is None else ids != pad_id)
            labels = ChatFormat.of(tokenizer).label(ids, attention_mask=keep, sequence_ids=sequence)
            flags |= {"response_mask": labels.response_mask, "model_mask": labels.model_mask}
        attended, model = flags.get("attention_mask"), flags.get("model_mask")
        response = flags.get("response_mask")
        if response is None and model is not None:  # from a sequence's first sampled token on, as `observe` has it
            response = model | (running_count(model, sequence) > 0)
            response = response if attended is None else response & attended
        return cls(flags["loss_mask"], sequence.astype(np.int64), ids, attended, response, model)


def mask_checks(batch: Audited | None, pad_id: int | None, eos_id: int | None) -> Iterator[Check]:
    """Padding, prompt, tool tokens and the end, each against the loss mask."""
    if batch is None:
        yield from (unchecked(name, "no batch with a loss_mask", GIVE) for name in NAMES[:-1])
        return
    if not batch.loss.any():
        reason = f"the loss_mask is 0 on all {len(batch.loss):,} tokens: nothing is trained"
        yield failed(
            COVERAGE, reason, "look whether all sequences were cut, or the mask is inverted or of another type"
        )
        skipped = (name for name in NAMES[:-1] if name != COVERAGE)
        yield from (unchecked(name, f"{COVERAGE} failed", f"mend {COVERAGE} first") for name in skipped)
        return
    yield _padding(batch, pad_id, eos_id)
    yield _prompt(batch)
    yield _tools(batch)
    yield _coverage(batch)
    yield _end(batch, pad_id, eos_id)


def _inside(name: str, wrong: BoolArray, batch: Audited, what: str, do: str) -> Check:
    """Fails if any token of `wrong` is trained on."""
    trained = wrong & batch.loss
    n, total = int(trained.sum()), int(batch.loss.sum())
    if not n:
        return passed(name, f"none of {total:,} trained tokens is {what}", trained=total)
    first = int(np.flatnonzero(trained)[0])
    where = f"first in sequence {batch.sequence[first]}, at token {_position(batch, first)}"
    return failed(name, f"{n:,} of {total:,} trained tokens are {what}, {where}", do, wrong=n, trained=total)


def _padding(batch: Audited, pad_id: int | None, eos_id: int | None) -> Check:
    if batch.attended is not None:
        padding = ~batch.attended
    elif batch.ids is not None and pad_id is not None and pad_id != eos_id:
        padding = batch.ids == pad_id
    else:
        return unchecked(
            PADDING, "nothing says what is padding", "give attention_mask in the batch, or token_ids and pad_id"
        )
    return _inside(PADDING, padding, batch, "padding", "loss_mask = loss_mask & attention_mask")


def _prompt(batch: Audited) -> Check:
    if batch.response is None:
        return unchecked(
            PROMPT, "nothing says where the prompt ends", "give response_mask in the batch, or tokenizer=..."
        )
    others = ~batch.response
    if batch.attended is not None:
        others &= batch.attended
    else:  # what comes after the response may be padding
        others &= running_count(batch.response, batch.sequence) == 0
    do = "loss_mask = loss_mask & response_mask; see where the prompt's length is taken, and who wrote later turns"
    return _inside(PROMPT, others, batch, "prompt, or of another's turn", do)


def _tools(batch: Audited) -> Check:
    if batch.response is None or batch.model is None:
        do = "give response_mask and model_mask in the batch, or tokenizer=..."
        return unchecked(TOOLS, "nothing says which tokens a tool wrote", do)
    tools = batch.response & ~batch.model
    if not tools.any():
        do = "give a batch in which a tool was called; without tools this needs no check"
        return unchecked(TOOLS, "the batch has no tool token", do)
    do = "loss_mask = loss_mask & model_mask: the policy is otherwise trained to write what tools say"
    return _inside(TOOLS, tools, batch, "tool output", do)


def _coverage(batch: Audited) -> Check:
    sampled = batch.model if batch.model is not None else batch.response
    if sampled is None:
        return unchecked(
            COVERAGE, "nothing says which tokens were sampled", "give model_mask in the batch, or tokenizer=..."
        )
    kept = np.isin(batch.sequence, np.unique(batch.sequence[batch.loss]))  # cut sequences may be left out whole
    for by in (1, -1):
        moved = np.roll(sampled, by) & (np.roll(batch.sequence, by) == batch.sequence)
        if (batch.loss != sampled)[kept].any() and np.array_equal(batch.loss[kept], moved[kept]):
            side = "late" if by == 1 else "early"
            do = "logits at position t are about token t + 1: shift the mask with the labels, or neither"
            return failed(COVERAGE, f"loss_mask is the mask of sampled tokens, one token {side}", do)
    covered, total = int((batch.loss & sampled).sum()), int((sampled & kept).sum())
    told = f"the loss covers {covered:,} of {total:,} sampled tokens of the sequences that it takes"
    do = "look whether loss_mask is inverted, shifted, or of another batch"
    return judged(COVERAGE, told, [(covered < LEAST * total, told, do)], covered=covered, sampled=total)


def _end(batch: Audited, pad_id: int | None, eos_id: int | None) -> Check:
    if eos_id is None or batch.ids is None:
        return unchecked(END, "the end of a response is not known", "give eos_id=... and token_ids in the batch")
    begun = running_count(batch.loss, batch.sequence) > 0
    ends = begun & (batch.ids == eos_id)
    first = ends & (running_count(ends, batch.sequence) == 1)
    if batch.attended is not None and pad_id != eos_id:
        first &= batch.attended
    total = len(np.unique(batch.sequence[batch.loss]))
    ended, trained = int(first.sum()), int((first & batch.loss).sum())
    if not ended:
        do = "raise the limit of tokens, or see whether eos_id is the one that the chat template ends a turn with"
        return failed(END, f"none of {total} responses has the end token {eos_id}", do)
    told = f"the end token is trained in {trained} of the {ended} responses that have one"
    if trained < ended:
        same = pad_id == eos_id
        why = "it is the padding token as well, and masked with it" if same else "the mask ends one token too early"
        do = "take another padding token" if same else "let the mask reach to the end token and include it"
        return failed(END, f"{told}: {why}, so the policy never learns to stop", do, trained=trained, ended=ended)
    return passed(END, told, trained=trained, ended=ended)


def _position(batch: Audited, token: int) -> int:
    return token - int(np.searchsorted(batch.sequence, batch.sequence[token]))


def ids_check(sampled: Sequence[Sequence[int]] | None, trained: Sequence[Sequence[int]] | None) -> Check:
    """Whether the ids that the engine sampled are those that are trained on: a list of ids for each sequence."""
    if sampled is None or trained is None:
        do = "give sampled_ids=..., as the engine returned them, and trained_ids=..., as the loss gets them"
        return unchecked(IDS, "token ids were not given twice", do)
    if len(sampled) != len(trained):
        raise BatchError("trained_ids", f"{len(trained)} sequences", f"{len(sampled)}, as sampled_ids has")
    if not len(sampled):
        return unchecked(IDS, "no sequence", "give one sequence at least")
    pairs = [([*map(int, one)], [*map(int, other)]) for one, other in zip(sampled, trained, strict=True)]
    differing = [i for i, (one, other) in enumerate(pairs) if one != other]
    if not differing:
        return passed(IDS, f"{len(pairs)} sequences have the same ids on both sides", sequences=len(pairs))
    one, other = pairs[differing[0]]
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    told = f"{len(differing)} of {len(pairs)} sequences have other ids when trained"
    told += f", sequence {differing[0]} from token {at} on"
    do = "hand ids from the engine to the trainer, never text: decoding and encoding again gives other tokens"
    return failed(IDS, told, do, differing=len(differing))
