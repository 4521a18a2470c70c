import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.records import SAMPLES, Histogram, Scalar
from tracker_diag.report.history import POINTS, STEPS, History, Thinned
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

EMPTY = Summary("x", 1, 0, 0, (), {}, (), best=(Reading("", "reward", True, 1.0, 2.0, at=0),))
"""Its outcome is drawn."""


def histogram(count, pair="policy"):
    counts = np.array([count, 0])
    return Histogram(f"diag/{pair}/hist", pair, "all", counts, np.array([0.0, 1.0, 2.0]), 0 * counts)


def kept(history):
    """The first count of each histogram that is kept, by step and pair."""
    steps = history.included_in(EMPTY).distributions
    return {step: {it.pair: int(it.counts[0]) for it in histograms} for step, histograms in steps}


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5 * POINTS))
def test_each_point_is_the_mean_of_its_rows_and_all_but_the_last_have_as_many(values):
    thinned = Thinned()
    for step, value in enumerate(values):
        thinned.add_value(3 * step, value)
    every = thinned.every
    assert every & (every - 1) == 0
    assert len(thinned.steps) <= POINTS
    assert thinned.steps == [3 * step for step in range(0, len(values), every)]
    for step, value in zip(thinned.steps, thinned.values, strict=True):
        rows = values[step // 3 : step // 3 + every]
        assert value == pytest.approx(sum(rows) / len(rows), abs=1e-6)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6 * STEPS))
def test_histograms_of_some_steps_evenly_and_of_the_last_one_are_kept(gaps):
    history, steps = History(), np.cumsum(gaps).tolist()
    for step in steps:
        history.add_step(step, {}, [histogram(step)])
    shown = [*kept(history)]
    assert len(shown) <= STEPS + 1
    assert shown[-1] == steps[-1]
    every = steps.index(shown[1]) - steps.index(shown[0]) if len(shown) > 2 else 1
    assert shown[:-1] == steps[::every][: len(shown) - 1]
    assert every & (every - 1) == 0


def test_a_step_may_come_in_several_calls():
    """Of a series the first value counts, as the rules have judged it; of histograms of one name the last."""
    history = History()
    history.add_step(0, {"reward": Scalar("reward", 1.0)}, [histogram(1), histogram(7, SAMPLES)])
    history.add_step(0, {"reward": Scalar("reward", 9.0), "kl": Scalar("kl", 0.1)}, [histogram(2)])
    history.add_step(1, {"reward": Scalar("reward", math.nan)}, [])
    history.add_step(2, {"reward": Scalar("reward", 2.0)}, [])
    assert history.included_in(EMPTY).curves == {"reward": {0: 1.0, 2: 2.0}, "kl": {0: 0.1}}
    assert kept(history) == {0: {"policy": 2, SAMPLES: 7}}


@pytest.mark.parametrize("cut", [0, 1, STEPS, STEPS + 1, 3 * STEPS, POINTS + 3])
def test_saved_and_restored_it_continues_as_if_unbroken(cut):
    def run(history, first, last):
        for step in range(first, last):
            history.add_step(step, {"reward": Scalar("reward", math.sin(step))}, [histogram(step)])

    unbroken, before, after = History(), History(), History()
    run(unbroken, 0, 3 * POINTS)
    run(before, 0, cut)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    run(after, cut, 3 * POINTS)
    assert after.state_dict() == unbroken.state_dict()
    assert kept(after) == kept(unbroken)
