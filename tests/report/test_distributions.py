import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.monitor.readout import HISTOGRAM_EDGES
from tracker_diag.records import SAMPLES, Histogram
from tracker_diag.report.distributions import HEIGHT, RAREST, WIDTH, path, rewards, steppers

EDGES = np.array([0.0, 0.01, 0.1, 1.0])


def histogram(counts, baseline=(0, 0, 0), slice="post_tool", pair="policy"):
    return Histogram(f"diag/{pair}/{slice}/hist", pair, slice, np.array(counts), EDGES, np.array(baseline))


def places(drawn):
    return [tuple(map(float, part.split())) for part in drawn.removeprefix("M").split("L")]


def test_a_path_is_the_share_beyond_each_edge_on_two_log_axes():
    first, second, last = places(path(np.array([50, 45, 5]), EDGES))
    assert first == pytest.approx((WIDTH * np.log(100) / np.log(3e5), HEIGHT * np.log(0.5) / np.log(RAREST)), abs=0.6)
    assert second[1] == pytest.approx(HEIGHT * np.log(0.05) / np.log(RAREST), abs=0.6)
    assert last[1] == HEIGHT  # nothing is beyond the last edge
    assert path(np.zeros(3, int), EDGES) == ""


@pytest.mark.slow
@given(st.lists(st.integers(0, 10**9), min_size=len(HISTOGRAM_EDGES) - 1, max_size=len(HISTOGRAM_EDGES) - 1))
def test_every_distribution_falls_from_the_upper_left_and_stays_in_the_drawing(counts):
    drawn = path(np.array(counts), HISTOGRAM_EDGES)
    if drawn:
        x, y = zip(*places(drawn), strict=True)
        assert [*x] == sorted(x)
        assert [*y] == sorted(y)
        assert x[0] >= 0
        assert 0 <= y[0] <= y[-1] <= HEIGHT


def test_each_pair_has_its_steps_with_a_path_for_each_slice_and_the_reference_period_once_it_is_there():
    text = histogram([9, 1, 0], slice="text_only")
    later = histogram([1, 9, 0], (5, 5, 0))
    other = histogram([1, 0, 0], pair="mismatch")
    of_policy, of_mismatch = steppers([(3, (text,)), (5, (text, later)), (9, (other, text))])
    assert (of_policy.pair, of_policy.steps) == ("policy", [3, 5, 9])
    assert of_policy.now["text_only"] == [path(text.counts, EDGES)] * 3
    assert of_policy.now["post_tool"] == ["", path(later.counts, EDGES), ""]
    assert of_policy.then == {"post_tool": path(later.baseline, EDGES)}
    assert (of_mismatch.pair, of_mismatch.steps) == ("mismatch", [9])
    assert steppers([]) == []


def scored(counts, edges):
    return Histogram("h", SAMPLES, "reward", np.array(counts), np.array(edges), np.zeros(len(counts), int))


def test_rewards_are_columns_over_one_axis_for_all_steps():
    early, late = scored([3, 1], [0.0, 0.5, 1.0]), scored([0, 4], [1.0, 1.5, 2.0])
    tail = histogram([9, 1, 0])
    result = rewards([(0, (tail, early)), (7, (late,))])
    assert (result.pair, result.steps) == (SAMPLES, [0, 7])
    high = HEIGHT * 0.05
    assert result.now["reward"] == [
        f"M0.0 {HEIGHT}V{high:.1f}H150.0V{HEIGHT}M150.0 {HEIGHT}V{HEIGHT * (1 - 0.95 / 3):.1f}H300.0V{HEIGHT}",
        f"M450.0 {HEIGHT}V{high:.1f}H600.0V{HEIGHT}",
    ]
    assert [tick for _, tick in result.ticks] == ["0", "0.5", "1", "1.5", "2"]
    assert [stepper.pair for stepper in steppers([(0, (tail, early))])] == ["policy"]
    assert rewards([(0, (tail,))]) is None


def test_one_reward_for_all_and_none_are_drawn_too():
    (same,) = rewards([(0, (scored([5], [1.0, 1.0]),))]).now["reward"]
    assert "nan" not in same
    assert rewards([(0, (scored([0], [0.0, 1.0]),))]).now["reward"] == [""]
