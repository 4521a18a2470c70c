import math

import pytest

from tracker_diag.trackers.rows import Rows


def run_of(*rows):
    """A run of rows (step, values) in the order in which they were logged."""
    result = Rows(in_order=True)
    for number, (step, values, *clock) in enumerate(rows, 1):
        result.put_row(step, values, f"line {number}", *clock)
    return result.finish("it")


def counted(phases, start=1):
    """A log of `phases`, each with its number of rows, counted from `start`; the values tell the rows."""
    ways = [(step, phase) for phase, many in enumerate(phases) for step in range(start, start + many)]
    return [(step, {"reward": float(row), "kl": 0.1 * phase}) for row, (step, phase) in enumerate(ways)]


@pytest.mark.parametrize("start", [0, 1])
def test_a_counter_that_begins_again_keeps_all_rows(start):
    run = run_of(*counted([20, 20, 20, 20], start))
    assert list(run.rows) == list(range(start, start + 80))
    assert [row["reward"] for row in run.rows.values()] == [float(row) for row in range(80)]
    (caveat,) = run.caveats
    assert caveat.startswith("the step counter begins again: 4 phases, all rows are kept: rows 1 to 20 (")
    assert f"rows 41 to 60 (steps {start} to {start + 19}, shown as {start + 40} to {start + 59})" in caveat


def test_phases_of_five_rows_and_the_distance_between_rows():
    assert list(run_of(*counted([3, 2])).rows) == [1, 2, 3, 4, 5]
    assert list(run_of(*counted([4, 1])).rows) == [1, 2, 3, 4, 5]
    rows = [(10 * step, values) for step, values in counted([20, 20])]
    assert list(run_of(*rows).rows) == list(range(10, 401, 10))


def test_what_several_writers_log_late_goes_to_its_step():
    rows = [(step, {"reward": float(step)}) for step in range(1, 40)]
    rows.insert(20, (12, {"eval_score": 0.5}))
    rows.insert(30, (25, {"eval_score": 0.6}))
    run = run_of(*rows)
    assert run.rows[12] == {"reward": 12.0, "eval_score": 0.5}
    assert len(run.rows) == 39
    assert run.caveats == ()


def test_a_stray_row_is_a_repeated_step():
    rows = [(step, {"reward": float(step)}) for step in range(1, 40)]
    rows.insert(20, (12, {"reward": 99.0}))
    run = run_of(*rows)
    assert len(run.rows) == 39
    assert run.caveats == (
        "values that replace others of the same step: 1, first 'reward' at step 12; the last one counts",
    )


def test_a_run_that_was_resumed_from_its_last_checkpoint_keeps_its_steps():
    first, then = [*range(1, 108)], [*range(101, 160)]
    run = run_of(*[(step, {"reward": 0.0}) for step in first], *[(step, {"reward": 1.0}) for step in then])
    assert list(run.rows) == list(range(1, 160))
    assert [row["reward"] for row in run.rows.values()] == [0.0] * 100 + [1.0] * 59
    assert run.caveats == (
        "the run was resumed once, first at step 101 after step 107: of repeated steps the later rows count",
    )


def test_a_run_that_went_far_back_keeps_what_had_happened():
    rows = [(step, {"reward": 0.0, "kl": float(step)}) for step in (*range(1, 101), *range(61, 161))]
    rows = [(step, values | {"kl": row}) for row, (step, values) in enumerate(rows)]
    run = run_of(*rows)
    assert len(run.rows) == 200
    assert "rows 101 to 200 (steps 61 to 160, shown as 101 to 200)" in run.caveats[0]


def test_a_log_that_was_printed_twice_counts_once():
    rows = counted([20])
    run = run_of(*rows, *rows)
    assert len(run.rows) == 20
    assert run.caveats == ("20 rows repeat earlier rows exactly: they count once",)


def test_time_continues_in_a_new_phase():
    run = run_of(*[(step, {"kl": float(row)}, 5.0 * step) for row, step in enumerate([*range(20), *range(20)])])
    seconds = list(run.seconds.values())
    assert seconds == sorted(seconds)
    assert seconds[-1] == 190.0


def test_nan_and_constant_series():
    run = run_of(
        *[
            (step, {"reward": 0.0, "loss": math.nan if row == 30 else 1.0 + row})
            for row, step in enumerate(2 * [*range(20)])
        ]
    )
    assert len(run.rows) == 40
    assert math.isnan(run.rows[30]["loss"])


def test_gaps_in_steps_that_are_even_otherwise():
    run = run_of(*[(step, {"kl": 1.0}) for step in (*range(30), *range(50, 80))])
    assert run.caveats == ("a gap in the steps from 29 to 50; the usual distance is 1",)
    uneven = run_of(*[(step * step, {"kl": 1.0}) for step in range(30)])
    assert uneven.caveats == ()
