"""Who decides, the hand-over, resume; and how soon a tail is found in runs of tests/benchmarks/door.py."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.detect.cusum import CusumSettings
from tracker_diag.detect.esr import EsrSettings
from tracker_diag.detect.growth import LONG_RUN, GrowthDetector, GrowthSettings
from tracker_diag.errors import SourceError

SMALL = GrowthSettings(CusumSettings(2, 10, 2), EsrSettings(2, 12, 3), expected_steps=5000)
UNKNOWN = GrowthSettings(CusumSettings(2, 10, 2), EsrSettings(2, 12, 3))


def run(detector, values, start=0):
    holds = []
    for step, value in enumerate(values, start):
        detector.update(step, value)
        holds.append(detector.decides.holds)
    return holds


def test_the_short_one_decides_until_the_long_one_has_its_baseline():
    detector = GrowthDetector(GrowthSettings(expected_steps=20_000))
    run(detector, [0.1] * 64)
    assert not detector.decides.ready
    assert (detector.decides.seen, detector.decides.needed) == (64, 65)
    holds = run(detector, [0.1] * 36 + [0.2] * 10, start=64)
    assert holds[-1] is True  # far before the long one's 215 steps
    assert detector.decides.onset == 100
    assert (detector.decides.value, detector.decides.baseline) == (pytest.approx(0.2), pytest.approx(0.1))


def test_the_long_one_decides_in_a_run_meant_to_be_long():
    values = [0.1, 0.14] * 152 + [0.1] + [0.18] * 200  # growth from step 305, where a block begins
    assert run(GrowthDetector(GrowthSettings(expected_steps=20_000)), values).index(True) == 364
    assert run(GrowthDetector(GrowthSettings(expected_steps=1000)), values).index(True) < 340
    detector = GrowthDetector(GrowthSettings(expected_steps=20_000))
    run(detector, [0.1] * 215)
    assert detector.decides.seen == 215
    assert detector.decides.holds is False


@pytest.mark.parametrize("expected", [None, 1000])
def test_a_run_that_became_long_is_a_long_one(expected):
    detector = GrowthDetector(GrowthSettings(expected_steps=expected))
    run(detector, [0.1] * LONG_RUN)
    assert not detector.state_dict()["handed_over"]
    run(detector, [0.1])
    assert detector.state_dict()["handed_over"]
    assert detector.decides.holds is False


def test_growth_that_holds_is_not_handed_over():
    """Growth within the long one's baseline is normal to it; it must not end because of that."""
    detector = GrowthDetector(GrowthSettings(expected_steps=20_000))
    holds = run(detector, [0.1] * 120 + [0.3] * 500)
    assert all(holds[130:])
    assert detector.decides.onset == 120
    assert detector.decides.baseline == pytest.approx(0.1)
    holds = run(detector, [0.1] * 100, start=620)
    assert holds[-1] is False
    assert detector.state_dict()["handed_over"]


def test_a_long_one_that_cannot_tell_does_not_decide():
    detector = GrowthDetector(GrowthSettings(expected_steps=20_000))
    holds = run(detector, [0.1] * 100 + [10.0] * 20 + [0.1] * 200)
    assert holds[-1] is False
    assert not detector.state_dict()["handed_over"]


@pytest.mark.slow
def test_rebaseline_begins_with_the_short_one_and_a_long_run_remains_one():
    detector = GrowthDetector(UNKNOWN)
    run(detector, [1.0] * 2100 + [5.0] * 30)
    assert detector.decides.holds
    detector.rebaseline()
    assert (detector.decides.holds, detector.decides.ready, detector.decides.seen, detector.decides.onset) == (
        None,
        False,
        2,
        None,
    )
    run(detector, [5.0] * 10)
    assert detector.decides.holds is False
    assert not detector.state_dict()["handed_over"]
    run(detector, [5.0] * 2)
    assert detector.state_dict()["handed_over"]
    assert detector.decides.holds is False


def test_scale_direction_and_what_matters_reach_both():
    values = [0.5] * 14 + [0.2] * 60
    for profile in (SMALL, UNKNOWN):
        assert run(GrowthDetector(profile, "linear", "falling"), values)[-1]
        assert run(GrowthDetector(profile, "linear", "falling", 0.4), values)[-1] is False
        assert run(GrowthDetector(profile, "linear"), values)[-1] is False
        assert run(GrowthDetector(profile, direction="falling"), values)[-1]


@pytest.mark.parametrize("gap", [1, 4])
def test_errors_that_do_not_count_change_nothing(gap):
    values = np.exp(np.random.default_rng(3).normal(0, 0.1, 150)).tolist()
    always, asked = GrowthDetector(), GrowthDetector()
    for step, value in enumerate(values):
        always.update(step, value, 0.3, gap)
        asked.update(step, value, 0.3 if asked.takes_error(gap) else None, gap)
        assert asked.decides.state_dict() == always.decides.state_dict()
    assert not asked.takes_error(gap)


def test_errors_reach_both():
    for profile in (SMALL, UNKNOWN):
        without, given_errors = GrowthDetector(profile), GrowthDetector(profile)
        for step, value in enumerate([1.0] * 14 + [1.4] * 60):
            without.update(step, value)
            given_errors.update(step, value, 0.5)
        assert (without.decides.holds, given_errors.decides.holds) == (True, False)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60), st.data())
