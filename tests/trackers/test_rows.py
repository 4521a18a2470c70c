import math
from itertools import pairwise

import pytest

from tracker_diag.trackers import rows as module
from tracker_diag.trackers.rows import Rows, number


@pytest.mark.parametrize(
    ("given", "expected"),
    [(1, 1.0), (True, 1.0), ("inf", math.inf), ("-Infinity", -math.inf), ("0.5", None), ([], None), (10**400, None)],
)
def test_what_is_a_number(given, expected):
    assert number(given) == expected
    assert math.isnan(number("NaN"))


def test_rows_are_sorted_and_merged_and_what_was_odd_is_reported():
    rows = Rows()
    rows.put_row(5, {"a": 1, "b": 2, "text": "x"}, "line 1", clock=10.0)
    rows.put_row(3, {"a": 3, "eval": None}, "line 2", clock=8.0)
    rows.put_row(5, {"a": 4, "b": 2.0}, "line 3", clock=12.0)
    run = rows.finish("it")
    assert run.rows == {3: {"a": 3.0}, 5: {"a": 4.0, "b": 2.0}}
    assert list(run.rows) == [3, 5]
    assert run.seconds == {3: 0.0, 5: 4.0}
    assert run.notes == (
        "values that are no numbers, left out: 1, first 'text' at line 1",
        "values logged after those of a later step, sorted in: 1, first 'a': 3 after 5",
    )
    assert run.caveats == ("values that replace others of the same step: 1, first 'a' at step 5; the last one counts",)


def test_the_same_value_twice_is_not_odd():
    rows = Rows()
    for _ in range(2):
        rows.put_row(1, {"a": math.nan, "b": 1.0}, "")
    assert rows.finish("it").notes == ()


def padded(values, *, padded=True):
    rows = Rows()
    for step, value in enumerate(values):
        rows.put_row(step, {"a": 1.0, "eval": value}, "")
    run = rows.finish("it", padded=padded)
    return [row["eval"] for row in run.rows.values() if "eval" in row], run.notes


def test_a_metric_on_another_cadence_is_sparse_not_nan():
    values = [0.1 * step if step % 5 == 4 else math.nan for step in range(23)]
    result, notes = padded(values)
    assert result == pytest.approx([0.4, 0.9, 1.4, 1.9])
    assert notes == ("eval is NaN but for every 5th row: taken for padding, not for numbers",)
    assert len(padded(values, padded=False)[0]) == 23


@pytest.mark.parametrize(
    "values", [[0.1] * 5 + [math.nan] * 20, [math.nan] * 9, [math.nan, 0.1, math.nan, math.nan, 0.1, math.nan, 0.1]]
)
def test_a_metric_that_fails_stays_nan(values):
    assert len(padded(values)[0]) == len(values)


def test_a_long_run_is_held_in_bounded_memory_with_means_and_loses_neither_sparse_nor_non_finite_values(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 1000)
    rows = Rows()
    for step in range(0, 200_000, 10):
        values = {"reward": float(step), "loss": math.nan if step == 70_000 else 1.0, "note": 7.0}
        rows.put_row(step, values | ({"eval_score": float(step)} if step % 20_000 == 0 else {}), "", clock=step / 10)
        assert rows._held <= 1004  # noqa: SLF001  # at each row, before any run is made of them
    run = rows.finish("it")
    steps = list(run.rows)
    assert 250 < len(steps) < 1000
    assert steps == sorted(steps)
    assert steps[-1] == 199_990
    for before, step in pairwise(steps):
        assert run.rows[step]["reward"] == pytest.approx((before + 10 + step) / 2)
    assert sum(math.isnan(row["loss"]) for row in run.rows.values()) == 1
    assert [row["eval_score"] for row in run.rows.values() if "eval_score" in row] == [20_000.0 * i for i in range(10)]
    assert run.seconds[199_990] - run.seconds[steps[0]] == pytest.approx((199_990 - steps[0]) / 10)
    left_out, thinned = run.caveats
    assert left_out == "the log is long: of 1 keys that stand for no metric only the first value was kept"
    assert "steps share a row, with the mean of each key" in thinned
    assert sum("note" in row for row in run.rows.values()) == 1
    assert len({later - earlier for earlier, later in pairwise(steps[1:-1])}) <= 2


def test_keys_that_nobody_reads_are_left_out_before_rows_are_thinned(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 1000)
    rows = Rows()
    for step in range(400):
        rows.put_row(step, {"reward": float(step), **{f"mine/{i}": 1.0 for i in range(20)}}, "")
    run = rows.finish("it")
    assert [row["reward"] for row in run.rows.values()] == [float(step) for step in range(400)]
    assert {key for row in run.rows.values() for key in row} == {"reward", *(f"mine/{i}" for i in range(20))}
    assert run.caveats == ("the log is long: of 20 keys that stand for no metric only the first value was kept",)
