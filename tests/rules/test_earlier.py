"""What is read of earlier runs, and what is said of those that tell nothing."""

import math

import pytest

from tracker_diag.errors import DiagError
from tracker_diag.metrics.series import StatKey
from tracker_diag.rules.earlier import Earlier
from tracker_diag.trackers.finished import FinishedRun

POST, TEXT = (StatKey("policy", name, "p95_step") for name in ("post_tool", "text_only"))


def finished(columns, source="mlflow:1"):
    """A run with a value of each of `columns` at each step; None is none."""
    rows = {}
    for name, values in columns.items():
        for step, value in enumerate(values):
            if value is not None:
                rows.setdefault(step, {})[name] = value
    return FinishedRun(source, rows, {}, {}, ())


def test_the_series_of_one_key_and_the_ratio_of_two():
    run = finished({"diag/policy/post_tool/p95_step": [0.2] * 20, "diag/policy/text_only/p95_step": [0.1] * 20})
    earlier = Earlier([run])
    assert earlier.values([POST]) == [[0.2] * 20]
    assert earlier.values([POST, TEXT]) == [[pytest.approx(2)] * 20]
    assert earlier.pairs == {"policy"}


def test_steps_without_a_value_or_without_a_number_are_left_out():
    broken = [math.nan, math.inf, 0.0, None]
    run = finished({f"diag/{key}": [*broken, *[0.2] * 20] for key in (POST, TEXT)} | {"reward": [0.5] * 24})
    assert Earlier([run]).values([POST]) == [[0.2] * 20]
    assert Earlier([run]).values([POST, TEXT]) == [[1.0] * 20]


def test_a_run_that_lacks_a_series_or_has_too_little_of_it_is_left_out_of_it():
    long = {"diag/policy/post_tool/p95_step": [0.2] * 40}
    short = long | {"diag/policy/text_only/p95_step": [0.1] * 19}
    earlier = Earlier([finished(long), finished(short, "mlflow:2")])
    assert len(earlier.values([POST])) == 2
    assert earlier.values([TEXT]) == earlier.values([POST, TEXT]) == []
    assert earlier.values(["reward"]) == []


def test_the_window_s_p95_stands_for_that_of_each_step():
    assert Earlier([finished({"diag/policy/post_tool/p95": [0.2] * 20})]).values([POST]) == [[0.2] * 20]


def test_the_reference_pair_is_never_judged_by_an_earlier_run():
    key = StatKey("reference", "post_tool", "p95_step")
    both = {f"diag/{pair}/post_tool/p95_step": [0.2] * 20 for pair in ("policy", "reference")}
    assert Earlier([finished(both)]).values([key]) == []


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"reward": [0.5] * 50}, "has no series diag/<pair>/<slice>/p95"),
        ({"diag/health/late_steps": [1.0] * 50, "diag/step": [1.0] * 50}, "has no series diag/<pair>/<slice>/p95"),
        ({}, "has no series diag/<pair>/<slice>/p95"),
        ({"diag/reference/all/p95": [0.1] * 50}, "has such series of reference alone, which is 0 at first"),
        ({"diag/policy/all/p95": [0.1] * 19}, "has 19 steps with diagnostics, expected 20 or more"),
    ],
)
def test_a_run_that_tells_nothing_is_refused(columns, reason):
    with pytest.raises(DiagError) as error:
        Earlier([finished(columns, "mlflow:abc")])
    assert str(error.value).startswith(f"baseline: mlflow:abc {reason}")


def test_a_run_that_is_given_twice_is_refused():
    run = finished({"diag/policy/all/p95": [0.1] * 50})
    with pytest.raises(DiagError, match=r"^baseline: mlflow:1 given twice, expected different runs; give each once$"):
        Earlier([run, run])
