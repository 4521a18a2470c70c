"""Preference and SFT data out of samples: conversations in the form that TRL reads."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tracker_diag.samples.messages import Message
from tracker_diag.samples.records import Record, as_number, messages_of

SCORES = ("reward", "human", "success", "correct", "verifier")
"""What samples of one prompt are ranked by: the first that two of them have and that differs."""


def preferences(records: Sequence[Record]) -> list[dict[str, list[Message]]]:
    """One pair for each prompt of which two samples have different scores: `prompt`, `chosen`, `rejected`.

    The prompt is only in `prompt`; `chosen` and `rejected` are what follows it. Of equal scores the first counts.
    """
    pairs: list[dict[str, list[Message]]] = []
    for prompt, samples in _by_prompt(records):
        for name in SCORES:
            scored = [
                (score, completion) for record, completion in samples if (score := _score(record, name)) is not None
            ]
            if len(scored) > 1:
                best, worst = max(scored, key=lambda pair: pair[0]), min(scored, key=lambda pair: pair[0])
                if best[0] > worst[0] and best[1] != worst[1]:
                    pairs.append({"prompt": prompt, "chosen": best[1], "rejected": worst[1]})
                    break
    return pairs


def demonstrations(records: Sequence[Record]) -> list[dict[str, list[Message]]]:
    """What is worth imitating: `prompt` and `completion` of samples that were solved, none twice.

    If it is unknown which samples were solved, those with the highest reward of their prompt are, if rewards differ.
    """
    shown: list[dict[str, list[Message]]] = []
    for prompt, samples in _by_prompt(records):
        rewards = [score for record, _ in samples if (score := _score(record, "reward")) is not None]
        best = max(rewards) if rewards and max(rewards) > min(rewards) else None
        seen: set[str] = set()
        for record, completion in samples:
            solved = next(
                (score for name in ("success", "correct") if (score := _score(record, name)) is not None), None
            )
            good = solved > 0 if solved is not None else best is not None and _score(record, "reward") == best
            if good and (key := json.dumps(completion)) not in seen:
                seen.add(key)
                shown.append({"prompt": prompt, "completion": completion})
    return shown


def _by_prompt(records: Sequence[Record]) -> list[tuple[list[Message], list[tuple[Record, list[Message]]]]]:
    """Samples of the same prompt, each with its completion; those that have not both are left out."""
    groups: dict[str, list[tuple[Record, list[Message]]]] = defaultdict(list)
    prompts: dict[str, list[Message]] = {}
    for record in records:
        prompt, completion = (list(map(_for_trl, part)) for part in messages_of(record))
        if prompt and any(message["role"] == "assistant" for message in completion):
            key = json.dumps(prompt, sort_keys=True)
            prompts[key] = prompt
            groups[key].append((record, completion))
    return [(prompts[key], samples) for key, samples in groups.items()]


def _for_trl(message: Mapping[str, Any]) -> Message:
    """`message` as chat templates take it: arguments as an object, and nothing that is ours."""
    kept = {key: message[key] for key in ("role", "content", "name", "tool_call_id") if message.get(key) is not None}
    kept.setdefault("content", "")
    if message.get("tool_calls"):
        kept["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _object(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return kept


def _object(arguments: Any) -> Any:
    """Arguments as an object; a text that is none stays a text."""
    try:
        decoded = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
    return decoded if isinstance(decoded, Mapping) else arguments


def _score(record: Record, name: str) -> float | None:
    value = as_number(record.get(name))
    return None if value is None or value != value else value  # noqa: PLR0124  # NaN is no score
