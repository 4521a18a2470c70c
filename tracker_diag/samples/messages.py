"""Messages of a chat: from the formats in which they are kept to one, and what a sample needs of them.

OpenAI's chat completions and responses, Anthropic's content blocks, the parts of OpenTelemetry's `gen_ai` conventions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""`role` and `content`, text or None; `tool_calls` as OpenAI writes them; of a tool its `tool_call_id` and `status`."""

KEYS = ("messages", "input_messages", "output_messages", "input", "output", "message", "choices")
"""Under which a model's input or output may hold messages."""
ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
"""What formats call the roles, where it is something else."""
CALLS, RESULTS = {"tool_use", "tool_call"}, {"tool_result", "tool_call_response"}
TEXTS = {"text", "input_text", "output_text"}
SILENT = {*CALLS, *RESULTS, "thinking", "reasoning"}
"""Kinds of blocks; silent ones are no part of what a message says."""
CUT = {"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"}
"""Reasons to stop that say that the answer was cut."""


def normalised(given: Iterable[Any]) -> list[Message]:
    """`given` in OpenAI's format; what is no message is left out, a picture becomes its type in brackets."""
    messages: list[Message] = []
    for item in given:
        if isinstance(item, Mapping):
            if "role" in item:
                messages += _message(item)
            elif item.get("type") == "function_call":  # of OpenAI's responses, as the next one
                messages.append({"role": "assistant", "content": None, "tool_calls": [_call(item)]})
            elif item.get("type") == "function_call_output":
                messages.append(_result(item))
    return messages


def messages_in(value: Any) -> list[Message]:
    """The messages that the input or the output of a model holds; none where it holds no messages."""
    if isinstance(value, Mapping):
        if "role" in value:
            return normalised([value])
        if isinstance(choices := value.get("choices"), Sequence) and choices and isinstance(choices[0], Mapping):
            return messages_in(choices[0].get("message"))
        system = value.get("system")
        before: list[Message] = [{"role": "system", "content": _text(system)}] if system else []
        return next(([*before, *held] for key in KEYS if (held := messages_in(value.get(key)))), [])
    if isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        return normalised(value)
    return []


def is_cut(value: Any) -> bool:
    """Whether the output of a model says that it reached its limit."""
    if not isinstance(value, Mapping):
        return False
    choices = value.get("choices")
    holder = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else value
    return any(str(holder.get(key)) in CUT for key in ("finish_reason", "stop_reason"))


def split(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Prompt and completion: what comes before the first message of the assistant, and the rest."""
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return list(messages[:first]), list(messages[first:])


def answer(completion: Sequence[Message]) -> str:
    """The text of the last message in which the assistant says something."""
    texts = (message["content"] for message in reversed(completion) if message["role"] == "assistant")
    return next((text for text in texts if text and text.strip()), "")


def calls_in(completion: Sequence[Message]) -> list[dict[str, Any]]:
    """Tool calls in their order, each with the status that its result tells.

    A call that was not answered before the assistant continued has failed; one that ends the chat has not.
    """
    calls: list[dict[str, Any]] = []
    waiting: dict[int, None] = {}  # places in `calls`, in their order
    by_id: dict[str, int] = {}
    for message in completion:
        if message["role"] == "assistant":
            for place in waiting:
                calls[place]["status"] = "error"
            waiting.clear()
            for call in message.get("tool_calls", ()):
                by_id[call["id"]] = len(calls)
                waiting[len(calls)] = None
                calls.append({key: call["function"][key] for key in ("name", "arguments")})
        elif message["role"] == "tool":
            name = message.get("tool_call_id")
            answered = by_id.get(str(name)) if name else next(iter(waiting), None)
            if answered is None:
                continue
            waiting.pop(answered, None)
            calls[answered]["status"] = message.get("status") or status_of(message["content"])
            if message.get("truncated") is not None:
                calls[answered]["truncated"] = bool(message["truncated"])
    return calls


def status_of(result: Any) -> str:
    """What a tool's result says of itself: an object with an `error` that is not empty has failed."""
    if isinstance(result, str):
        if not result.lstrip().startswith("{"):
            return "ok"
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            return "ok"
    failed = isinstance(result, Mapping) and any(result.get(key) for key in ("error", "isError", "is_error"))
    return "error" if failed else "ok"


def plain_text(messages: Sequence[Message]) -> str:
    """What all of `messages` say, a line break between two."""
    return "\n".join(message["content"] for message in messages if message["content"])


def _message(given: Mapping[str, Any]) -> list[Message]:
    """The message, and before it the results of tools that it holds as blocks."""
    content = given.get("parts", given.get("content"))
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    asked, role = given.get("tool_calls"), str(given["role"])
    calls = [_call(call) for call in asked if isinstance(call, Mapping)] if isinstance(asked, list | tuple) else []
    calls += [_call(block) for block in blocks if str(block.get("type")) in CALLS]
    results = [_result(block) for block in blocks if str(block.get("type")) in RESULTS]
    message: Message = {"role": ROLES.get(role, role), "content": _text(content)}
    if calls:
        message["tool_calls"] = calls
    if message["role"] == "tool":
        kept = {key: given[key] for key in ("tool_call_id", "name", "truncated") if key in given}
        return results or [message | kept | _status(given)]
    return results if results and not message["content"] and not calls else [*results, message]


def _call(given: Mapping[str, Any]) -> dict[str, Any]:
    function = given.get("function")
    fields: Mapping[str, Any] = function if isinstance(function, Mapping) else given
    arguments = fields.get("arguments", fields.get("input", fields.get("args")))
    named = {"name": str(fields.get("name") or "unnamed"), "arguments": "" if arguments is None else arguments}
    return {"id": str(given.get("call_id") or given.get("id") or ""), "type": "function", "function": named}


def _result(given: Mapping[str, Any]) -> Message:
    result = given.get("content", given.get("output", given.get("response", given.get("result"))))
    text = _text(result) if isinstance(result, str | list) else json.dumps(result, default=repr)
    name = given.get("tool_use_id") or given.get("call_id") or given.get("id") or ""
    return {"role": "tool", "content": text, "tool_call_id": str(name)} | _status(given)


def _status(given: Mapping[str, Any]) -> dict[str, str]:
    if isinstance(given.get("is_error"), bool):
        return {"status": "error" if given["is_error"] else "ok"}
    return {"status": str(given["status"])} if isinstance(given.get("status"), str) else {}


def _text(content: Any) -> str | None:
    """What `content` says, blocks joined by line breaks; reasoning, calls and results of tools are no part of it."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, default=repr)
    texts: list[str] = []
    for block in content:
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, Mapping):
            text, kind = block.get("text", block.get("content")), str(block.get("type", "text"))
            if kind in TEXTS:
                texts.append(text if isinstance(text, str) else "")
            elif kind not in SILENT:
                texts.append(f"[{kind}]")
    return "\n".join(texts) if texts else None
