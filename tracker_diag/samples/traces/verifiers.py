"""Traces of verifiers 0.4: a graph of messages with named rewards. The branch to its newest message is the chat."""

from collections.abc import Mapping
from typing import Any

from tracker_diag.samples.records import as_number

LIMITS = {"max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed"}
"""Stop conditions that cut an episode off, as verifiers' own `is_truncated` counts them."""


def as_chat(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A trace of verifiers as an object of messages, any other object as it is.

    Its reward is the weighted sum of those that were scored.
    """
    nodes = document.get("nodes")
    if not (isinstance(nodes, list) and isinstance(document.get("rewards"), Mapping)):
        return document
    place, path = len(nodes) - 1, list[Any]()
    while isinstance(place, int) and 0 <= place < len(nodes) and isinstance(nodes[place], Mapping):
        path.append(nodes[place].get("message"))
        before = nodes[place].get("parent")
        place = before if isinstance(before, int) and before < place else -1  # parents come first
    scored = {name: given for name, given in document["rewards"].items() if isinstance(given, Mapping)}
    parts = {
        name: score * (as_number(given.get("weight", 1.0)) or 0.0)
        for name, given in scored.items()
        if (score := as_number(given.get("score"))) is not None
    }
    task = document.get("task")
    about: Mapping[str, Any] = task if isinstance(task, Mapping) else {}
    calls: Any = document.get("calls")
    last = calls[-1] if isinstance(calls, list) and calls and isinstance(calls[-1], Mapping) else {}
    cut = str(document.get("stop_condition")) in LIMITS or last.get("finish_reason") == "length"
    chat = {"id": document.get("id"), "messages": path[::-1], "components": parts if len(parts) > 1 else None}
    chat |= {"reward": sum(parts.values()) if parts else None, "env": about.get("type"), "group": about.get("key")}
    chat |= {"truncated": cut if calls else None}
    return {name: value for name, value in chat.items() if value is not None}
