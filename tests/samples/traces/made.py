"""Traces of a made agent: the same two tasks in each format, so that all readers must come to the same."""

import json

QUESTION, ANSWER = "What is 2+2?", "It is 4."
ARGUMENTS = {"q": "2+2"}

OPENAI = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "search", "arguments": json.dumps(ARGUMENTS)}},
        {"id": "b", "type": "function", "function": {"name": "read", "arguments": '{"page": '}}]},
    {"role": "tool", "tool_call_id": "b", "content": '{"error": "no page"}'},
    {"role": "tool", "tool_call_id": "a", "content": "4"},
    {"role": "assistant", "content": ANSWER},
]  # fmt: skip

ANTHROPIC = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "a", "name": "search", "input": ARGUMENTS},
        {"type": "tool_use", "id": "b", "name": "read", "input": {}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "4"}]},
        {"type": "tool_result", "tool_use_id": "b", "content": "no page", "is_error": True}]},
    {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
]  # fmt: skip

RESPONSES = [
    {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "a", "name": "search", "arguments": json.dumps(ARGUMENTS)},
    {"type": "function_call_output", "call_id": "a", "output": "4"},
    {"type": "function_call", "call_id": "b", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "b", "output": '{"error": "no page"}'},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]},
]

GEN_AI = [
    {"role": "user", "parts": [{"type": "text", "content": QUESTION}]},
    {"role": "assistant", "parts": [
        {"type": "tool_call", "id": "a", "name": "search", "arguments": ARGUMENTS},
        {"type": "tool_call", "id": "b", "name": "read", "arguments": {}}]},
    {"role": "tool", "parts": [
        {"type": "tool_call_response", "id": "a", "response": "4"},
        {"type": "tool_call_response", "id": "b", "response": {"error": "no page"}}]},
    {"role": "assistant", "parts": [{"type": "text", "content": ANSWER}], "finish_reason": "stop"},
]  # fmt: skip
