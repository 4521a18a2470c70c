"""Whatever sleeps because nothing has come for it says and saves the same as what reads every step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.metrics.series import StatKey
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.observed import Observed

pytestmark = pytest.mark.slow

METRICS = ("reward", "kl", "entropy", "loss", "grad_norm", "eval_score")
STATS = tuple(
    StatKey("policy", name, stat)
    for name in ("post_tool", "text_only", "all")
    for stat in ("p95", "p95_step", "p50", "p99", "ess", "ess_sequence", "pareto_k_excess", "k3", "count")
)


def observations(seed, steps):
    """Steps at which series begin late, have gaps, and come in two calls."""
    rng = np.random.default_rng(seed)
    begins = {name: rng.integers(0, steps) * rng.integers(0, 2) for name in (*METRICS, *STATS)}
    never = {name for name in begins if rng.random() < 0.3}
    observed = rng.integers(0, steps) if rng.random() < 0.5 else 0
    for step in range(steps):
        series = {}
        for _ in range(1 + (rng.random() < 0.3)):
            for name, begin in begins.items():
                if step >= begin and name not in never and rng.random() < 0.7:
                    value = float(np.exp(0.1 * rng.normal()) * (3 if step > steps * 0.7 else 1))
                    series.setdefault(name, Scalar(name, value, 5000, 0.05))
            absent = ("mismatch", "reference") if step >= observed else ("policy", "mismatch", "reference")
            why = {pair: reason(Why.ON_POLICY) for pair in absent}
            yield Observed(step, dict(series), absent=why)


def wide_awake(engine):
    """`engine`, whose readers and watches all take the next step."""
    engine._sleep.wake()
    engine._resting.clear()
    return engine


@given(st.integers(0, 10**6), st.sampled_from([12, 40, 150]))
@settings(max_examples=15)
def test_sleep_changes_nothing(seed, steps):
    rules = catalog()
    sleepy, awake = Engine(rules), Engine(rules)
    for i, observed in enumerate(observations(seed, steps)):
        found, expected = sleepy.evaluate(observed), wide_awake(awake).evaluate(observed)
        assert [one.state_dict() for one in found] == [one.state_dict() for one in expected]
        if i % 7 == 3:
            assert sleepy.states() == awake.states()
            assert sleepy.blind() == awake.blind()
            assert sleepy.state_dict() == awake.state_dict()
        if i == steps // 2:
            saved, sleepy, awake = sleepy.state_dict(), Engine(rules), Engine(rules)
            for one in (sleepy, awake):
                one.load_state_dict(saved, observed)
        if i == steps * 2 // 3:
            assert len(sleepy.rebaseline(observed.step)) == len(awake.rebaseline(observed.step))
    assert sleepy.state_dict() == awake.state_dict()


def test_a_step_reads_what_the_run_has_and_no_more():
    engine, rules = Engine(catalog()), len(catalog())
    for step in range(3):
        engine.evaluate(Observed(step, {"reward": Scalar("reward", 0.5)}))
    asleep, resting = len(engine._sleep.asleep), len(engine._resting)
    assert asleep > 3 * len(engine._sleep._awake)
    assert resting > rules / 2
    engine.evaluate(Observed(3, {name: Scalar(name, 0.5) for name in ("reward", "kl")}))
    assert len(engine._sleep.asleep) < asleep


@pytest.mark.parametrize("again", [False, True])
def test_what_wakes_knows_how_long_it_slept(again):
    """In the same call of a step, or in a later one of it, as where metrics come before tensors."""
    engine, awake = Engine(catalog()), Engine(catalog())
    for one in (engine, awake):
        for step in range(5):
            one.evaluate(Observed(step, {}))
            if one is awake:
                wide_awake(one)
        if again:
            one.evaluate(Observed(5, {}))
        one.evaluate(Observed(5, {"reward": Scalar("reward", 0.5)}))
    assert engine.state_dict() == awake.state_dict()
