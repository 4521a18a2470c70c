"""Spans of a trace become one sample, however badly they hang together."""

import pytest

from tracker_diag.runs.sources.odd import Odd
from tracker_diag.traces.episode import episodes
from tracker_diag.traces.trace import Span


def span(id, parent=None, kind="tool", start=0.0, end=None, *, trace="t", **more):
    return Span(trace, id, parent, kind, more.pop("name", id), start, start + 1 if end is None else end, **more)


def read(*spans):
    odd = Odd()
    return episodes(spans, odd), odd.notes


def test_a_sample_has_the_prompt_of_its_root_its_calls_in_order_and_the_models_answer():
    (trace,), notes = read(
        span("late", "root", start=5.0, inputs={"q": 2}),
        span("model", "root", "llm", 6.0, outputs={"choices": [{"message": {"role": "assistant", "content": "4"}}]},
             inputs={"messages": [{"role": "user", "content": "2+2?"}]}, tokens=7.0),
        span("early", "root", start=2.0, inputs='{"q": 1}', status="error"),
        span("root", None, "agent", 1.0, 9.0, attributes={"step": "3", "reward": "0.5", "run_id": "r"}),
    )  # fmt: skip
    assert [call["name"] for call in trace.calls] == ["early", "late"]
    assert [call["status"] for call in trace.calls] == ["error", "ok"]
    assert (trace.prompt[0]["content"], trace.completion[0]["content"]) == ("2+2?", "4")
    assert (trace.run, trace.step, trace.time, trace.seconds, trace.turns) == ("r", 3, 1.0, 8.0, 1)
    assert trace.given == {"reward": "0.5", "length": 7.0}
    assert notes == ()


def test_a_call_within_a_call_counts_as_one_more():
    (trace,), _ = read(span("outer", start=1.0, end=9.0), span("inner", "outer", start=2.0))
    assert [(call["name"], call["seconds"]) for call in trace.calls] == [("outer", 8.0), ("inner", 1.0)]


def test_a_missing_parent_is_told_and_its_child_is_part_of_the_trace():
    (trace,), (note,) = read(span("root", None, "agent", 1.0), span("search", "gone", start=2.0))
    assert [call["name"] for call in trace.calls] == ["search"]
    assert note == ("spans whose parent is missing, taken for parts of their trace: 1, first search search of trace t")


def test_spans_that_are_their_own_ancestors_are_told_and_counted_as_calls():
    (trace,), (note,) = read(span("a", "c"), span("b", "a"), span("c", "b"), span("self", "self"))
    assert len(trace.calls) == 4
    assert note.startswith("spans that are their own ancestors, taken for parts of their trace: 4, ")


def test_clocks_that_differ_are_told_and_give_no_negative_time():
    (trace,), notes = read(
        span("root", None, "agent", 10.0, 12.0),
        span("search", "root", start=9.0),
        span("read", "root", start=11.0, end=8.0),
    )
    assert [call.get("seconds") for call in trace.calls] == [1.0, None]
    assert notes[0].startswith("spans that begin before their parent: the clocks differ: 1")
    assert notes[1].startswith("tool calls that end before they begin, their time is left out: 1")


def test_a_span_that_comes_twice_counts_once():
    (trace,), (note,) = read(span("search"), span("search", status="error"))
    assert [call["status"] for call in trace.calls] == ["error"]
    assert note.startswith("spans that come twice, the last one counts: 1")


def test_arguments_that_are_plain_text_are_no_broken_json():
    (trace,), _ = read(span("a", inputs="Paris"), span("b", inputs='{"q": ', start=1.0), span("c", start=2.0))
    assert [call["arguments"] for call in trace.calls] == [{"input": "Paris"}, '{"q": ', ""]


def test_a_result_that_says_error_is_a_failed_call():
    (trace,), _ = read(span("a", outputs={"error": "x", "truncated": True}), span("b", outputs="error", start=1.0))
    assert [(call["status"], call.get("truncated")) for call in trace.calls] == [("error", True), ("ok", None)]


@pytest.mark.slow
def test_a_hundred_thousand_spans_in_one_chain_and_a_thousand_traces_are_read():
    chain = [span(str(i), str(i - 1) if i else None, start=float(i)) for i in range(100_000)]
    many = [span("s", trace=str(i)) for i in range(1000)]
    found, notes = read(*reversed(chain), *many)
    assert notes == ()
    assert sorted(len(trace.calls) for trace in found)[-2:] == [1, 100_000]
    assert len(found) == 1001
