"""Messages of every format become the same prompt, answer and calls."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracker_diag.samples.messages import answer, calls_in, is_cut, messages_in, normalised, split

made = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("traces") / "made.py")))


@pytest.mark.parametrize("name", ["OPENAI", "ANTHROPIC", "RESPONSES", "GEN_AI"])
def test_each_format_comes_to_the_same(name):
    prompt, completion = split(normalised(getattr(made, name)))
    assert [item["content"] for item in prompt][-1] == made.QUESTION
    assert answer(completion) == made.ANSWER
    calls = {call["name"]: call for call in calls_in(completion)}
    assert list(calls) == ["search", "read"]
    assert (calls["search"]["status"], calls["read"]["status"]) == ("ok", "error")
    assert [item["role"] for item in completion if item["role"] == "tool"] == ["tool", "tool"]


def test_a_call_that_was_left_unanswered_has_failed_unless_it_ends_the_chat():
    def asks(name):
        return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": name, "arguments": "{}"}}]}

    calls = calls_in(normalised([asks("search"), {"role": "assistant", "content": "hm"}, asks("submit")]))
    assert [call.get("status") for call in calls] == ["error", None]


def test_results_without_ids_answer_calls_in_their_order():
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("a", "b", "a")]
    results = [{"role": "tool", "content": text} for text in ("1", '{"error": "x"}', '{"is_error": true}')]
    result = calls_in(normalised([{"role": "assistant", "content": "", "tool_calls": calls}, *results]))
    assert [call["status"] for call in result] == ["ok", "error", "error"]


def test_a_result_without_a_call_and_items_that_are_no_messages_do_not_matter():
    messages = normalised([3, None, {"type": "unknown"}, {"role": "tool", "content": "late", "tool_call_id": "x"}])
    assert calls_in(messages) == []


def test_pictures_are_named_and_not_shown():
    (message,) = normalised([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:..."}}]}])
    assert message["content"] == "[image_url]"


def test_messages_are_found_in_what_models_take_and_give():
    output = {"role": "assistant", "content": "x"}
    for value in ({"messages": [output]}, {"choices": [{"message": output}]}, output, [output], {"message": output}):
        assert messages_in(value) == [output]
    assert messages_in({"system": "s", "messages": [output]})[0] == {"role": "system", "content": "s"}
    assert messages_in("text") == messages_in({"q": 1}) == messages_in([1]) == messages_in(None) == []


def test_an_answer_that_was_cut_says_so():
    assert is_cut({"choices": [{"finish_reason": "length"}]})
    assert is_cut({"stop_reason": "max_tokens"})
    assert not is_cut({"choices": [{"finish_reason": "stop"}]})
    assert not is_cut("length")


def test_values_of_any_type_are_no_reason_to_fail():
    (output,) = normalised([{"role": ["x"], "content": "b", "tool_calls": True}])
    assert (output["role"], output["content"]) == ("['x']", "b")
    assert "tool_calls" not in output
