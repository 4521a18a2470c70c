"""The detector against its own definition, and against the noise that it was made for."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.detect.cusum import BlockCusum, CusumSettings
from tracker_diag.errors import SourceError

SHORT = CusumSettings(burn_in=0)
SMALL = CusumSettings(burn_in=3, baseline=10, block=2)


def run(detector, values, start=0):
    holds = []
    for step, value in enumerate(values, start):
        detector.update(step, value)
        holds.append(detector.holds)
    return holds


def first(holds):
    return next((step for step, value in enumerate(holds) if value), None)


def ar(rng, phi, sigma, n, heavy=False):
    """AR(1) noise of standard deviation `sigma` and autocorrelation `phi`."""
    z = rng.standard_t(4, n + 200) / math.sqrt(2) if heavy else rng.normal(size=n + 200)
    e = np.zeros(n + 200)
    for t in range(1, n + 200):
        e[t] = phi * e[t - 1] + math.sqrt(1 - phi**2) * z[t]
    return sigma * e[200:]


def reference(values, settings):
    """The chart as the reference table writes it out, plain numpy, on a series already in log units."""
    w, b = settings.baseline, settings.block
    base, rest = np.array(values[:w]), np.array(values[w:])
    blocks = base.reshape(-1, b).mean(1)
    phi = np.sum((base[1:] - base.mean()) * (base[:-1] - base.mean())) / np.sum((base - base.mean()) ** 2)
    phi = np.clip(phi + (1 + 3 * phi) / w, 0, 0.97)
    s = max(blocks.std(ddof=1), base.std(ddof=1) * math.sqrt((1 + phi) / (1 - phi) / b)) * math.sqrt(1 + b / w)
    ref, c, scores = max(settings.slack * s, settings.floor / 2), 0.0, []
    for j in range(len(rest) // b):
        c = min(max(0.0, c + (rest[j * b : (j + 1) * b].mean() - blocks.mean() - ref) / s), 2 * settings.threshold)
        scores.append(c)
    return scores


@pytest.mark.parametrize("seed", range(5))
def test_against_the_definition(seed):
    rng = np.random.default_rng(seed)
    y = ar(rng, 0.8, 0.1, 200) + np.linspace(0, 1, 200)
    detector, scores = BlockCusum(SHORT), []
    for step, value in enumerate(y):
        detector.update(step, math.exp(value))
        if step >= 50 and (step + 1) % 5 == 0:
            scores.append(detector.score)
    np.testing.assert_allclose(scores, reference(y, SHORT), rtol=1e-9, atol=1e-9)


def test_unknown_until_the_baseline_stands():
    detector = BlockCusum(CusumSettings(burn_in=10, baseline=20))
    assert run(detector, [1.0] * 29) == [None] * 29
    assert (detector.seen, detector.needed) == (29, 30)
    assert run(detector, [1.0] * 6)[-1] is False
    assert detector.baseline == pytest.approx(1)


@pytest.mark.parametrize(("every", "values"), [(1, 65), (3, 22), (10, 12)])
def test_a_series_with_a_value_at_every_few_steps_has_its_baseline_after_as_many_steps(every, values):
    """And at least ten values: of those the threshold is higher, since they tell less of their noise."""
    rng, detector = np.random.default_rng(every), BlockCusum()
    noise, ready = 0.1 * rng.normal(size=500), []
    for at, y in enumerate(noise):
        detector.update(every * at, math.exp(y + (at >= values + 10) * math.log(4)), steps=every)
        ready.append(detector.ready)
        if detector.holds:
            break
    assert ready.index(True) + 1 == values - (every == 10)
    assert values + 10 <= at < values + 25
    assert detector.onset == pytest.approx(every * (values + 10), abs=every * detector.block)


@pytest.mark.parametrize("every", [3, 10])
def test_few_values_of_noise_are_no_growth(every):
    rng, alarms = np.random.default_rng(7), 0
    for _ in range(50):
        detector, held = BlockCusum(), False
        for at, y in enumerate(ar(rng, 0.3, 0.12, 100)):
            detector.update(every * at, math.exp(y), steps=every)
            held |= detector.holds is True
        alarms += held
    assert alarms <= 1


def test_a_tail_that_rises_as_the_rate_warms_up_has_its_baseline_afterwards():
    """No alarm on the rise itself; then ×2 is found. Of a metric, whose values are as they are, nothing changes."""
    rng, delays = np.random.default_rng(5), []
    for _ in range(10):
        detector, at = BlockCusum(disjoint=True), 0
        for at, y in enumerate(ar(rng, 0.8, 0.1, 300)):
            detector.update(at, min(1.0, (at + 1) / 100) * (2.0 if at >= 200 else 1.0) * math.exp(y))
            if detector.holds:
                break
        delays.append(at - 200)
    assert min(delays) > 0
    assert sum(delay < 30 for delay in delays) >= 9  # in the tenth the noise of the baseline is as large as the rise
    metric = BlockCusum()
    run(metric, [min(1.0, (at + 1) / 100) for at in range(66)])
    assert metric.ready


@pytest.mark.parametrize("begins", [0, 90])  # a baseline that has a crest, and one in a trough
def test_a_later_crest_no_higher_than_the_first_is_nothing_new(begins):
    wave = [math.exp(0.4 * math.cos(step / 37)) for step in range(begins, begins + 600)]
    detector, new = BlockCusum(), []
    for step, value in enumerate([*wave, *(2 * item for item in wave[:200])]):
        detector.update(step, value)
        new.append(bool(detector.holds) and detector.is_new)
    assert any(new[:300]) == (begins > 0)
    assert not any(new[300:600])
    assert any(new[600 : 700 if begins else 620])  # twice a trough is no higher than a crest


def test_half_a_baseline_knows_the_noise_less_well():
    """A jump within a baseline is judged by its first half, so by a higher threshold: noise alone is rarely one."""
    rng = np.random.default_rng(5)
    alarms = sum(run(BlockCusum(), np.exp(ar(rng, 0.8, 0.14, 70)))[-1] is True for _ in range(1000))
    assert alarms <= 3


def test_a_burn_in_is_no_baseline():
    """A pair that starts at zero by construction and settles does not alarm on having settled."""
    values = [*np.linspace(1e-5, 0.1, 15), *[0.1] * 100]
    assert first(run(BlockCusum(), values)) is None
    assert first(run(BlockCusum(SHORT), values)) is None


def test_growth_is_dated_and_ends():
    detector = BlockCusum(SHORT)
    values = [0.1] * 60 + [0.3] * 20 + [0.1] * 40
    holds = run(detector, values)
    assert first(holds) == 64  # the end of the first block that is higher
    assert holds[80:95].count(True) < 15
    assert holds[-1] is False
    assert detector.onset is None


def test_the_onset_is_the_block_where_the_score_left_zero():
    detector = BlockCusum(SHORT)
    run(detector, [0.1] * 60 + [0.3] * 30)
    assert detector.onset == 60
    assert detector.value == pytest.approx(0.3)


def test_growth_below_the_floor_is_never_counted():
    assert first(run(BlockCusum(SHORT), [0.1] * 50 + [0.12] * 1000)) is None


def test_falling_is_rising_of_the_inverse():
    values = [0.5] * 60 + [0.2] * 20
    rising = run(BlockCusum(SHORT), [1 / value for value in values])
    assert run(BlockCusum(SHORT, direction="falling"), values) == rising
    assert first(run(BlockCusum(SHORT), values)) is None


def test_the_linear_scale_takes_zero_and_negative_values():
    assert first(run(BlockCusum(SHORT, "linear"), [-1.0] * 50 + [-0.5] * 30)) is not None
    assert first(run(BlockCusum(SHORT, "linear"), [-1.0] * 50 + [-0.9] * 300)) is None
    assert first(run(BlockCusum(SHORT, "linear", "falling"), [0.9] * 50 + [0.5] * 30)) is not None
    assert run(BlockCusum(SHORT, "linear"), [0.0] * 80)[-1] is False


def test_a_baseline_that_explodes_is_none():
    detector = BlockCusum(SHORT)
    holds = run(detector, np.exp(np.linspace(-8, 8, 50)).tolist() + [1e6] * 50)
    assert holds == [None] * 100
    assert detector.undetectable


def test_a_series_that_rises_before_its_baseline_is_full_has_half_of_it():
    """Its trend would count as noise, and hide that it continues to rise."""
    noise = ar(np.random.default_rng(1), 0.0, 0.03, 80)
    values = np.exp(noise + np.log1p(np.clip(np.arange(80) - 25, 0, None) / 8))
    detector = BlockCusum(SHORT)
    holds = run(detector, values, 100)
    assert first(holds) == 49
    assert detector.onset == 130  # ×1.22, which the first block of the rise does not reach on average
    assert detector.baseline == pytest.approx(1, rel=0.02)
    burst = BlockCusum(SHORT)
    run(burst, [1.0] * 40 + [5.0] + [1.0] * 9)  # has not risen
    assert burst.baseline == pytest.approx(5 ** (1 / 50))
    falling = BlockCusum(SHORT)
    run(falling, 1 / values)  # the level of a series that gets better is that of the whole, until it follows
    assert falling.baseline == pytest.approx(np.exp(np.log(1 / values[:50]).mean()))


def feed(detector, values, errors):
    for step, (value, error) in enumerate(zip(values, errors, strict=True)):
        detector.update(step, value, error)
    return detector


def test_noise_is_never_below_the_known_error():
    """Their root mean square, with the baseline's own error on top; unknown ones, and later ones, do not count."""
    errors = [0.9, *[0.3, 0.5] * 20, *[None] * 10, *[9.0] * 10]
    detector = feed(BlockCusum(CusumSettings(burn_in=1)), [1.0] * 61, errors)
    expected = math.sqrt((0.3**2 + 0.5**2) / 2) * math.sqrt(1 + 5 / 50)
    assert detector._noise == pytest.approx(expected)  # noqa: SLF001  # no public name gives this number


