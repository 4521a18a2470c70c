"""Which findings are one incident, which of them is the cause, and how bad it is."""

import itertools
import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from tracker_diag.rules.incidents import HARMLESS, connected, incidents
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.nodes import SeriesRef
from tracker_diag.rules.signals.gain import Gain

made = runpy.run_path(str(Path(__file__).parent / "test_triage.py"))
rule, finding = made["rule"], made["finding"]

CAUSE = rule("AAA001", "policy_update", leads_to=("BBB001",))
SYMPTOM = rule("BBB001", "numerics")
OTHER = rule("CCC001", "critic")
OUTCOME = rule("OUT001", "outcome")


def parts(*findings):
    """The rules of each incident: cause, symptoms, damage."""
    return [
        (item.cause.rule.id, [f.rule.id for f in item.symptoms], [f.rule.id for f in item.damage])
        for item in incidents(findings)
    ]


def test_what_a_rule_leads_to_is_a_symptom_and_what_it_does_not_is_an_incident_of_its_own():
    result = [finding(CAUSE, 100, 110), finding(SYMPTOM, 120, 125), finding(OTHER, 105, 115)]
    for order in itertools.permutations(result):
        assert parts(*order) == [("AAA001", ["BBB001"], []), ("CCC001", [], [])]


def test_a_symptom_whose_onset_is_dated_before_its_cause_is_none_the_less_one():
    assert parts(finding(CAUSE, 100, 110), finding(SYMPTOM, 96, 120)) == [("AAA001", ["BBB001"], [])]
    before = finding(SYMPTOM, 80, 95)  # it was seen before the cause began
    assert parts(finding(CAUSE, 100, 110), before) == [("BBB001", ["AAA001"], [])]


def test_a_note_that_led_to_harm_is_raised_at_the_step_at_which_that_was_seen():
    note, effect = replace(finding(CAUSE, 100, 110), spared=True), finding(SYMPTOM, 120, 125)
    for harm, step in ((effect, 125), (effect.moved(raised=150), 150), (finding(SYMPTOM, 102, 108), None)):
        (item,) = connected([note, harm])
        assert (item.cause.rule.id, item.cause.spared, item.cause.raised) == ("AAA001", False, step)


@pytest.mark.parametrize(("onset", "one_incident"), [(150, True), (180, True), (181, False)])
def test_a_cause_that_is_over_has_effects_for_as_long_as_it_lasted(onset, one_incident):
    result = parts(finding(CAUSE, 100, 110, 140), finding(SYMPTOM, onset, onset + 5))
    assert len(result) == (1 if one_incident else 2)


def test_rules_that_lead_to_each_other_have_the_earlier_one_for_a_cause():
    other = rule("BBB001", "numerics", leads_to=("AAA001",))
    assert parts(finding(CAUSE, 100, 110), finding(other, 104, 108)) == [("AAA001", ["BBB001"], [])]
    assert parts(finding(CAUSE, 104, 110), finding(other, 100, 108)) == [("BBB001", ["AAA001"], [])]


def test_one_rule_in_several_places_is_one_incident_if_it_began_there_together():
    tails = [finding(CAUSE, onset, 110 + onset, slice=slice) for onset, slice in ((5, "text_only"), (9, "post_tool"))]
    assert parts(*tails) == [("AAA001", ["AAA001"], [])]
    late = finding(CAUSE, 400, 410, slice="turn:3")
    assert len(incidents([*tails, late])) == 2
    again = finding(CAUSE, 130, 135, slice="turn:3")
    assert len(incidents([finding(CAUSE, 100, 110, 120, slice="turn:3"), again])) == 1  # it came back


def test_damage_goes_with_the_last_cause_that_had_begun_and_makes_it_an_error():
    early, late = finding(OTHER, 20, 30), finding(CAUSE, 100, 110)
    damage = finding(OUTCOME, 115, 130)
    second, first = incidents([early, late, damage])
    assert (first.cause, first.damage, first.severity) == (early, (), "warn")
    assert (second.cause, second.damage, second.severity) == (late, (damage,), "error")
    assert parts(damage, finding(CAUSE, 131, 140)) == [("OUT001", [], []), ("AAA001", [], [])]
    again = finding(rule("OUT002", "outcome"), 120, 140)
    (alone,) = incidents([damage, again])
    assert (alone.cause, alone.damage, alone.severity) == (damage, (again,), "warn")


