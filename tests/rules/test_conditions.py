"""Ways over signals: what is unknown, what is not logged, and what that makes of a rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.conditions import Judgement, Ways, signals_of
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.model import Rule
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.series import WAIT, Place, SeriesTable
from tracker_diag.rules.signals.threshold import Threshold

WAYS = TypeAdapter(Ways)
LOGGED = {True: 1.0, False: 0.0, "gap": 1.0}
"""What is logged of a metric for its signal to hold or not."""
METRICS = {"a": "reward", "b": "kl", "c": "entropy"}


def judged(ways, values, *, steps=WAIT, predicates=None):
    """`ways` after `steps` steps; a metric of value None is never logged, "gap" is one that the last step lacks."""
    settings = GrowthSettings()
    at = Place(None, "all", settings, SeriesTable(settings))
    signals = {
        name: Threshold(series=SeriesRef(metric=metric), above=0.5).start(at) for name, metric in METRICS.items()
    }
    ways = WAYS.validate_python(ways)
    predicates = {name: WAYS.validate_python(part) for name, part in (predicates or {}).items()}
    judgement = Judgement(ways, predicates, signals, at)
    for step in range(steps):
        last = step == steps - 1
        given = {name: value for name, value in values.items() if value is not None and not (last and value == "gap")}
        row = {METRICS[name]: LOGGED[value] for name, value in given.items()}
        at.table.update(Observed(step, {name: Scalar(name, value) for name, value in row.items()}), again=False)
        for signal in signals.values():
            signal.update(Observed(step, {}))
    return judgement.holds(ways)


THREE = st.sampled_from([True, False, "gap"])
KLEENE = {True: True, False: False, "gap": None}


@given(THREE, THREE)
def test_all_is_the_lowest_of_its_parts_and_ways_the_highest(a, b):
    order = [False, None, True]
    both = sorted((KLEENE[a], KLEENE[b]), key=order.index)
    assert judged([{"all": ["a", "b"]}], {"a": a, "b": b}) is both[0]
    assert judged(["a", "b"], {"a": a, "b": b}) is both[1]
    assert judged([{"all": [{"any": ["a", "b"]}]}], {"a": a, "b": b}) is both[1]
    assert judged(["p"], {"a": a, "b": b}, predicates={"p": ["a", "b"]}) is both[1]


@pytest.mark.parametrize(
    ("way", "a", "b", "holds"),
    [
        # `needs`: without the metric the way is absent, which is no.
        ({"all": ["a"], "needs": ["kl"]}, True, True, True),
        ({"all": ["a"], "needs": ["kl"]}, True, False, True),
        ({"all": ["a"], "needs": ["kl"]}, True, "gap", True),
        ({"all": ["a"], "needs": ["kl"]}, True, None, False),
        ({"all": ["a"], "needs": ["kl"]}, "gap", None, False),
        # `without`: with the metric the way is absent.
        ({"all": ["a"], "without": ["kl"]}, True, None, True),
        ({"all": ["a"], "without": ["kl"]}, True, False, False),
        ({"all": ["a"], "without": ["kl"]}, False, None, False),
        # `unless`: unknown for now is unknown; not logged excuses nothing.
        ({"all": ["a"], "unless": ["b"]}, True, True, False),
        ({"all": ["a"], "unless": ["b"]}, True, False, True),
        ({"all": ["a"], "unless": ["b"]}, True, "gap", None),
        ({"all": ["a"], "unless": ["b"]}, True, None, True),
        ({"all": ["a"], "unless": ["b"]}, None, None, None),
        ({"unless": ["b"]}, None, None, True),
        # A signal of `all` that is not logged is unknown.
        ({"all": ["a", "b"]}, True, None, None),
        ({"all": ["a", "b"]}, False, None, False),
    ],
)
def test_the_truth_table_of_a_way(way, a, b, holds):
    assert judged([way], {"a": a, "b": b}) is holds


@pytest.mark.parametrize("way", [{"all": ["a"], "needs": ["kl"]}, {"all": ["a"], "without": ["kl"]}, {"unless": ["b"]}])
def test_what_may_still_come_is_unknown(way):
    assert judged([way], {"a": True, "b": None}, steps=WAIT - 1) is None
    assert judged([way], {"a": True, "b": None}, steps=WAIT) is not None


def test_what_is_not_logged_is_no_at_any_depth_below_unless():
    deep = {"outer": [{"all": ["inner"]}], "inner": [{"all": ["b"], "unless": ["c"]}]}
    assert judged([{"all": ["a"], "unless": ["outer"]}], {"a": True}, predicates=deep) is True
    assert judged([{"all": ["a"], "unless": ["outer"]}], {"a": True, "b": True}, predicates=deep) is False
    assert judged([{"all": ["a"], "unless": ["outer"]}], {"a": True, "b": True, "c": "gap"}, predicates=deep) is None
    assert judged([{"all": ["a", "outer"]}], {"a": True}, predicates=deep) is None


def rule(**given):
    signals = {"high": "kl above 1", "low": "reward below 0.5"}
    base = {"id": "ZZZ001", "title": "x", "signals": signals, "summary": "x", "keep_firing_steps": 0}
    return Rule.model_validate(base | given)


def last_state(rule, rows):
    engine = Engine([rule])
    for step, row in enumerate(rows):
        engine.evaluate(Observed(step, {name: Scalar(name, value) for name, value in row.items()}))
    return engine.states()["ZZZ001"], {id: "; ".join(map(str, why)) for id, why in engine.blind().items()}


def test_one_way_that_sees_is_enough_and_without_any_the_rule_is_blind():
    both = rule(when=[{"all": ["high"], "needs": ["kl"]}, {"all": ["low"], "needs": ["reward"]}])
    assert last_state(both, [{"reward": 1.0}] * 25) == ("healthy", {})
    assert last_state(both, [{"reward": 0.0}] * 25) == ("firing", {})
    assert last_state(both, [{"loss": 1.0}] * 25) == ("unknown", {"ZZZ001": "no series kl"})


def test_a_metric_that_only_needs_names_is_the_reason_where_it_is_not_logged():
    needy = rule(signals={"low": "reward below 0.5"}, when=[{"all": ["low"], "needs": ["kl"]}])
    assert last_state(needy, [{"reward": 0.0}] * 25) == ("unknown", {"ZZZ001": "no series kl"})


def test_a_rule_that_could_never_hold_in_this_run_is_blind_and_not_healthy():
    without = rule(signals={"low": "reward below 0.5"}, when=[{"all": ["low"], "without": ["kl"]}])
    assert last_state(without, [{"reward": 1.0}] * 25) == ("healthy", {})
    assert last_state(without, [{"reward": 1.0, "kl": 0.1}] * 25) == (
        "unknown",
        {"ZZZ001": "only for runs without kl"},
    )


def test_what_was_found_ends_if_a_metric_shows_that_it_is_not_for_this_run():
    without = rule(signals={"low": "reward below 0.5"}, when=[{"all": ["low"], "without": ["kl"]}])
    alone, both = [{"reward": 0.0}] * 25, [{"reward": 0.0, "kl": 0.1}] * 5
    assert last_state(without, alone) == ("firing", {})
    assert last_state(without, alone + both)[0] == "unknown"


def test_what_is_logged_is_saved():
    rules = [rule(signals={"low": "reward below 0.5"}, when=[{"all": ["low"], "without": ["kl"]}])]
    before, after = Engine(rules), Engine(rules)
    for step in range(WAIT - 1):
        before.evaluate(Observed(step, {"reward": Scalar("reward", 0.0)}))
    after.load_state_dict(before.state_dict())
    assert after.states() == {"ZZZ001": "unknown"}
    after.evaluate(Observed(WAIT - 1, {"reward": Scalar("reward", 0.0)}))
    assert after.states() == {"ZZZ001": "firing"}


def test_signals_of_ways_are_named_once():
    ways = WAYS.validate_python(["a", {"all": ["b", {"any": ["c", "d"]}], "needs": ["kl"], "unless": ["e", "f"]}])
    assert signals_of(ways, {"b": WAYS.validate_python(["a", "x"])}) == ("a", "x", "c", "d", "e", "f")