def test_saved_at_any_step_it_continues_the_same(values, data):
    at = data.draw(st.integers(0, len(values)))
    settings = data.draw(st.sampled_from([SMALL, UNKNOWN]))
    again = data.draw(st.none() | st.integers(0, len(values)))
    unbroken, killed, resumed = (GrowthDetector(settings) for _ in range(3))

    def feed(detector, start, end):
        holds = []
        for step in range(start, end):
            if step == again:
                detector.rebaseline()
            detector.update(step, values[step], 0.01 * (step % 3) if step % 2 else None)
            holds.append(
                (detector.decides.holds, detector.decides.value, detector.decides.onset, detector.decides.undetectable)
            )
        return holds

    expected = feed(unbroken, 0, len(values))
    feed(killed, 0, at)
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    assert feed(resumed, at, len(values)) == expected[at:]
    assert resumed.state_dict() == unbroken.state_dict()


def test_a_run_may_be_resumed_as_a_longer_one_but_not_with_other_blocks():
    detector = GrowthDetector(UNKNOWN)
    run(detector, [1.0] * 20)
    GrowthDetector(SMALL).load_state_dict(detector.state_dict())
    with pytest.raises(SourceError, match=r"saved with .* expected"):
        GrowthDetector().load_state_dict(detector.state_dict())


@pytest.mark.parametrize("rows", [1, 10, 40, 97])
def test_in_a_short_run_the_baseline_is_a_fifth_of_it_and_asks_for_more(rows):
    settings = GrowthSettings.for_run(rows)
    assert settings.short_run
    assert settings.short.burn_in + settings.short.baseline <= max(15, rows // 2)
    assert settings.short.baseline % settings.short.block == 0
    assert settings.short.threshold > CusumSettings().threshold


def test_a_run_of_usual_length_or_none_at_all_is_judged_as_ever():
    assert GrowthSettings.for_run(98) == GrowthSettings(expected_steps=98)
    assert GrowthSettings.for_run(98).short_run
    assert GrowthSettings.for_run(200) == GrowthSettings(expected_steps=200)
    assert GrowthSettings.for_run(0) == GrowthSettings()


def test_expected_steps_are_positive():
    with pytest.raises(ValueError, match="expected_steps: 0 given"):
        GrowthSettings(expected_steps=0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "steps"),
    [("after tools ×2 over 100 steps", 70), ("after tools ×2 at once", 15), ("after tools ×4 at once", 9)],
)
def test_a_tail_is_found_within_so_many_steps(kind, steps, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    (row,) = importlib.import_module("door").simulate(10, kind, tmp_path / "runs.jsonl")
    assert row["found"] == row["named"] == 10
    assert row["delay"] <= steps


@given(st.integers(1, 5000), st.floats(3, 60), st.integers(1, 400))
def test_the_dial_at_a_hundred_changes_nothing(rows, z, steps):
    usual = GrowthSettings.for_run(rows)
    assert usual.dialled(100) == usual
    assert usual.limit(z) == z
    assert usual.lasting(steps) == steps


@given(st.integers(1, 5000), st.floats(3, 60), st.integers(1, 400))
def test_the_dial_moves_all_limits_the_same_way(rows, z, steps):
    quick, usual, sure = (GrowthSettings.for_run(rows).dialled(runs) for runs in (10, 100, 1000))
    assert quick.short.threshold < usual.short.threshold < sure.short.threshold
    assert quick.long.level < usual.long.level < sure.long.level
    assert quick.limit(z) < usual.limit(z) < sure.limit(z)
    assert quick.lasting(steps) <= usual.lasting(steps) <= sure.lasting(steps)
    assert quick.expected_steps == sure.expected_steps == rows


def test_the_dial_follows_the_run_lengths_of_its_detectors():
    tenfold = GrowthSettings().dialled(1000)
    assert tenfold.long.level == 10 * GrowthSettings().long.level
    added = tenfold.short.threshold - GrowthSettings().short.threshold
    assert math.exp(2 * tenfold.short.slack * added) == pytest.approx(10)
    beyond = [math.exp(-(part.limit(6) ** 2) / 2) for part in (GrowthSettings(), tenfold)]
    assert beyond[0] / beyond[1] == pytest.approx(10)


def test_a_small_limit_excuses_and_stays():
    assert GrowthSettings().dialled(10_000).limit(1.5) == 1.5


@pytest.mark.parametrize("runs", [0, 0.5, -3, math.inf, math.nan])
def test_a_dial_that_makes_no_sense_is_refused(runs):
    with pytest.raises(ValueError, match="expected_runs_between_false_alarms"):
        GrowthSettings().dialled(runs)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_dial_alarms_ever_fewer_of_the_same_healthy_series():
    def alarms(part, seed):
        rng, at, values = np.random.default_rng(seed), 0.0, []
        for z in rng.standard_t(4, 400) / math.sqrt(2):  # AR(.8) of log values, with heavy tails
            at = 0.8 * at + 0.6 * z
            values.append(math.exp(0.15 * at))
        return any(run(GrowthDetector(part), values))

    dialled = [GrowthSettings.for_run(400).dialled(runs) for runs in (10, 100, 1000)]
    quick, usual, sure = (sum(alarms(part, seed) for seed in range(300)) for part in dialled)
    assert quick > usual > sure > 0
