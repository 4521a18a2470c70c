"""What stands before and in the rows of a generation, where TRL itself marks nothing.

A completion may begin after a tool's result that stands in its prompt: in a dataset of conversations under way, or
where a `rollout_func` gives one row a message. And a `rollout_func` without `env_mask` may have tools' results in
completions. Datasets have messages that say so; of a `rollout_func` its tokens say it, by the chat template.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch

from tracker_diag.tensors.chat import ChatError, ChatFormat

UNMARKED = (
    "%d of %d tokens of completions are no model's, by the chat template: results of tools, say. rollout_func gives no "
    "env_mask, so TRL trains on them as if they were sampled. Give env_mask, 0 on them."
)

_log = logging.getLogger("tracker_diag")


class Rows:
    """What is known of the rows of the last generation, until they are trained on in an order of TRL's own."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._of_function = getattr(trainer, "rollout_func", None) is not None
        self._chat: ChatFormat | None = None
        self._tried = self._told = False
        self._after: Any = None
        self._unknown: Any = None
        self._rows: Any = None
        self._model: Any = None
        """(G, T) of the rows with these numbers: which tokens of completions are the model's."""

    def generated(self, result: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """After `_generate_and_score_completions`."""
        self._after = self._unknown = self._rows = self._model = None
        if "prompt_ids" not in result:
            return
        prompts = numbers(result["prompt_ids"], result["prompt_mask"])
        if self._of_function:
            self._read(result, prompts)
        elif any(flags := [_answered(row.get("prompt")) for row in given["inputs"]]) and len(flags) == len(prompts):
            self._after = prompts[torch.tensor(flags, device=prompts.device)]

    def _read(self, result: Mapping[str, Any], prompts: Any) -> None:
        """What the chat template says of the tokens of a `rollout_func`."""
        width = result["prompt_ids"].shape[1]
        ids, mask = (
            torch.cat([result[f"prompt_{name}"], result[f"completion_{name}"]], 1).cpu() for name in ("ids", "mask")
        )
        chat = self._format()
        if chat is None or chat.delimiters.result is None:
            if "tool_mask" not in result and len(prompts.unique()) > -(-len(prompts) // self._trainer.num_generations):
                self._unknown = prompts  # rows of one task have several prompts, and nobody can read these
            return
        labels = chat.label(ids, attention_mask=mask)
        model, response = torch.from_numpy(labels.model_mask), mask.bool()
        begins = torch.from_numpy(labels.after_tool[:, width]) & response[:, width]
        self._after = prompts[begins.to(prompts.device)] if bool(begins.any()) else None
        unread = response[:, width] & ~model[:, width]
        self._unknown = prompts[unread.to(prompts.device)] if bool(unread.any()) else None
        between = torch.from_numpy(labels.response_mask)[:, width:] & ~model[:, width:] & response[:, width:]
        if "tool_mask" not in result and bool(between.any()):
            self._rows = numbers(result["completion_ids"], result["completion_mask"]) + prompts
            self._model = (~between).to(prompts.device)
            if not self._told:
                self._told = True
                _log.warning(UNMARKED, int(between.sum()), int(response[:, width:].sum()))

    def _format(self) -> ChatFormat | None:
        if not self._tried:
            self._tried = True
            words = getattr(self._trainer.processing_class, "tokenizer", self._trainer.processing_class)
            try:
                self._chat = ChatFormat.of(words)
            except (ChatError, AttributeError, ValueError) as error:  # it has no template
                _log.info("no turns are told apart in what rollout_func gives: %s", error)
        return self._chat

    def about(self, inputs: Mapping[str, Any], model: Any) -> dict[str, Any]:
        """What `observe` takes of a micro-batch, whose mask (B, T) TRL has as `model`. Nothing waits for a device."""
        if "prompt_ids" not in inputs:
            return {"model_mask": model}
        prompts = numbers(inputs["prompt_ids"], inputs["prompt_mask"])
        found: dict[str, Any] = {"model_mask": model, "prompt": prompts}
        if self._model is not None and self._model.shape[1] == model.shape[1]:
            same = (numbers(inputs["completion_ids"], inputs["completion_mask"]) + prompts)[:, None] == self._rows
            at = same.int().argmax(1)
            found["model_mask"] = model & (self._model[at] | ~same.any(1)[:, None])
        after = None if self._after is None else torch.isin(prompts, self._after)
        if self._unknown is not None:
            turn = -torch.isin(prompts, self._unknown).long()
            found["turn"] = turn if after is None else torch.where(after, 1, turn)
            found["trajectory_ids"] = torch.arange(len(prompts), device=prompts.device)
        elif after is not None:
            found["begins_after_tool"] = after
        return found


def numbers(ids: Any, mask: Any) -> Any:
    """(B,) a number for each row of (B, P) token ids and their mask; the same for all samples of a prompt."""
    weights = torch.arange(ids.shape[1], 0, -1, device=ids.device)  # from the right: TRL pads prompts on the left
    return (ids * mask * weights * weights).sum(1)


def _answered(prompt: Any) -> bool:
    """Whether a tool's result stands in a prompt, if it is a conversation."""
    return isinstance(prompt, list) and any(one.get("role") in {"tool", "function"} for one in prompt)