def test_what_began_long_after_the_damage_is_no_cause_of_it_however_late_that_was_seen():
    """A fall in the first rows is reported when a fifth of the run is over; what began by then may be another thing."""
    update, late = finding(CAUSE, 10, 20), finding(OTHER, 280, 350)
    damage = finding(OUTCOME, 30, 300)
    assert parts(update, late, damage) == [("AAA001", [], ["OUT001"]), ("CCC001", [], [])]
    assert parts(late, damage)[0] == ("CCC001", [], ["OUT001"])  # where nothing else had begun
    soon = finding(OTHER, 90, 95)  # the onset of such damage is unsure by a quarter of that time
    assert parts(update, soon, damage)[0] == ("CCC001", [], ["OUT001"])


def test_damage_goes_with_the_incident_of_which_any_part_began_last_before_it():
    entropy = rule("BBB001", "exploration", leads_to=("AAA001",))
    result = [finding(entropy, 40, 130), finding(CAUSE, 100, 105), finding(OTHER, 95, 115), finding(OUTCOME, 104, 140)]
    assert parts(*result) == [("BBB001", ["AAA001"], ["OUT001"]), ("CCC001", [], [])]


def test_a_reward_that_never_rose_goes_with_what_began_with_the_run():
    never = rule("OUT003", "outcome").model_copy(
        update={"signals": {"never": Gain(series=SeriesRef(metric="reward"), never=True)}}
    )
    damage = finding(never, 380, 400)
    with_the_run, later = finding(CAUSE, 5, 15), finding(OTHER, 200, 240)
    assert parts(with_the_run, later, damage) == [("AAA001", [], ["OUT003"]), ("CCC001", [], [])]
    earlier = finding(CAUSE, 100, 110)
    assert parts(earlier, later, damage)[0] == ("CCC001", [], ["OUT003"])
    soon = finding(OTHER, 12, 30)  # both began with the run, this one second
    assert parts(with_the_run, soon, damage) == [("AAA001", [], ["OUT003"]), ("CCC001", [], [])]


def test_what_costs_only_time_and_what_is_only_noted_does_no_damage():
    slow, noted = rule("AAA001", "resources"), rule("BBB001", severity="info")
    result = incidents([finding(slow, 20, 30), finding(noted, 25, 30), finding(OUTCOME, 50, 60)])
    assert [(item.cause.rule.id, item.severity) for item in result] == [
        ("OUT001", "warn"), ("AAA001", "warn"), ("BBB001", "info"),
    ]  # fmt: skip


def test_what_is_only_noted_is_no_cause_of_what_harms():
    noted = rule("AAA001", severity="info", leads_to=("BBB001",))
    assert parts(finding(noted, 10, 20), finding(SYMPTOM, 30, 40)) == [("BBB001", ["AAA001"], [])]


def test_pending_findings_are_of_no_incident():
    assert incidents([finding(CAUSE, 100, None)]) == ()


def test_what_an_incident_says_of_itself():
    damage = finding(OUTCOME, 115, 130)
    cause = finding(CAUSE, 100, 110, slice="tool:search", pair="policy")
    (item,) = incidents([cause, finding(SYMPTOM, 104, 112), damage])
    messages = json.loads(json.dumps(item.to_json()))
    assert messages == {
        "id": "AAA001@100:policy:tool:search",
        "severity": "error",
        "onset": 100,
        "state": "firing",
        "acknowledged": None,
        "cause": {"rule": "AAA001", "pair": "policy", "slice": "tool:search", "onset": 100},
        "symptoms": [{"rule": "BBB001", "pair": None, "slice": "all", "onset": 104}],
        "damage": [{"rule": "OUT001", "pair": None, "slice": "all", "onset": 115}],
        "cell": "tool:search",
        "summary": "x; with it BBB001; x",
    }
    assert str(item) == repr(item) == "error, firing since step 100: x. x; with it BBB001; x."
    (over,) = incidents([finding(CAUSE, 100, 110, 140)])
    assert (over.state, over.cell) == ("resolved", None)


