"""What comes before the rows of a generation, where TRL itself marks nothing.

A completion may begin after a tool's result in its prompt, as in a dataset of conversations under way. The messages of
the dataset say so. A `rollout_func` gives only tokens, which say nothing about their authors. So rows of several
prompts a task, and completions of several turns without `env_mask`, are of unknown context.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch

UNMARKED = (
    "%d of %d completions of rollout_func have an end token before their last token, so they have several turns. There "
    "is no env_mask, so TRL trains on tool results in them as if they were sampled. Give env_mask, 0 on those."
)

_log = logging.getLogger("tracker_diag")


class Rows:
    """What is known of the rows of the last generation, until TRL trains on them in its own order."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._has_rollout_func = getattr(trainer, "rollout_func", None) is not None
        self._warned = False
        self._after: Any = None
        """Numbers of the prompts that hold a tool's result."""
        self._unknown: Any = None
        """Numbers of the rows, prompt and completion, that are of unknown context."""

    def generated(self, result: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """After `_generate_and_score_completions`."""
        self._after = self._unknown = None
        if "prompt_ids" not in result:
            return
        prompts = numbers(result["prompt_ids"], result["prompt_mask"])
        if self._has_rollout_func:
            if "tool_mask" not in result:
                self._rolled_out(result, prompts)
        elif any(flags := [_answered(row.get("prompt")) for row in given["inputs"]]) and len(flags) == len(prompts):
            self._after = prompts[torch.tensor(flags, device=prompts.device)]

    def _rolled_out(self, result: Mapping[str, Any], prompts: Any) -> None:
        """Keep which rows of a `rollout_func` without `env_mask` nobody knows the context of."""
        rows = prompts + numbers(result["completion_ids"], result["completion_mask"])
        if len(prompts.unique()) > -(-len(prompts) // self._trainer.num_generations):
            self._unknown = rows  # those of one task have several prompts
            return
        words = self._trainer.processing_class
        several = _has_several_turns(result, getattr(getattr(words, "tokenizer", words), "eos_token_id", None))
        if bool(several.any()):
            self._unknown = rows[several]
            if not self._warned:
                self._warned = True
                _log.warning(UNMARKED, int(several.sum()), len(prompts))

    def about(self, inputs: Mapping[str, Any], model: Any) -> dict[str, Any]:
        """What `observe` takes of a micro-batch, whose mask (B, T) TRL has as `model`. Nothing waits for a device."""
        if "prompt_ids" not in inputs:
            return {"model_mask": model}
        prompts = numbers(inputs["prompt_ids"], inputs["prompt_mask"])
        labels: dict[str, Any] = {"model_mask": model, "prompt": prompts}
        if self._unknown is not None:
            rows = prompts + numbers(inputs["completion_ids"], inputs["completion_mask"])
            labels["turn"] = -torch.isin(rows, self._unknown).long()
            labels["trajectory_ids"] = torch.arange(len(prompts), device=prompts.device)
        elif self._after is not None:
            labels["begins_after_tool"] = torch.isin(prompts, self._after)
        return labels


def numbers(ids: Any, mask: Any) -> Any:
    """(B,) a number for each row of (B, P) token ids and their mask; the same for all samples of a prompt."""
    weights = torch.arange(ids.shape[1], 0, -1, device=ids.device)  # from the right: TRL pads prompts on the left
    return (ids * mask * weights * weights).sum(1)


def _has_several_turns(result: Mapping[str, Any], end: int | None) -> Any:
    """(B,) whether a completion has the end token before its last token."""
    ids, mask = result["completion_ids"], result["completion_mask"].bool()
    last = mask.cumsum(1) == mask.sum(1, keepdim=True)
    ends = (ids == end) if end is not None else torch.zeros_like(mask)
    return (ends & mask & ~last).any(1)


def _answered(prompt: Any) -> bool:
    """Whether a tool's result is part of a prompt, if it is a conversation."""
    return isinstance(prompt, list) and any(message.get("role") in {"tool", "function"} for message in prompt)
