"""The e-detector against the check values of its definition, and what capping, jumps and odd series do to it."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.detect.esr import BlockEsr, EsrSettings, capped, exceedance, likelihood_ratios

PLAIN = EsrSettings(burn_in=0)
SMALL = EsrSettings(burn_in=2, baseline=12, block=3)
TWENTY = [0.1 + 0.001 * (i % 7) for i in range(200)]
"""A baseline of 20 blocks."""


def run(detector, values, start=0):
    holds = []
    for step, value in enumerate(values, start):
        detector.update(step, value)
        holds.append(detector.holds)
    return holds


def first(holds):
    return next((step for step, value in enumerate(holds) if value), None)


def block(detector, exceeds, start=0):
    run(detector, [0.15 if exceeds else 0.1] * detector.settings.block, start)


@pytest.mark.parametrize(
    ("n", "p0"),
    [
        (20, 0.138425),
        (10, 0.256886),
        (40, 0.071995),
    ],
)
def test_share_of_blocks_that_exceed_by_chance(n, p0):
    assert exceedance(n) == pytest.approx(p0, abs=1e-6)


def test_likelihood_ratios():
    p0 = exceedance(20)
    below, above = likelihood_ratios(p0, 6)
    np.testing.assert_allclose(below, [0.857143, 0.714286, 0.571429, 0.428571, 0.285714, 0.142857], atol=1e-6)
    assert (above[0], above[-1]) == (pytest.approx(1.889161, abs=1e-6), pytest.approx(6.334967, abs=1e-6))
    p1 = [0.261507, 0.384589, 0.507671, 0.630754, 0.753836, 0.876918]
    np.testing.assert_allclose(np.multiply(above, p0), p1, atol=1e-6)


def test_the_score_after_each_block():
    detector, scores = BlockEsr(PLAIN), []
    run(detector, TWENTY)
    for exceeds in (1, 0, 1, 1, 0):
        block(detector, exceeds)
        scores.append(detector.score)
    np.testing.assert_allclose(scores, [4.112064, 2.185548, 12.358211, 58.603722, 23.039259], atol=1e-6)
    for _ in range(200):
        block(detector, exceeds=False)
    assert detector.score == pytest.approx(1.858333, abs=1e-6)


def test_six_blocks_in_a_row_are_an_alarm():
    detector, scores = BlockEsr(PLAIN), []
    run(detector, TWENTY)
    for _ in range(5):
        block(detector, exceeds=True)
        scores.append(detector.score)
    assert scores[-1] == pytest.approx(3618.7, abs=0.05)
    assert not detector.holds
    block(detector, exceeds=True)
    assert detector.holds
    assert detector.score == pytest.approx(20_000)  # 20,720.1, capped


@pytest.mark.parametrize(
    ("n", "level", "blocks"),
    [(20, 10_000, 6), (10, 5_000, 8), (40, 10_000, 5)],
)
def test_blocks_to_an_alarm(n, level, blocks):
    settings = EsrSettings(burn_in=0, baseline=2 * n, block=2, level=level)
    holds = run(BlockEsr(settings), [0.1] * 2 * n + [0.15] * 40)
    assert first(holds) == 2 * n + 2 * blocks - 1


def reference(blocks, n):
    """Definition 8.1 on block means in log units, as it is written there: the score after each, without a reset."""
    highest, p = max(blocks[:n]), 1 / (n + 1)
    p0 = min(0.95, p + 2 * math.sqrt(p * (1 - p) / (n + 2)))
    m, scores = np.zeros(6), []
    p1 = p0 + (1 - p0) * np.arange(1, 7) / 7
    for v in blocks[n:]:
        m = (p1 / p0 if v > highest + 0.1 else (1 - p1) / (1 - p0)) * (m + 1)
        scores.append(m.mean())
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_against_the_definition_until_the_first_alarm(seed):
    rng = np.random.default_rng(seed)
    y = 0.2 * rng.normal(size=900) + np.linspace(0, 1, 900)
    detector, scores = BlockEsr(PLAIN), []
    for step, value in enumerate(y):
        detector.update(step, math.exp(value))
        if step >= 200 and step % 10 == 9:
            scores.append(detector.score)
    expected = reference(y.reshape(-1, 10).mean(1), 20)
    until = next(i for i, score in enumerate(expected) if score > 20_000)
    np.testing.assert_allclose(scores[:until], expected[:until], rtol=1e-9)
    assert (np.array(scores) <= np.array(expected) * (1 + 1e-9)).all()  # capping only lowers
    assert detector.holds


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8), st.floats(1e-3, 1e7))
def test_capping_lowers_the_largest_to_one_level(values, total):
    lowered = capped(values, total)
    assert sum(lowered) <= total * (1 + 1e-9)
    level = max(lowered)
    if sum(values) > total:
        assert sum(lowered) == pytest.approx(total)
        assert all(new == pytest.approx(min(old, level)) for old, new in zip(values, lowered, strict=True))
    else:
        assert lowered == values


def test_growth_ends_a_few_blocks_after_the_series_is_back():
    detector = BlockEsr(PLAIN)
    holds = run(detector, TWENTY + [0.15] * 5000 + [0.1] * 150)
    assert holds[5199]
    assert holds[5200:].index(False) < 30
    assert not any(holds[5240:])
    assert detector.onset is None


def test_the_onset_is_the_first_block_of_the_growth_and_one_on_its_own_is_forgotten():
    detector = BlockEsr(PLAIN)
    run(detector, TWENTY)
    block(detector, exceeds=True, start=200)
    assert detector.onset == 200
    for start in range(210, 240, 10):
        assert detector.onset == 200
        block(detector, exceeds=False, start=start)
    assert detector.onset is None
    for start, exceeds in zip(range(260, 360, 10), (1, 0, 1, 1, 0, 1, 1, 1, 1, 1), strict=True):
        block(detector, exceeds, start)
    assert detector.onset == 260
    assert detector.holds
    assert detector.value == pytest.approx(0.15)
    assert detector.baseline == pytest.approx(0.103, abs=1e-3)


def test_a_jump_holds_after_two_blocks_until_one_falls_back():
    detector = BlockEsr(PLAIN)
    holds = run(detector, TWENTY + [0.4] * 30 + [0.1] * 30)
    assert first(holds) == 219
    assert holds[219:239] == [True] * 20
    assert holds[239:] == [False] * 21
    # ×2 is no jump: it takes six blocks.
    assert first(run(BlockEsr(PLAIN), TWENTY + [0.2] * 100)) == 259


def test_jumps_are_of_the_log_scale_only():
    values = [0.5] * 200 + [5.0] * 60
    assert first(run(BlockEsr(PLAIN, "linear"), values)) == 259
    assert first(run(BlockEsr(PLAIN), values)) == 219


def test_growth_below_the_floor_is_never_counted():
    assert first(run(BlockEsr(PLAIN), [0.1] * 200 + [0.11] * 3000)) is None
    assert first(run(BlockEsr(PLAIN, "linear"), [-1.0] * 200 + [-0.9] * 3000)) is None
    assert first(run(BlockEsr(PLAIN, "linear"), [-1.0] * 200 + [-0.8] * 100)) is not None
    assert first(run(BlockEsr(PLAIN, "linear", "rising", 0.5), [-1.0] * 200 + [-0.6] * 3000)) is None


def test_falling_is_rising_of_the_inverse():
    values = [0.5] * 200 + [0.3] * 70
    rising = run(BlockEsr(PLAIN), [1 / value for value in values])
    assert run(BlockEsr(PLAIN, direction="falling"), values) == rising
    assert first(rising) is not None
    assert first(run(BlockEsr(PLAIN), values)) is None


def test_a_known_error_keeps_a_baseline_that_is_calm_by_chance_from_alarming():
    calm, then = [0.1] * 200, [0.13] * 100
    assert first(run(BlockEsr(PLAIN), calm + then)) == 259
    detector, holds = BlockEsr(PLAIN), []
    for step, value in enumerate(calm + then):
        detector.update(step, value, 0.2)
        holds.append(detector.holds)
    assert first(holds) is None  # 1.67 standard deviations and the floor are ×1.54
    run(detector, [0.17] * 100)
    assert detector.holds


def test_unknown_until_the_baseline_stands_and_where_it_explodes():
    detector = BlockEsr(EsrSettings(burn_in=5, baseline=20, block=5))
    assert run(detector, [1.0] * 24) == [None] * 24
    assert (detector.seen, detector.needed) == (24, 25)
    assert run(detector, [1.0] * 6)[-1] is False
    wild = BlockEsr(PLAIN)
    assert run(wild, [*np.exp(np.linspace(-8, 8, 200)).tolist(), *[1e6] * 100]) == [None] * 300
    assert wild.undetectable


def test_rebaseline_forgets_and_needs_no_burn_in():
    detector = BlockEsr(SMALL)
    run(detector, [1.0] * 14 + [5.0] * 40)
    assert detector.holds
    detector.rebaseline()
    assert (detector.holds, detector.score, detector.onset, detector.ready) == (None, 0, None, False)
    assert (detector.seen, detector.needed) == (2, 14)
    assert run(detector, [5.0] * 40)[11:] == [False] * 29
    assert detector.baseline == pytest.approx(5)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=60), st.data())
def test_saved_at_any_step_it_continues_the_same(values, data):
    at = data.draw(st.integers(0, len(values)))
    scale = data.draw(st.sampled_from(["log", "linear"]))
    unbroken, killed, resumed = (BlockEsr(SMALL, scale) for _ in range(3))
    run(unbroken, values)
    run(killed, values[:at])
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    run(resumed, values[at:], at)
    assert resumed == unbroken
    assert resumed.state_dict() == unbroken.state_dict()


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=60), st.sampled_from(["log", "linear"]))
def test_whatever_the_values_the_state_is_finite(values, scale):
    detector = BlockEsr(SMALL, scale)
    run(detector, values)
    json.dumps(detector.state_dict(), allow_nan=False)
    assert detector.holds in (None, True, False)
    assert detector.undetectable is None or detector.undetectable >= 1


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-300, 1.0, 1e300, 1.7976931348623157e308])
@pytest.mark.parametrize("scale", ["log", "linear"])
def test_a_series_that_stands_still_has_not_grown(value, scale):
    holds = run(BlockEsr(PLAIN, scale), [value] * 400)
    assert holds[-1] is False
    assert not any(holds)


@pytest.mark.parametrize(
    "wrong",
    [{"floor": -1}, {"level": 1}, {"bets": 0}, {"baseline": 15}, {"burn_in": -1}],
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="expected"):
        EsrSettings(**wrong)