def test_what_a_rule_of_the_catalogue_leads_to_is_a_rule_that_is_no_damage_and_no_part_of_it():
    rules = {value.id: value for value in catalog()}
    for value in rules.values():
        assert len(set(value.leads_to)) == len(value.leads_to)
        assert not {value.id, *value.inhibits} & set(value.leads_to), value.id
        for other in value.leads_to:
            assert rules[other].link != "outcome", (value.id, other)
            if value.link in HARMLESS:
                assert rules[other].link == value.link, (value.id, other)


def test_what_fails_in_the_demo_is_one_incident_or_two_and_an_error_where_the_reward_falls():
    """Real runs, of 2 to 16 findings each: docs/evidence.json."""
    rules = {item.id: item for item in catalog()}
    count = []
    for run in json.loads((Path(__file__).parents[2] / "docs" / "evidence.json").read_text()):
        result = [
            replace(finding(rules[f["rule"]], f["onset"], f["fired"], f["resolved"], slice=f["slice"]), pair=f["pair"])
            for f in run["findings"]
        ]
        messages = incidents(result)
        assert bool(messages) == (run["arm"] not in ("healthy", "constrained")), (run["arm"], run["seed"])
        harmed = any(f.rule.link == "outcome" for f in result)
        assert [item.severity for item in messages].count("error") == harmed
        count += [len(messages)] if messages else []
    assert len(count) == 16
    assert max(count) <= 2
    assert count.count(1) >= 14


@pytest.mark.slow
def test_a_thousand_findings_that_come_and_go_are_grouped_within_a_glance_at_each_pair():
    """Whatever flaps: the pairs that are looked at are those of rules that have to do with each other."""
    rules = [item for item in catalog() if item.link != "outcome"]
    result = [finding(item, 30 * i, 30 * i + 5, 30 * i + 15) for item in rules for i in range(12)]
    parts = [item for incident in connected(result) for item in incident.findings]
    assert sorted(map(id, parts)) == sorted(map(id, result))


def test_a_cause_that_is_dated_long_after_what_it_leads_to_is_none():
    near = [finding(CAUSE, 100, 110), finding(SYMPTOM, 95, 115)]
    far = [finding(CAUSE, 100, 110), finding(SYMPTOM, 94, 114)]
    assert parts(*near) == [("AAA001", ["BBB001"], [])]
    assert parts(*far) == [("BBB001", ["AAA001"], [])]


def test_each_rule_is_reported_once_before_any_is_reported_again():
    result = [finding(CAUSE, 100, 110, 120), finding(CAUSE, 122, 125), finding(SYMPTOM, 130, 135)]
    assert parts(*result) == [("AAA001", ["BBB001", "AAA001"], [])]


def test_the_parts_of_the_cause_are_reported_last_as_they_say_no_more():
    whole = rule("AAA001", "policy_update", inhibits=("CCC001",), leads_to=("BBB001",))
    result = [
        finding(whole, 100, 110),
        finding(OTHER, 101, 111),
        finding(SYMPTOM, 120, 125),
        finding(OUTCOME, 130, 140),
    ]
    (item,) = incidents(result)
    assert [f.rule.id for f in item.findings] == ["AAA001", "BBB001", "OUT001", "CCC001"]


def test_what_is_a_part_of_a_symptom_is_reported_after_all_that_say_more():
    part, whole = rule("BBB002", "critic"), rule("BBB001", "critic", inhibits=("BBB002",))
    cause = rule("AAA001", "policy_update", leads_to=("BBB001", "BBB002"))
    result = [finding(cause, 100, 110), finding(part, 105, 130), finding(whole, 120, 125)]
    assert parts(*result) == [("AAA001", ["BBB001", "BBB002"], [])]
    assert parts(result[0], result[1], finding(whole, 160, 165)) == [("AAA001", ["BBB002", "BBB001"], [])]  # too late


def test_what_harms_the_outcome_comes_before_what_does_not_and_what_only_costs_comes_last():
    slow = rule("RES001", "resources")
    result = [finding(slow, 10, 20), finding(OTHER, 50, 60, 70), finding(CAUSE, 200, 210), finding(OUTCOME, 215, 230)]
    assert [item.cause.rule.id for item in incidents(result)] == ["AAA001", "CCC001", "RES001"]
