"""One axis for several runs: steps, tokens, or shares, and which of them is said."""

import numpy as np
import pytest

from tracker_diag.runs.align import aligned
from tracker_diag.trackers.finished import FinishedRun


def a_run(steps, tokens=None, name="a run"):
    rows = {step: {"reward": 0.5} | ({"num_tokens": tokens[at]} if tokens else {}) for at, step in enumerate(steps)}
    return FinishedRun(name, rows, {}, {}, ())


def test_steps_are_taken_where_their_ranges_overlap_also_of_a_run_that_ended_early():
    axis = aligned([a_run(range(300)), a_run(range(0, 100, 5))])
    assert (axis.unit, axis.low, axis.high, axis.why) == ("step", 0, 95, "")
    assert axis.places[1]([5, 95]).tolist() == [5, 95]


def test_iterations_and_environment_steps_are_aligned_by_the_share_of_the_run_and_it_says_why():
    axis = aligned([a_run(range(1, 81)), a_run(range(512, 41473, 512))])
    assert (axis.unit, axis.low, axis.high) == ("share of the run", 0, 1)
    assert axis.why == "their steps are not of one unit (1 to 80, 512 to 41,472), and not all count tokens"
    assert axis.places[0]([1, 80]).tolist() == [0, 1]
    assert axis.places[1]([512, 41_472]).tolist() == [0, 1]


def test_tokens_are_taken_where_both_count_them():
    axis = aligned(
        [
            a_run(range(1, 81), tokens=[1000 * n for n in range(80)]),
            a_run(range(512, 41473, 512), tokens=[900 * n for n in range(81)]),
        ]
    )
    assert (axis.unit, axis.low, axis.high) == ("tokens", 0, 72_000)
    assert axis.places[0]([1, 41]).tolist() == [0, 40_000]
    assert axis.why.startswith("their steps are not of one unit")


def test_a_count_that_falls_is_no_count():
    falls = [1000 * n for n in range(79)] + [0]
    axis = aligned([a_run(range(1, 81), tokens=falls), a_run(range(512, 41473, 512), tokens=[*range(81)])])
    assert axis.unit == "share of the run"


def test_a_run_of_a_few_rows_is_taken_for_one_of_the_same_steps():
    axis = aligned([a_run(range(300)), a_run([0, 1, 2])])
    assert (axis.unit, axis.low, axis.high) == ("step", 0, 2)
    assert aligned([a_run([5]), a_run([9])]).unit == "step"


@pytest.mark.parametrize("first", [0, 10**6, -50])
def test_places_keep_the_order_of_steps(first):
    run = a_run(range(first, first + 300, 3))
    other = a_run(range(10**9, 10**9 + 300))
    axis = aligned([run, other])
    assert (np.diff(axis.places[0]([*run.rows])) > 0).all()