def test_the_error_of_a_mean_of_values_that_share_no_sample_is_smaller():
    detector = feed(BlockCusum(CusumSettings(burn_in=1), disjoint=True), [1.0] * 61, [0.4] * 61)
    expected = 0.4 / math.sqrt(5) * math.sqrt(1 + 5 / 50)
    assert detector._noise == pytest.approx(expected)  # noqa: SLF001  # no public name gives this number


def test_a_small_error_changes_nothing():
    y = np.exp(ar(np.random.default_rng(0), 0.8, 0.1, 200))
    assert feed(BlockCusum(SHORT), y, [0.001] * 200).score == feed(BlockCusum(SHORT), y, [None] * 200).score


def test_a_known_error_keeps_a_baseline_that_is_calm_by_chance_from_alarming():
    values = [1.0] * 50 + [1.5] * 50
    assert feed(BlockCusum(SHORT), values, [None] * 100).holds
    assert not feed(BlockCusum(SHORT), values, [0.4] * 100).holds
    assert feed(BlockCusum(SHORT), values, [3.0] * 100).holds is None  # nothing below ×23 could be seen


def test_rebaseline_forgets_and_needs_no_burn_in():
    detector = BlockCusum(SMALL)
    run(detector, [0.1] * 13 + [0.5] * 9)
    assert detector.holds
    detector.rebaseline()
    assert (detector.holds, detector.score, detector.onset, detector.baseline) == (None, 0, None, None)
    assert (detector.seen, detector.needed) == (3, 13)
    assert run(detector, [0.5] * 30)[9:] == [False] * 21
    assert detector.baseline == pytest.approx(0.5)
    early = BlockCusum(SMALL)
    run(early, [0.1] * 2)
    early.rebaseline()
    assert early.seen == 2  # the burn-in is not over


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.floats(1e-8, 1e8), min_size=1, max_size=50), st.data())
def test_saved_at_any_step_it_continues_the_same(values, data):
    at = data.draw(st.integers(0, len(values)))
    scale = data.draw(st.sampled_from(["log", "linear"]))
    direction = data.draw(st.sampled_from(["rising", "falling"]))
    unbroken, killed, resumed = (BlockCusum(SMALL, scale, direction, 0.01) for _ in range(3))
    run(unbroken, values)
    run(killed, values[:at])
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    run(killed, values[at:], at)
    run(resumed, values[at:], at)
    assert resumed == killed == unbroken  # and the saved one continues by itself
    assert resumed.state_dict() == unbroken.state_dict()


