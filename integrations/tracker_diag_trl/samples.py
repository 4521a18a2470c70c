"""What a trainer with reward functions knows of each completion, as `Monitor.samples` takes it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracker_diag import Monitor
from tracker_diag.errors import UnknownName

FAILED = "{'error': "
"""How a tool's answer begins that TRL has written itself, as the call raised or the tool is missing."""


class CompletionSamples:
    """Rewards, texts and tool calls of each generation, of this process's share; the monitor brings several together.

    Args:
        correct: name of the reward function that says whether the answer is right.
    """

    def __init__(self, trainer: Any, monitor: Monitor, correct: str | None = None) -> None:
        self._trainer, self._monitor, self._correct = trainer, monitor, correct
        words = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._ends = {words.eos_token_id, words.pad_token_id, *getattr(trainer, "eos_token_ids", ())}
        """Tokens that a completion ends with, unless it is cut off."""
        self._generations = 0
        self._scored: Mapping[str, Any] | None = None
        """Arguments and result of the last `_calculate_rewards`, until the advantages are there."""
        if correct is not None and correct not in (names := [*trainer.reward_func_names]):
            raise UnknownName("correct", correct, tuple(names))

    def rewards(self, result: Any, given: Mapping[str, Any]) -> None:
        """After `_calculate_rewards`: keep what was scored, and how."""
        if self._trainer.model.training:  # else it is an evaluation
            self._scored = {**given, "rewards": result}

    def generation(self, result: Any, given: Mapping[str, Any]) -> None:
        """After `_generate_and_score_completions`: tell the monitor."""
        scored, self._scored = self._scored, None
        if scored is None:
            return
        self._generations += 1
        trainer, completions = self._trainer, scored["completions"]
        first = trainer.accelerator.process_index * len(completions)
        columns = reward_columns(
            scored["rewards"][first : first + len(completions)].tolist(),
            trainer.reward_func_names,
            trainer.reward_weights.tolist(),
            self._correct,
        )
        if result["advantages"].ndim == 1:  # not one for each token
            columns["advantage"] = result["advantages"]
        ids = scored["completion_ids_list"]
        columns["truncated"] = [bool(tokens) and tokens[-1] not in self._ends for tokens in ids]
        columns["length"] = [len(tokens) for tokens in ids]
        if "tool_mask" in result:  # then the model's own tokens count, as TRL has it
            own = (result["completion_mask"] * result["tool_mask"]).sum(1).tolist()
            columns["length"] = [n or None for n in own]  # 0 where mask_truncated_completions has taken all out
        self._monitor.samples(
            group=[
                f"{self._generations}/{i // trainer.num_generations}" for i in range(first, first + len(completions))
            ],
            **columns,
            **conversation_columns(completions),
        )


def reward_columns(
    rewards: Sequence[Sequence[float]], names: Sequence[str], weights: Sequence[float], correct: str | None = None
) -> dict[str, Any]:
    """Of (n, functions) rewards; NaN is that of a function that has not scored the completion."""
    columns: dict[str, Any] = {"reward": [_weighted(row, weights) for row in rewards]}
    parts = {name: [row[i] for row in rewards] for i, name in enumerate(names)}
    if len(parts) > 1:
        columns["components"] = parts
    if correct is not None:
        columns["correct"] = parts[correct]
    return columns


def _weighted(row: Sequence[float], weights: Sequence[float]) -> float | None:
    """The weighted sum of what is scored, as TRL takes it; None where nothing is."""
    scored = [weight * reward for reward, weight in zip(row, weights, strict=True) if reward == reward]  # noqa: PLR0124  # NaN
    return sum(scored) if scored else None


def conversation_columns(completions: Sequence[Any]) -> dict[str, Any]:
    """Of completions: texts, or lists of messages, with the tool calls in them."""
    if any(isinstance(completion, str) for completion in completions):
        return {"text": completions}
    turns = [[message for message in completion if message.get("role") == "assistant"] for completion in completions]
    return {
        "text": ["\n".join(filter(None, map(_words, messages))) for messages in turns],
        "turns": [len(messages) for messages in turns],
        "void_turns": [
            sum(not (_words(message).strip() or message.get("tool_calls")) for message in messages)
            for messages in turns
        ],
        "calls": [list(_calls(completion)) for completion in completions],
    }


def _calls(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The calls that were answered, in the order of the answers. Over TRL's limit of calls, none is made."""
    asked: list[Any] = []
    for message in messages:
        if message.get("role") == "assistant":
            asked = [call.get("function", call) for call in message.get("tool_calls") or ()]
        elif message.get("role") == "tool":
            name = str(message.get("name"))
            call: Mapping[str, Any] = next((candidate for candidate in asked if candidate.get("name") == name), {})
            asked = [other for other in asked if other is not call]
            status = "error" if _words(message).startswith(FAILED) else "ok"
            yield {"name": name, "arguments": call.get("arguments", ""), "status": status}


def _words(message: Mapping[str, Any]) -> str:
    """The text of a message, whose content may also be blocks of text and images."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(str(block["text"]) for block in content if block.get("text"))
