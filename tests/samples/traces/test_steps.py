"""Traces find their training step by the clock of their run."""

from tracker_diag.samples.traces.steps import add_steps
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.odd import Odd

BEGAN = 1.7e9


def run(began=BEGAN):
    rows = {10: {"reward": 0.1}, 20: {"reward": 0.2}, 30: {"reward": 0.3}}
    return FinishedRun("it", rows, {}, {10: 0.0, 20: 60.0, 30: 120.0}, (), began=began)


def at(second, **more):
    return {"id": "t", "time": BEGAN + second, "seconds": 1.0, **more}


def steps(*records, run):
    odd = Odd()
    add_steps([*records], "traces.jsonl", run, odd)
    return [record.get("step") for record in records], odd.notes


def test_a_trace_is_of_the_row_that_was_logged_after_it():
    assert steps(at(-0.5), at(-1.0), at(30), at(59), at(59.5), at(118), run=run())[0] == [20, 10, 20, 20, 30, 30]


def test_what_a_trace_says_itself_counts():
    assert steps(at(30, step=7), run=run()) == ([7], ())


def test_clocks_that_do_not_meet_are_reported():
    placed, notes = steps(at(-4000), at(4000), at(5000), run=run())
    assert placed == [10, None, None]
    assert notes == (
        "traces that end long before the first row of their run, taken for its step: 1, first t",
        "traces that end after the last row of their run, of no step: 2, first t",
    )


def test_without_a_clock_there_is_no_step():
    assert steps(at(0), run=None) == ([None], ())
    note = "runs that do not tell the time of their rows, their traces have no step: 1, first it"
    assert steps(at(0), run=run(began=None)) == ([None], (note,))
    assert steps({"id": "t"}, run=run())[0] == [None]