def test_state_of_another_kind_is_refused():
    with pytest.raises(SourceError, match=r"saved with .* expected"):
        BlockCusum(SHORT).load_state_dict(BlockCusum(SMALL).state_dict())
    with pytest.raises(SourceError, match="_noise missing or unknown"):
        BlockCusum().load_state_dict({k: v for k, v in BlockCusum().state_dict().items() if k != "_noise"})


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50),
    st.floats(0, allow_nan=False, allow_infinity=False) | st.none(),
    st.sampled_from(["log", "linear"]),
)
def test_whatever_the_values_the_state_is_finite(values, error, scale):
    detector = feed(BlockCusum(SMALL, scale), values, [error] * len(values))
    json.dumps(detector.state_dict(), allow_nan=False)
    assert detector.holds in (None, True, False)
    assert detector.undetectable is None or detector.undetectable >= 1


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-300, 1.0, 1e300, 1.7976931348623157e308])
@pytest.mark.parametrize("scale", ["log", "linear"])
def test_a_series_that_stands_still_has_not_grown(value, scale):
    holds = run(BlockCusum(SHORT, scale), [value] * 100)
    assert holds[-1] is False
    assert not any(holds)


@pytest.mark.parametrize(
    "wrong", [{"slack": 0}, {"threshold": 0}, {"floor": -1}, {"baseline": 5}, {"baseline": 52}, {"block": 0}]
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="expected"):
        CusumSettings(**wrong)


