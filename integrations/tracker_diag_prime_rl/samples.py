"""Which of a step's sequences begin after a tool's result, by the samples that prime-rl's loader has given.

The loss is given no token ids. If the prefix of a rollout breaks, it is in several samples. A later one has the turn
before and a tool's answer in its prompt, which extends another's.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tracker_diag.trackers.tokens.prime_rl import go_on_from_others


class Samples:
    """Those of one step, until their losses are known."""

    def __init__(self) -> None:
        self._split = False
        self._of_step: list[tuple[int, list[int], bool]] = []
        """Of each: how long it is, its prompt, and whether any of it is trained on."""

    def given(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """The loader has given the micro-batches of a step: packed (1, S), with the length of each sequence."""
        self._of_step = []
        for batch in batches:
            ids, mask, at = batch["input_ids"].flatten(), batch["loss_mask"].flatten(), 0
            for length in batch["sequence_lengths"]:
                trained = mask[at : at + length].nonzero()
                prompt = ids[at : at + int(trained[0])].tolist() if len(trained) else []
                self._of_step.append((int(length), prompt, len(trained) > 0))
                at += length

    def about(self, lengths: Sequence[int]) -> dict[str, Any]:
        """What `observe` takes of the sequences of the losses of a step, in their order.

        If the two do not fit together, as with context parallelism, all are of unknown context. With several ranks, so
        are those that extend none here, once any did: the sample that they extend may be on another rank.
        """
        step, self._of_step = self._of_step, []
        # Of a sequence without a token of the component, the loss of some releases is not asked.
        known = next(
            (kept for kept in (step, [sample for sample in step if sample[2]]) if [n for n, *_ in kept] == [*lengths]),
            None,
        )
        if known is None:
            return {"trajectory_ids": [0] * len(lengths)} if len(lengths) > 1 else {}
        later = go_on_from_others([tuple(prompt) for _, prompt, _ in known])
        self._split |= any(later)
        if not self._split:
            return {}
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return {"begins_after_tool": later}
        return {"trajectory_ids": [*range(len(later))], "turn": [1 if begins else -1 for begins in later]}
