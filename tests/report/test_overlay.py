"""Curves of several runs over one axis and one scale."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.report.overlay import BARS, CELLS, POINTS, bars, overlay

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def test_all_curves_have_one_scale():
    flat, rising = {float(at): 0.0 for at in range(100)}, {float(at): float(at) for at in range(100)}
    found = overlay([flat, rising], 0, 99, CELLS)
    assert found is not None
    assert set(found.heights[0].values()) == {0.0}
    assert bars(found.heights[0]) == BARS[0] * CELLS
    assert bars(found.heights[1])[0] == BARS[0]
    assert bars(found.heights[1])[-1] == BARS[-1]
    assert found.low == 0.0
    assert not found.log


def test_a_peak_far_above_the_rest_is_drawn_by_logarithms():
    found = overlay([{float(at): 1.0 for at in range(50)}, {0.0: 1e6}], 0, 49)
    assert found is not None
    assert found.log
    assert math.isclose(found.high, 1e6)


def test_what_is_not_finite_or_lies_outside_is_left_out():
    found = overlay([{0.0: 1.0, 1.0: math.nan, 2.0: math.inf, 9.0: 5.0}, {}], 0, 3, 4)
    assert found is not None
    assert found.heights == ({0: 0.0}, {})
    assert overlay([{0.0: math.nan}], 0, 3) is None
    assert bars({}) == ""
    assert found.paths[1] == ""


def test_a_column_without_a_value_repeats_the_one_before():
    assert bars({1: 1.0, 3: 0.0}, 5) == f" {BARS[-1]}{BARS[-1]}{BARS[0]}{BARS[0]}"


@pytest.mark.slow
@given(st.lists(st.dictionaries(st.floats(0, 100), NUMBERS), min_size=1, max_size=3))
def test_every_path_stays_in_its_frame(curves):
    found = overlay(curves, 0, 100)
    for path in found.paths if found else ():
        numbers = [float(one) for one in re.findall(r"-?\d+\.\d", path)]
        assert all(0 <= x <= 1000 for x in numbers[::2])
        assert all(0 <= y <= 100 for y in numbers[1::2])
        assert path.count("L") < POINTS
