"""Likely mistakes in the tensors of a first batch, each with what was assumed and what to do."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracker_diag.metrics.reasons import SAY_TURN
from tracker_diag.metrics.series import CONTEXT, PAIRS, Dimension, Pair
from tracker_diag.stats.arrays import Array
from tracker_diag.tensors.batch import Tensors, TokenBatch
from tracker_diag.tensors.observation import Observation

GAPS = (
    "response_mask has gaps, and no model_mask was given: the gaps are taken for tool output, and what follows them "
    "for post_tool. If they are something else, give model_mask too, True on sampled tokens."
)
FAR = 0.5
"""Nats of mean |log-ratio|, below which nothing is suspected; a shift by one token gives about 1."""


def suspicions(given: Tensors, batch: TokenBatch, rows: Mapping[Dimension, Array]) -> Iterator[str]:
    """Likely mistakes in a first batch, with the argument and what to do, a sentence or two each.

    It looks at values, so on a device it waits for them.

    Args:
        given: the tensors as they came.
        rows: by dimension the row of each token, or of each model token, as `label` gives it.
    """
    if "response_mask" in given and not {"model_mask", "after_tool"} & {*given} and (rows["context"] == 1).any():
        yield GAPS
    if (unknown := int((rows["context"] == len(CONTEXT)).sum())) > 0:
        yield (
            f"of {unknown:,} of {int(batch.model_mask.sum()):,} model tokens nobody has said whether a tool result "
            "comes before them: their trajectory is in several sequences. They count in the slice all alone. "
            f"To have them sliced, {SAY_TURN}."
        )
    yield from _about_masks(given, batch)
    yield from _about_values(given, batch)
    for name, partner in (("rollout_logprobs", "old_logprobs"), ("ref_logprobs", "logprobs")):
        if name in batch.logprobs and partner not in batch.logprobs:
            yield f"{name} came without {partner}, so the ratio of the two is not seen. Give {partner}=... as well."


def _about_masks(given: Mapping[str, Any], batch: TokenBatch) -> Iterator[str]:
    if "model_mask" not in given or "response_mask" not in given:
        return
    inside, asked = int(batch.model_mask.sum()), _size(given["model_mask"])
    outside = f"{asked - inside:,} of {asked:,} tokens of model_mask lie outside response_mask, and are left out."
    if asked - inside > inside:
        yield (
            f"{outside} Is one of the two inverted? response_mask is 1 on everything after the prompt, model_mask on "
            "what the policy sampled."
        )
    elif asked > inside == int(batch.response_mask.sum()):
        yield (
            "response_mask is wholly inside model_mask. Are the two swapped? response_mask is 1 on everything after "
            "the prompt, tool output included; model_mask is 1 on what the policy sampled, and 0 on tool output."
        )
    elif asked > inside:
        cover = "let response_mask cover them: response_mask = response_mask | model_mask."
        yield f"{outside} If they were sampled by the policy, {cover}"
    first = batch.response_mask & (batch.running_count(batch.response_mask) == 1)
    if int((first & batch.model_mask).sum()) < 0.05 * int(first.sum()):
        yield (
            "hardly any sequence begins its response with a token of model_mask. Is model_mask inverted, or shifted? "
            "It is 1 on tokens that the policy sampled, and 0 on what tools said: perhaps model_mask = 1 - model_mask."
        )


def _about_values(given: Mapping[str, Any], batch: TokenBatch) -> Iterator[str]:
    model = batch.model_mask
    odd: set[str] = set()
    for name, values in batch.logprobs.items():
        ours = values[model]
        if bool((ours > POSITIVE).any()):
            odd.add(name)
            probable = bool((ours >= 0).all()) and bool((ours <= 1 + POSITIVE).all())
            what = "probabilities" if probable else "logits"
            remedy = f"{name}=log(p)" if probable else "the log-softmax at the token, not the logit"
            most = f"{float(ours.max()):.3g}"
            yield f"{name} has values up to {most}; a log-probability is at most 0. Are these {what}? Give {remedy}."
    for pair in batch.pairs:
        new, old = PAIRS[pair]
        if given[new] is given[old]:
            yield (
                f"{new} and {old} are the same tensor, so the ratio of the pair {pair} is 1 throughout. Keep {old} "
                "from before the update, as a copy that does not change."
            )
        elif not odd & {new, old} and (
            complaint := _of_other_tokens(batch.logprobs[new][model], batch.logprobs[old][model])
        ):
            yield f"{new} and {old} {complaint}"


def _of_other_tokens(new: Array, old: Array) -> str:
    """What is to be said if the two do not go together: those of two policies do, however far they have parted."""
    off = float(abs(new - old).mean())
    new, old = (values - values.mean() for values in (new, old))
    spread = float((new * new).mean()) * float((old * old).mean())
    together = float((new * old).mean()) / spread**0.5 if spread > 0 else 1.0
    if off < FAR or together > 0.5:
        return ""
    return (
        f"are {off:.2g} nats different in the mean, with a correlation of {together:.2f}, as if they were of different "
        "tokens. Is one shifted by a token? Logits at position t are about token t + 1."
    )


def _size(mask: Any) -> int:
    """How many are set, of a mask in any form that is taken."""
    if isinstance(mask, list | tuple):
        return sum(_size(part) if hasattr(part, "__len__") else int(part) for part in mask)
    return int(mask.sum()) if hasattr(mask, "sum") else int(np.asarray(mask).sum())


def shown_by(given: Collection[str]) -> str:
    """From which of the tensors that came it is taken which tokens come after a tool."""
    if "after_tool" in given:
        return "as after_tool says"
    masks = [mask for mask in ("model_mask", "response_mask") if mask in given]
    begins = ""
    if "begins_after_tool" in given:
        begins = ", and sequences that begin after one"
    elif {"trajectory_ids", "turn"} <= {*given}:
        begins = ", and later turns of a trajectory"
    return f"what follows a gap of {' within '.join(masks)}{begins}"


POSITIVE = 1e-3
"""What float noise may add to a log-probability of 0."""

MERGED = (
    "Until the next log they are taken for micro-batches of one step. If each is a step, as where only every tenth is "
    "logged, say so: observe(..., step=n). "
)

UNHEARD = 5
"""Steps observed without a word of metrics, after which that is no delay any more."""

UNOBSERVED = 50
"""Steps logged without tensors, after which these have ceased to come."""

UNSEEN = 20
"""Steps without tensors after which it is said what can be seen all the same."""

SETTLED = 5
"""Steps after which a ratio that is still 1 stays so: the first ones may be on-policy."""


@dataclass(frozen=True)
class Reach:
    """What can come of a trainer at all."""

    without: Mapping[Pair, str | None] = field(default_factory=dict[Pair, str | None])
    """Pairs that cannot, each with what would change it, or None if nothing would."""
    tools: bool = True
    """Whether tokens can come after a tool."""


class Silence:
    """What does not come: a `log` after observations, or tensors after some had come. Each is said once.

    What was usual so far counts: a step may have several micro-batches, and not every step need have tensors.
    """

    def __init__(self) -> None:
        self._batches, self._most_batches = 0, 1
        self._last_observed: int | None = None
        self._steps, self._most_steps = 0, 0
        self._last_logged: int | None = None
        self._signal = False
        self._promised: dict[Pair, str] = {}
        self.reach = Reach()
        self._rows = 0
        self._unsaid = {"metrics", "tensors", "look"}

    def promise(self, pairs: Mapping[Pair, str], reach: Reach) -> None:
        """Expect these pairs within five logged steps, each with how it is seen; see `attach.kit.add_active`."""
        self._promised, self.reach = dict(pairs), reach

    def observed(self, step: int | None) -> str | None:
        """A batch has come, of `step` if that was said; what is to be said."""
        self._batches += step is None or step != self._last_observed
        self._last_observed = step
        self._most_steps, self._steps = max(self._steps, self._most_steps), 0
        if self._batches < UNHEARD * self._most_batches or "metrics" not in self._unsaid:
            return None
        self._unsaid.discard("metrics")
        return (
            f"{self._batches} batches were observed, and no metrics were heard since. {MERGED if step is None else ''}"
            "Log through the tracker that was wrapped, or call run.diag.log(metrics, step) after each observe(...)."
        )

    def logged(self, step: int, last_with_tensors: int | None) -> str | None:
        """Metrics of `step` have come; what is to be said."""
        if self._batches:
            self._most_batches, self._batches = max(self._batches, self._most_batches), 0
        new = step != self._last_logged
        self._steps, self._rows, self._last_logged = self._steps + new, self._rows + new, step
        if self._promised and self._rows > UNHEARD:  # the row of this step has yet to be judged
            missing, self._promised = self._promised, {}
            how = "; ".join(f"{pair}, seen {how}" for pair, how in missing.items())
            return f"{UNHEARD} steps were logged, and no tensors have come of: {how}. Rules over them see nothing."
        usual = max(UNOBSERVED, UNHEARD * self._most_steps)
        if last_with_tensors is None or self._steps <= usual or "tensors" not in self._unsaid or not self._signal:
            return None  # without a signal, on-policy by construction, there is nothing that could be missed
        self._unsaid.discard("tensors")
        return (
            f"{usual} steps were logged without tensors since step {last_with_tensors}: tails, ESS and the rules over "
            "them see nothing any more. Call run.diag.observe(...) in each step, before its log."
        )

    def first_look_is_due(self, steps: int, observed: bool, settled: bool) -> bool:
        """Whether after so many `steps` it is to be said what is seen: once, when that is settled."""
        due = (observed or steps == UNSEEN) and (settled or steps >= SETTLED) and "look" in self._unsaid
        if due:
            self._unsaid.discard("look")
        return due

    def judged(self, observed: Mapping[Pair, Observation]) -> None:
        """Take note of the tensors of a step, which are on the host."""
        self._promised = {pair: how for pair, how in self._promised.items() if pair not in observed}
        self._signal |= any(observation.signal for observation in observed.values())
