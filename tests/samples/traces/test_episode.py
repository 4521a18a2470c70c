"""Spans of a trace become one sample record, however badly they hang together."""

import random
import weakref
from dataclasses import replace

import pytest

from tracker_diag.samples.traces.gather import Gather
from tracker_diag.samples.traces.spans import Span
from tracker_diag.trackers.odd import Odd


def span(id, parent=None, kind="tool", start=0.0, seconds=1.0, **more):
    return Span(more.pop("trace", "t"), id, parent, kind, more.pop("name", id), start, seconds, **more)


def record_of(*spans):
    odd = Odd()
    gather = Gather(odd)
    for item in spans:
        gather.put_span(item)
    return *gather.records(), odd.notes


def test_a_sample_has_the_prompt_of_its_root_its_calls_in_order_and_the_models_answer():
    record, notes = record_of(
        span("late", "root", start=5.0, inputs={"q": 2}),
        span("model", "root", "llm", 6.0, outputs={"choices": [{"message": {"role": "assistant", "content": "4"}}]},
             inputs={"messages": [{"role": "user", "content": "2+2?"}]}, tokens=7.0),
        span("early", "root", start=2.0, inputs='{"q": 1}', status="error"),
        span("root", None, "agent", 1.0, 8.0, attributes={"step": "3", "reward": "0.5", "run_id": "r"}),
    )  # fmt: skip
    assert [(call["name"], call["status"]) for call in record.pop("calls")] == [("early", "error"), ("late", "ok")]
    assert record.pop("prompt")[0]["content"] == "2+2?"
    assert record.pop("completion")[0]["content"] == record.pop("text") == "4"
    assert record == {
        "id": "t", "run": "r", "step": 3, "time": 1.0, "seconds": 8.0, "turns": 1, "reward": 0.5, "length": 7.0
    }  # fmt: skip
    assert notes == ()


def test_a_call_within_a_call_counts_as_one_more():
    record, _ = record_of(span("outer", start=1.0, seconds=8.0), span("inner", "outer", start=2.0))
    assert [(call["name"], call["seconds"]) for call in record["calls"]] == [("outer", 8.0), ("inner", 1.0)]


def test_a_missing_parent_is_reported_and_its_child_is_part_of_the_trace():
    record, (note,) = record_of(span("root", None, "agent", 1.0), span("search", "gone", start=2.0))
    assert [call["name"] for call in record["calls"]] == ["search"]
    assert note == "spans whose parent is missing, taken for parts of their trace: 1, first search search of trace t"


def test_spans_that_are_their_own_ancestors_are_reported_and_counted_as_calls():
    record, note = record_of(span("a", "c"), span("b", "a"), span("c", "b"), span("self", "self"))
    assert len(record["calls"]) == 4
    assert note[0].startswith("spans that are their own ancestors, taken for parts of their trace: 4, ")


def test_clocks_that_differ_are_reported_and_give_no_negative_time():
    record, notes = record_of(
        span("root", None, "agent", 10.0, 2.0), span("search", "root", start=9.0), span("b", "root", "tool", 11.0, -3.0)
    )
    assert [call.get("seconds") for call in record["calls"]] == [1.0, None]
    assert notes[0].startswith("spans that begin before their parent: the clocks differ: 1")
    assert notes[1].startswith("tool calls that end before they begin, their time is left out: 1")


def test_a_span_that_comes_twice_counts_once():
    record, (note,) = record_of(span("search"), span("search", status="error"))
    assert [call["status"] for call in record["calls"]] == ["error"]
    assert note.startswith("spans that come twice, the last one counts: 1")


def test_arguments_that_are_plain_text_are_no_broken_json():
    record, _ = record_of(span("a", inputs="Paris"), span("b", inputs='{"q": ', start=1.0), span("c", start=2.0))
    assert [call["arguments"] for call in record["calls"]] == [{"input": "Paris"}, '{"q": ', ""]


def test_a_result_that_says_error_is_a_failed_call():
    record, _ = record_of(span("a", outputs={"error": "x", "truncated": True}), span("b", outputs="error", start=1.0))
    assert [(call["status"], call.get("truncated")) for call in record["calls"]] == [("error", True), ("ok", None)]


@pytest.mark.nightly
def test_a_hundred_thousand_spans_in_one_chain_and_a_thousand_traces_are_read():
    chain = [span(str(i), str(i - 1) if i else None, start=float(i)) for i in range(100_000)]
    *records, notes = record_of(*reversed(chain), *(span("s", trace=str(i)) for i in range(1000)))
    assert notes == ()
    assert sorted(len(record["calls"]) for record in records)[-2:] == [1, 100_000]


class Said(dict):
    """What a span says, that can be seen to be gone."""


def conversation(n):
    """What an agent does in n calls, each by a model that gets all that was said before."""
    text = [{"role": "user", "content": "2+2?"}]
    yield span("root", None, "agent", 1.0, 98.0, inputs=Said(task="2+2?"), outputs=Said(answer="4"))
    for i in range(n):
        asks = {"role": "assistant", "content": None, "tool_calls": [{"id": str(i), "name": "search", "arguments": {}}]}
        yield span(f"model{i}", "root", "llm", 2.0 + 3 * i, inputs=Said(messages=list(text)), outputs=Said(asks))
        yield span(f"chain{i}", "root", "other", 3.0 + 3 * i, inputs=Said(state=text), outputs=Said(state=text))
        yield span(
            f"call{i}", f"chain{i}", "tool", 4.0 + 3 * i, inputs=Said(q=i), outputs=Said(error="no page" * (i % 2))
        )
        text += [asks, {"role": "tool", "tool_call_id": str(i), "content": "no page"}]
    yield span(
        "last", "root", "llm", 90.0, inputs=Said(messages=list(text)), outputs={"role": "assistant", "content": "4"}
    )


def test_what_no_sample_is_made_of_is_let_go_before_the_end():
    gather = Gather(Odd())
    alive = {}
    for item in conversation(8):
        alive |= {(item.id, name): weakref.ref(text) for name in ("inputs", "outputs")
                  if isinstance(text := getattr(item, name), Said)}  # fmt: skip
        gather.put_span(item)
    del item, text
    kept = {place for place, text in alive.items() if text() is not None}
    assert kept == {
        ("root", "inputs"),
        ("root", "outputs"),
        ("last", "inputs"),
        *((f"call{i}", "inputs") for i in range(8)),
    }
    (record,) = gather.records()
    assert [call["status"] for call in record["calls"]] == ["ok", "error"] * 4
    assert len(record["prompt"] + record["completion"]) == 1 + 2 * 8 + 1


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_spans_come_is_of_no_matter(seed):
    spans = list(conversation(5))
    expected, _ = record_of(*spans)
    random.Random(seed).shuffle(spans)
    assert record_of(*spans) == (expected, ())
    orphans = [replace(item, parent="gone") if item.id == "root" else item for item in spans]
    assert record_of(*orphans)[0] == expected


def test_a_span_whose_id_and_parent_are_empty_does_not_loop():
    record, _ = record_of(span("", 0))
    assert len(record["calls"]) == 1
