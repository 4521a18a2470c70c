"""Traces find their training step by the clock of their run."""

from dataclasses import replace

from tracker_diag.samples.traces.steps import with_steps
from tracker_diag.samples.traces.trace import Trace, Traces
from tracker_diag.trackers.finished import FinishedRun

BEGAN = 1.7e9


def run(**more):
    rows = {10: {"reward": 0.1}, 20: {"reward": 0.2}, 30: {"reward": 0.3}}
    return FinishedRun("it", rows, {}, {10: 0.0, 20: 60.0, 30: 120.0}, (), began=more.get("began", BEGAN))


def at(second, **more):
    return Trace("t", None, more.get("step"), BEGAN + second, 1.0, [], [], [], 1, {})


def steps(*traces, of):
    found = with_steps(Traces("traces.jsonl", traces, ()), "traces.jsonl", of)
    return [trace.step for trace in found.traces], found.notes


def test_a_trace_is_of_the_row_that_was_logged_after_it():
    assert steps(at(-0.5), at(-1.0), at(30), at(59), at(59.5), at(118), of=run())[0] == [20, 10, 20, 20, 30, 30]


def test_what_a_trace_says_itself_counts():
    assert steps(at(30, step=7), of=run()) == ([7], ())


def test_clocks_that_do_not_meet_are_told():
    found, notes = steps(at(-4000), at(4000), at(5000), of=run())
    assert found == [10, None, None]
    assert notes == (
        "traces that end long before the first row of their run, taken for its step: 1, first t",
        "traces that end after the last row of their run, of no step: 2, first t",
    )


def test_without_a_clock_there_is_no_step():
    assert steps(at(0), of=None) == ([None], ())
    found, (note,) = steps(at(0), of=run(began=None))
    assert found == [None]
    assert note == "runs that do not tell the time of their rows, their traces have no step: 1, first it"
    assert steps(replace(at(0), time=None), of=run())[0] == [None]