def alarms(kind, phi, heavy, runs, n=1000):
    """Share of runs in which an own-and-relative pair of detectors alarms, and the median delay."""
    hits, delays = 0, []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        post, text = ar(rng, phi, 0.1, n, heavy), ar(rng, phi, 0.1, n, heavy)
        if kind == "drift":
            post += np.clip((np.arange(n) - 100) / 100, 0, 1) * math.log(2)
        elif kind in ("x2", "x4"):
            post += (np.arange(n) >= 100) * math.log(2 if kind == "x2" else 4)
        own, relative = BlockCusum(SHORT), BlockCusum(SHORT)
        for step in range(n):
            own.update(step, math.exp(post[step]))
            relative.update(step, math.exp(post[step] - text[step]))
            if own.holds and relative.holds:
                hits += 1
                delays.append(step - 100)
                break
    return hits / runs, float(np.median(delays)) if delays else None


@pytest.mark.by_day("True")
@pytest.mark.nightly
@pytest.mark.parametrize("heavy", [False, True])
def test_false_alarms_and_delays_on_short_runs(heavy):
    """DESIGN's numbers for a short run: baseline 50, noise 0.10, AR(.8), normal and heavy tails."""
    false, _ = alarms("null", 0.8, heavy, 600)
    assert false <= 0.01
    for kind, most in (("drift", 70), ("x2", 15), ("x4", 9)):
        result, delay = alarms(kind, 0.8, heavy, 100, n=400)
        assert result >= 0.98  # a baseline that happens to be wild hides a doubling; ×4 it does not hide
        assert delay <= most


def test_a_baseline_is_of_twice_as_many_values_once_they_have_kept_to_it():
    detector = BlockCusum(SHORT)
    run(detector, [1.1, 1.2] * 25)
    assert detector.baseline == pytest.approx((1.1 * 1.2) ** 0.5)
    run(detector, [1.08, 1.18] * 22, 50)
    assert detector.baseline == pytest.approx((1.1 * 1.2) ** 0.5)  # not before there are as many
    run(detector, [1.08, 1.18] * 3, 94)
    assert detector.baseline == pytest.approx((1.08 * 1.18 * 1.1 * 1.2) ** 0.25)
    run(detector, [1.0, 1.1] * 100, 100)
    assert detector.baseline == pytest.approx((1.08 * 1.18 * 1.1 * 1.2) ** 0.25)  # and never again


def test_a_baseline_takes_in_no_part_of_a_fall():
    """What is lower than chance makes it is learning that continues: half of it would be no better a guess."""
    detector = BlockCusum(SHORT)
    run(detector, [1.1, 1.2] * 25 + [1.0, 1.1] * 25)
    assert detector.baseline == pytest.approx((1.1 * 1.2) ** 0.5)
    run(detector, [0.7, 0.8] * 25, 100)
    assert 0.74 < detector.baseline < 0.85  # once it is clearly better, soon and on the safe side


def test_a_baseline_takes_in_no_growth():
    detector = BlockCusum(SHORT)
    run(detector, [1.0] * 50 + np.linspace(1, 1.5, 60).tolist())
    assert detector.baseline == pytest.approx(1)
    assert detector.holds
    slow = BlockCusum(SHORT)
    run(slow, [1.0] * 50 + np.linspace(1, 1.15, 60).tolist())  # no growth yet, but more than chance
    assert slow.baseline == pytest.approx(1)


@pytest.mark.nightly
def test_slices_that_wander_together_have_not_grown():
    """Between ×0.8 and ×1.2, as when the whole run drifts: what goes down with it comes back, and is no growth."""
    steps, result = np.arange(1000), 0
    walk = 0.15 * np.sin(steps / 37) + 0.05 * np.sin(steps / 11)
    for seed in range(300):
        rng = np.random.default_rng([7, seed])
        text = walk + ar(rng, 0.8, 0.11, 1000)
        post = walk + ar(rng, 0.8, 0.11, 1000)
        own, relative = BlockCusum(), BlockCusum()
        both = zip(run(own, np.exp(post)), run(relative, np.exp(post - text)), strict=True)
        result += any(grown and outgrown for grown, outgrown in both)
    assert result <= 9  # with the baseline at the lowest mean of any 50 steps it was 33


@pytest.mark.slow
def test_a_doubling_after_a_fall_is_found():
    """A tail that falls from 2.5 to 1 while the run learns, and doubles at step 200: the usual shape of a run."""
    steps, alarms = np.arange(380), []
    level = np.log(1 + 1.5 * np.exp(-steps / 40)) + (steps >= 200) * math.log(2)
    for seed in range(100):
        values = np.exp(level + ar(np.random.default_rng([9, seed]), 0.8, 0.1, 380))
        alarms.append(first(run(BlockCusum(CusumSettings()), values)))
    result = [alarm for alarm in alarms if alarm is not None]
    assert len(result) >= 99
    assert min(result) >= 200
    assert np.median(result) <= 215
