"""One axis for several runs: steps or shares, and why."""

import numpy as np
import pytest

from tracker_diag.runs.arms import aligned
from tracker_diag.trackers.finished import FinishedRun


def a_run(steps):
    return FinishedRun("a run", {step: {"reward": 0.5} for step in steps}, {}, {}, ())


def test_steps_are_taken_where_their_ranges_overlap_also_of_a_run_that_ended_early():
    axis = aligned([a_run(range(300)), short := a_run(range(0, 100, 5))])
    assert (axis.unit, axis.low, axis.high, axis.why) == ("step", 0, 95, "")
    assert axis.places(short, [5, 95]).tolist() == [5, 95]


def test_iterations_and_environment_steps_are_aligned_by_the_share_of_the_run_and_it_says_why():
    axis = aligned([iterations := a_run(range(1, 81)), steps := a_run(range(512, 41473, 512))])
    assert (axis.unit, axis.low, axis.high) == ("share of the run", 0, 1)
    assert axis.why == "their steps are not of one unit (1 to 80, 512 to 41,472)"
    assert axis.places(iterations, [1, 80]).tolist() == [0, 1]
    assert axis.places(steps, [512, 41_472]).tolist() == [0, 1]


def test_a_run_of_a_few_rows_is_taken_for_one_of_the_same_steps():
    axis = aligned([a_run(range(300)), a_run([0, 1, 2])])
    assert (axis.unit, axis.low, axis.high) == ("step", 0, 2)
    assert aligned([a_run([5]), a_run([9])]).unit == "step"


@pytest.mark.parametrize("first", [0, 10**6, -50])
def test_places_keep_the_order_of_steps(first):
    run = a_run(range(first, first + 300, 3))
    other = a_run(range(10**9, 10**9 + 300))
    axis = aligned([run, other])
    assert (np.diff(axis.places(run, run.rows)) > 0).all()
