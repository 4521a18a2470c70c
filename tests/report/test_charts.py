"""Charts: scale, ticks, thinning, marks."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.report.charts import POINTS, axis_ticks, chart, drawn_marks

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def curve(values):
    return [("", "", dict(enumerate(values)))]


def test_growth_from_a_small_level_is_seen_on_the_declared_log_scale():
    grows = [0.087 * math.exp(max(0, step - 85) * 0.05) for step in range(160)]
    drawn = chart("p95", "nat", curve(grows), (0, 159), log=True, before=85)
    heights = [100 - float(y) for y in re.findall(r" ([\d.]+)", drawn.lines[0].path)]
    assert heights[96] - heights[80] > 10  # on a linear scale it would be 1.7
    assert drawn.about == "nat, log scale"
    assert drawn.usual.label == "usual before: 0.087 to 0.087"
    assert [label for _, label in drawn.ticks] == ["0.1", "0.3", "1", "3"]


def test_a_log_scale_needs_values_above_0():
    assert chart("kl", "nat", curve([-0.1, 0.2, 0.3]), (0, 2), log=True).about == "nat"
    assert chart("kl", "nat", curve([0.0, *[0.1] * 20]), (0, 20), log=True).about == "nat, log scale"


def test_a_long_curve_has_means_of_rows_in_a_row_and_what_is_not_finite_is_left_out():
    (line,) = chart("x", "", curve([math.nan, *map(float, range(4000))]), (0, 4000), log=False).lines
    assert len(line.values) == POINTS
    assert line.values[:2] == [4.5, 14.5]
    assert line.steps[:2] == [1, 11]
    assert chart("x", "", curve([math.nan, math.inf]), (0, 1), log=False) is None


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.integers(0, 100), NUMBERS), min_size=1, max_size=3), st.booleans())
def test_every_path_and_tick_stays_in_its_frame(curves, log):
    drawn = chart("x", "", [("", "", points) for points in curves], (0, 100), log=log)
    for line in drawn.lines if drawn else ():
        places = [tuple(map(float, point)) for point in re.findall(r"(-?[\d.]+) (-?[\d.]+)", line.path)]
        assert all(0 <= x <= 1000 and 0 <= y <= 100 for x, y in places)
    assert all(0 <= at <= 100 for at, _ in (drawn.ticks if drawn else ()))


def test_labels_of_marks_have_lines_in_which_they_do_not_overlap():
    given = [(125, "damage 125", "error"), (85, "began 85", "error"), (96, "alert 96", "")]
    marks = [(mark.label, mark.row, mark.left) for mark in drawn_marks(given, (0, 160))]
    assert marks == [("began 85", 0, True), ("alert 96", 0, False), ("damage 125", 1, True)]
    assert not drawn_marks([(3, "began 3", "error")], (0, 160))[0].left  # there is no room


@pytest.mark.parametrize("last", [0, 1, 7, 159, 100_000])
def test_the_axis_has_its_ends_and_round_steps_between(last):
    labels = [label for _, label in axis_ticks((0, last))]
    assert labels[0] == "0"
    assert labels[-1] == f"{last:,}"
    assert len(labels) == len({*labels}) <= 7
