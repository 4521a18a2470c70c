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

CUT = {"length", "max_tokens", "max_output_tokens", "MAX_TOKENS"}
"""Reasons to stop that say that the answer was cut."""


def normalised(given: Iterable[Any]) -> list[Message]:
    """`given` in OpenAI's format; what is no message is left out, a picture becomes its type in brackets."""
    found: list[Message] = []
    for one in given:
        if isinstance(one, Mapping):
            found += _item(one) if "role" not in one else _message(one)
    return found


def messages_in(value: Any) -> list[Message]:
    """The messages that the input or the output of a model holds; none where it holds no messages."""
    if isinstance(value, Mapping):
        if "role" in value:
            return normalised([value])
        if isinstance(choices := value.get("choices"), Sequence) and choices and isinstance(choices[0], Mapping):
            return messages_in(choices[0].get("message"))
        system = value.get("system")
        before: list[Message] = [{"role": "system", "content": _text(system)}] if system else []
        return next(([*before, *found] for key in KEYS if (found := messages_in(value.get(key)))), [])
    if isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
        return normalised(value)
    return []


def is_cut(value: Any) -> bool:
    """Whether the output of a model says that it reached its limit."""
    if not isinstance(value, Mapping):
        return False
    choices = value.get("choices")
    of = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else value
    return any(str(of.get(key)) in CUT for key in ("finish_reason", "stop_reason"))


def split(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Prompt and completion: what stands before the first message of the assistant, and the rest."""
    first = next((i for i, one in enumerate(messages) if one["role"] == "assistant"), len(messages))
    return list(messages[:first]), list(messages[first:])


def answer(completion: Sequence[Message]) -> str:
    """The text of the last message in which the assistant says something."""
    said = (one["content"] for one in reversed(completion) if one["role"] == "assistant")
    return next((text for text in said if text and text.strip()), "")


def calls_in(completion: Sequence[Message]) -> list[dict[str, Any]]:
    """Tool calls in their order, each with the status that its result tells.

    A call that was not answered before the assistant went on has failed; one that ends the chat is as it should be.
    """
    found: list[dict[str, Any]] = []
    waiting: dict[int, None] = {}  # places in `found`, in their order
    by_id: dict[str, int] = {}
    for message in completion:
        if message["role"] == "assistant":
            for place in waiting:
                found[place]["status"] = "error"
            waiting.clear()
            for call in message.get("tool_calls", ()):
                by_id[call["id"]] = len(found)
                waiting[len(found)] = None
                found.append({key: call["function"][key] for key in ("name", "arguments")})
        elif message["role"] == "tool":
            of = (
                by_id.get(str(message.get("tool_call_id")))
                if message.get("tool_call_id")
                else next(iter(waiting), None)
            )
            if of is None:
                continue
            waiting.pop(of, None)
            found[of]["status"] = message.get("status") or status_of(message["content"])
            if message.get("truncated") is not None:
                found[of]["truncated"] = bool(message["truncated"])
    return found


def status_of(result: Any) -> str:
    """What a tool's result says of itself: an object with an `error` that is not empty has failed."""
    if isinstance(result, str):
        if not result.lstrip().startswith("{"):
            return "ok"
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            return "ok"
    return "error" if isinstance(result, Mapping) and (result.get("error") or result.get("isError")) else "ok"


def plain_text(messages: Sequence[Message]) -> str:
    """What all of `messages` say, a line break between two."""
    return "\n".join(one["content"] for one in messages if one["content"])


def _message(one: Mapping[str, Any]) -> list[Message]:
    """The message, and before it the results of tools that it holds as blocks."""
    role = str(one["role"])
    role = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}.get(role, role)
    blocks = one.get("parts", one.get("content"))
    message: Message = {"role": role, "content": None}
    results: list[Message] = []
    asked = one.get("tool_calls")
    calls = [_call(call) for call in asked if isinstance(call, Mapping)] if isinstance(asked, list | tuple) else []
    if isinstance(blocks, list):
        kinds = [(block, str(block.get("type", ""))) for block in blocks if isinstance(block, Mapping)]
        calls += [_call(block) for block, kind in kinds if kind in {"tool_use", "tool_call"}]
        results = [_result(block) for block, kind in kinds if kind in {"tool_result", "tool_call_response"}]
    message["content"] = _text(blocks)
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        if results:
            return results
        kept = {key: one[key] for key in ("tool_call_id", "name", "truncated") if key in one}
        return [message | kept | _status(one)]
    alone = results and not message["content"] and not calls
    return results if alone else [*results, message]


def _item(one: Mapping[str, Any]) -> list[Message]:
    """An item of OpenAI's responses that has no role."""
    if one.get("type") == "function_call":
        return [{"role": "assistant", "content": None, "tool_calls": [_call(one)]}]
    return [_result(one)] if one.get("type") == "function_call_output" else []


def _call(one: Mapping[str, Any]) -> dict[str, Any]:
    function = one.get("function")
    of: Mapping[str, Any] = function if isinstance(function, Mapping) else one
    arguments = of.get("arguments", of.get("input", of.get("args")))
    named = {"name": str(of.get("name") or "unnamed"), "arguments": "" if arguments is None else arguments}
    return {"id": str(one.get("call_id") or one.get("id") or ""), "type": "function", "function": named}


def _result(one: Mapping[str, Any]) -> Message:
    result = one.get("content", one.get("output", one.get("response", one.get("result"))))
    text = _text(result) if isinstance(result, str | list) else json.dumps(result, default=repr)
    of = one.get("tool_use_id") or one.get("call_id") or one.get("id") or ""
    return {"role": "tool", "content": text, "tool_call_id": str(of)} | _status(one)


def _status(one: Mapping[str, Any]) -> dict[str, str]:
    if isinstance(one.get("is_error"), bool):
        return {"status": "error" if one["is_error"] else "ok"}
    return {"status": str(one["status"])} if isinstance(one.get("status"), str) else {}


def _text(content: Any) -> str | None:
    """What `content` says, blocks joined by line breaks; reasoning, calls and results of tools are no part of it."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, default=repr)
    said: list[str] = []
    for block in content:
        if isinstance(block, str):
            said.append(block)
        elif isinstance(block, Mapping):
            text = block.get("text", block.get("content"))
            kind = str(block.get("type", "text"))
            if kind in {"text", "input_text", "output_text"}:
                said.append(text if isinstance(text, str) else "")
            elif kind not in {"tool_use", "tool_call", "tool_result", "tool_call_response", "thinking", "reasoning"}:
                said.append(f"[{kind}]")
    return "\n".join(said) if said else None
