"""The first break: which finding it is, and what the RL debugging guide's two walkthroughs come out as."""

import itertools
from pathlib import Path

import pytest
import yaml

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import incidents
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.triage import Summary, first_break
from tracker_diag.testing import series

WALKTHROUGHS = sorted((Path(__file__).parent / "walkthroughs").glob("*.yaml"))


def rule(id, link="reward", severity="warn", inhibits=(), **more):
    return Rule(
        id=id,
        name=id.lower(),
        title="x",
        link=link,
        status="experimental",
        severity=severity,
        description="Detects x",
        rationale="x",
        signals={"high": {"kind": "threshold", "series": {"metric": "kl"}, "above": 1}},
        when=["high"],
        summary="x",
        remedy=["x"],
        false_positives=["x"],
        calibration="x",
        inhibits=inhibits,
        **more,
    )


def finding(rule, onset, fired, resolved=None, *, slice="all", pair=None):
    state = "resolved" if resolved else "firing" if fired else "pending"
    return Finding(rule, pair, slice, state, onset, fired, resolved, "x", ())


def test_the_earliest_onset_then_the_diagnostic_order():
    policy, reward = rule("AAA001", "policy_update"), rule("BBB001", "reward")
    assert first_break(incidents([finding(policy, 90, 95), finding(reward, 80, 99)])).rule is reward
    assert first_break(incidents([finding(policy, 90, 95), finding(reward, 90, 99)])).rule is reward


def test_the_outcome_is_first_only_where_it_lasts_and_nothing_else_had_begun():
    outcome, policy = rule("AAA001", "outcome"), rule("BBB001", "policy_update")
    assert first_break(incidents([finding(outcome, 80, 90)])).rule is outcome
    assert first_break(incidents([finding(outcome, 80, 90), finding(policy, 85, 99)])).rule is policy
    assert first_break(incidents([finding(outcome, 80, 90), finding(policy, 95, 99)])).rule is outcome
    assert first_break(incidents([finding(outcome, 80, 90, 94), finding(policy, 95, 99)])).rule is policy
    assert first_break(incidents([finding(outcome, 80, 90, 94)])) is None  # made good, and nobody knows of a cause


def test_what_is_pending_or_of_severity_info_breaks_nothing():
    assert first_break(incidents([])) is None
    assert (
        first_break(incidents([finding(rule("AAA001"), 5, None), finding(rule("BBB001", severity="info"), 5, 6)]))
        is None
    )


@pytest.mark.parametrize(
    ("onset", "fired", "resolved", "is_a_part"),
    [
        (100, 110, None, True),  # seen before its cause
        (100, 104, 110, True),  # over before its cause fired
        (140, 150, None, True),  # a later consequence
        (60, 70, None, False),  # established long before the cause began
        (20, 30, 40, False),
    ],
)
def test_what_a_rule_explains_is_represented_by_it(onset, fired, resolved, is_a_part):
    part, whole = rule("AAA001"), rule("BBB001", inhibits=("AAA001",))
    findings = [finding(part, onset, fired, resolved), finding(whole, 112, 125)]
    assert first_break(incidents(findings)).rule is (whole if is_a_part else part)


def test_what_was_over_before_explains_nothing():
    part, whole = rule("AAA001"), rule("BBB001", inhibits=("AAA001",))
    past = finding(whole, 20, 30, 60)
    assert first_break(incidents([finding(part, 100, 110), past])) is past
    late = finding(part, 100, 110)
    again = finding(rule("CCC001", inhibits=("BBB001",)), 15, 20)
    assert first_break(incidents([late, past, again])) is again
    assert (
        first_break(
            incidents([late, finding(rule("CCC001", "resources", inhibits=("AAA001",)), 120, 125, slice="post_tool")])
        )
        is late
    )


def test_what_one_pair_or_slice_does_explains_nothing_of_another():
    pairs = {"pairs": ("policy", "mismatch")}
    part, whole = rule("AAA001", **pairs), rule("BBB001", inhibits=("AAA001",), **pairs)
    early = finding(part, 100, 110, pair="policy", slice="post_tool")
    assert first_break(incidents([early, finding(whole, 105, 120, pair="mismatch", slice="post_tool")])) is early
    assert first_break(incidents([early, finding(whole, 105, 120, pair="policy", slice="text_only")])) is early
    cause = finding(whole, 105, 120, pair="policy", slice="all")
    assert first_break(incidents([early, cause])) is cause


