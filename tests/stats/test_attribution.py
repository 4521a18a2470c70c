"""Which cells carry a growth, against the counts that it was made of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.stats.attribution import carriers
from tracker_diag.stats.histogram import BINS

BEYOND = 3000


def counts(beyond, tokens):
    """(4098,) of which `beyond` of `tokens` lie above the limit."""
    result = np.zeros(BINS, np.int64)
    result[100], result[BEYOND] = tokens - beyond, beyond
    return result


def carried(**cells):
    """Cells as (beyond now, tokens now, beyond then, tokens then)."""
    given = {name: (counts(*item[:2]), counts(*item[2:])) for name, item in cells.items()}
    return list(carriers(given, BEYOND, among=20))


def test_the_cell_that_grew_is_named_with_its_shares():
    (item,) = carried(search=(300, 2000, 100, 10_000), python=(60, 6000, 100, 10_000), browser=(20, 2000, 100, 10_000))
    assert (item.cell, item.growth, item.tokens) == ("search", 1.0, 0.2)  # the others have what was expected of them
    assert 0.7 < item.least < 1
    assert str(item) == "search carries 100% of the growth with 20% of the tokens"


def test_a_cell_with_a_long_tail_of_old_is_none():
    """Delimiters have always had the longest tail; what has grown is that of the rest, wholly."""
    result = carried(control=(100, 1000, 1000, 10_000), rest=(500, 9000, 0, 90_000))
    assert result == []  # and 90 % of the tokens carrying all of it are not much more than their share


def test_a_growth_that_all_share_has_no_carrier():
    assert carried(a=(400, 2000, 100, 10_000), b=(400, 2000, 100, 10_000), c=(380, 2000, 100, 10_000)) == []
    assert carried(only=(400, 2000, 100, 10_000)) == []


def test_what_two_carry_is_reported_of_both_the_larger_first():
    cells = dict.fromkeys("defgh", (10, 1000, 100, 10000))
    result = carried(a=(300, 1000, 100, 10_000), b=(500, 1000, 100, 10_000), **cells)
    assert [item.cell for item in result] == ["b", "a"]
    assert sum(item.growth for item in result) == pytest.approx(1)


def test_a_new_cell_is_held_against_what_all_had():
    (item,) = carried(new=(300, 2000, 0, 0), old=(80, 8000, 100, 10_000))
    assert item.cell == "new"
    assert item.growth == pytest.approx(280 / 280)


def test_nothing_that_grew_has_no_carrier():
    assert carried(a=(0, 2000, 100, 10_000), b=(10, 2000, 100, 10_000)) == []
    assert carried() == []
    assert list(carriers({"a": (counts(5, 100), np.zeros(BINS, np.int64))}, BEYOND, 1)) == []  # nothing was usual


@pytest.mark.slow
def test_by_chance_alone_hardly_any_is_named():
    """All cells grow alike; over ten of them the chance of naming any is held to 5 %."""
    rng = np.random.default_rng(0)
    named = 0
    for _ in range(400):
        cells = {str(i): (int(rng.binomial(500, 0.03)), 500, int(rng.binomial(3000, 0.01)), 3000) for i in range(10)}
        named += bool(carried(**cells))
    assert named <= 20


@pytest.mark.slow
@given(st.lists(st.tuples(*(st.integers(0, 10_000) for _ in range(4))), max_size=8))
def test_shares_are_shares(cells):
    given = {str(i): (counts(a, a + b), counts(c, c + d)) for i, (a, b, c, d) in enumerate(cells)}
    result = carriers(given, BEYOND, among=max(len(given), 1))
    assert sum(item.growth for item in result) <= 1 + 1e-9
    for item in result:
        assert 0 <= item.tokens < item.least <= item.growth <= 1 + 1e-9