def test_a_cause_that_is_itself_explained_leaves_the_root():
    a, b, c = rule("AAA001"), rule("BBB001", inhibits=("AAA001",)), rule("CCC001", inhibits=("BBB001",))
    result = [finding(a, 100, 110), finding(b, 102, 112), finding(c, 104, 114)]
    for order in itertools.permutations(result):
        assert first_break(incidents(order)).rule is c


def test_rules_that_explain_each_other_still_break_something():
    a, b = rule("AAA001", inhibits=("BBB001",)), rule("BBB001", inhibits=("AAA001",))
    assert first_break(incidents([finding(a, 100, 110), finding(b, 102, 112)])).rule is a


def test_what_only_an_info_explains_is_still_the_first_break():
    part, info = rule("AAA001"), rule("BBB001", severity="info", inhibits=("AAA001",))
    assert first_break(incidents([finding(part, 100, 110), finding(info, 100, 110)])).rule is part


def test_the_level_of_a_run_is_that_of_its_worst_incident():
    cause, damage = finding(rule("AAA001", "policy_update"), 10, 20), finding(rule("OUT001", "outcome"), 30, 40)

    def summary(*result):
        return Summary("x", 50, 0, 49, result, {}, ())

    assert summary().level is None
    assert summary(cause).level == summary(damage).level == "warn"
    assert summary(cause, damage).level == "error"
    messages = summary(cause, damage).to_json()
    assert [item["damage"] for item in messages["incidents"]] == [
        [{"rule": "OUT001", "pair": None, "slice": "all", "onset": 30}]
    ]


def test_what_another_rule_covers_is_explained_and_not_healthy():
    high = {"signals": {"high": {"kind": "threshold", "series": {"metric": "kl"}, "above": 1}}, "when": ["high"]}
    low = {"signals": {"low": {"kind": "threshold", "series": {"metric": "kl"}, "below": 1}}, "when": ["low"]}
    messages = {"title": "x", "summary": "x"}
    engine = Engine([
        Rule(id="AAA001", **messages, **high, inhibits=["BBB001"]), Rule(id="BBB001", **messages, **low),
        Rule(id="CCC001", **messages, **low),
    ])  # fmt: skip
    engine.evaluate(Observed(0, {"kl": Scalar("kl", 2.0)}))
    summary = Summary.of_engine(engine, "x", 1, 0, 0)
    assert (summary.healthy, summary.explained) == (("CCC001",), {"BBB001": "AAA001"})
    assert summary.to_json()["explained"] == [{"rule": "BBB001", "by": "AAA001"}]


def test_no_rule_of_the_catalogue_explains_itself_through_others():
    inhibits = {item.id: set(item.inhibits) for item in catalog()}
    for id, explained in inhibits.items():
        reached, new = set(), explained
        while new:
            reached |= new
            new = {further for item in new for further in inhibits[item]} - reached
        assert id not in reached


@pytest.mark.slow
@pytest.mark.parametrize("file", WALKTHROUGHS, ids=lambda file: file.stem)
def test_a_walkthrough_of_the_guide_comes_out_as_it_is_reported(file):
    messages = yaml.safe_load(file.read_text())
    columns = {name: series(notation) for name, notation in messages["series"].items()}
    (steps,) = {len(values) for values in columns.values()}
    engine = Engine(catalog(), GrowthSettings(expected_steps=steps), messages["algorithm"])
    for step in range(steps):
        now = {name: Scalar(name, values[step]) for name, values in columns.items()}
        engine.evaluate(Observed(step, now, config=messages["config"]))
    summary = Summary.of_engine(engine, "a walkthrough", steps, 0, steps - 1)
    first = summary.first_break
    loud = [f for f in summary.findings if f.fired is not None and f.rule.severity != "info"]
    assert [{"rule": f.rule.id, "onset": f.onset} for f in loud] == messages["table"]
    assert first.rule.id == messages["first_break"]
    assert set(messages["healthy"]) <= set(summary.healthy)
    remedy = iter(first.rule.remedy)
    for part in messages["remedy"]:  # in this order, cheapest check first
        assert any(part in line for line in remedy), part
