"""Go on or stop: never without evidence, and never past the best that the run is known to have been."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import incidents
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.recommendation import recommend
from tracker_diag.rules.signals.collapse import Collapse

RULES = {rule.id: rule for rule in catalog()}


def finding(rule="POL001", onset=100, fired=110, resolved=None, evidence=()):
    state = "firing" if resolved is None else "resolved"
    return Finding(RULES[rule], None, "all", state, onset, fired, resolved, "what", evidence)


def fell(series, best, at, signal=""):
    return Reading(signal, series, True, 0.1, best, at=at, keys=(series,))


def calm(series):
    return replace(fell(series, 0.7, 120), holds=False, value=0.69)


REWARD = finding("OUT001", 130, 140, evidence=(fell("reward", 0.703, 120, "reward_collapsed"),))


def of(*findings, best=()):
    return recommend(incidents(findings), best)


def test_where_nothing_is_wrong_nothing_is_decided():
    assert of() is None
    assert of(best=(fell("reward", 0.7, 120),)) is None
    assert of(replace(finding("RES001"), spared=True)) is None


def test_a_run_whose_reward_fell_goes_back_to_its_best():
    found = of(REWARD)
    assert (found.go_on, found.last_good_step) == (False, 120)
    assert found.says == (
        "No. Last good step 120 (reward 0.703, its best); mend the cause, then go on from a checkpoint at or before it"
    )
    assert found.to_json() == {"go_on": False, "last_good_step": 120, "says": found.says}


def test_the_level_of_now_counts_and_not_that_of_the_alert():
    assert of(REWARD, best=(fell("reward", 0.71, 124),)).last_good_step == 124


def test_while_the_run_goes_on_the_last_good_step_is_that_of_so_far():
    """A level is the mean of a tenth of the run, so its best one moves as the run gets longer."""
    said = recommend(incidents((REWARD,)), (), goes_on=True)
    assert said.says == (
        "No. Last good step so far 120 (reward 0.703, its best); "
        "mend the cause, then go on from a checkpoint at or before it"
    )
    assert said.last_good_step == 120


def test_it_is_said_when_the_cause_had_begun_before_the_best_step():
    assert of(finding(), REWARD).says.endswith("at or before it; what broke first began at step 100")
    assert of(finding(onset=121, fired=125), REWARD).says.endswith("at or before it")


def test_an_outcome_that_has_just_fallen_does_not_show_no_harm():
    low = replace(calm("reward"), value=-53.4, baseline=52.2, onset=90)
    begun, said = incidents((finding(),)), "But reward is -53.4 since step 90, 52.2 at its best"
    assert recommend(begun, (low,)).says == f"Yes, for now. {said}"
    assert recommend(begun, (low,), goes_on=True).says == f"Yes, for now. {said}; look again soon"
    stopped = recommend(begun, (low,), stopped=True).says
    assert stopped == f"Not before the cause is mended, as a guard stopped it. {said}"
    assert of(REWARD, best=(low,)).last_good_step == 120  # what is a fall already is told as one


def test_what_a_guard_has_stopped_does_not_go_on_as_it_is():
    found = recommend(incidents((finding(),)), (calm("reward"),), stopped=True)
    assert found.says == "Not before the cause is mended, as a guard stopped it. reward shows no harm"
    assert (found.go_on, found.last_good_step) == (False, None)
    over = recommend(incidents((finding(resolved=150),)), (calm("reward"),), stopped=True)
    assert over.says == "Yes. What was found is not detected any more since step 150"


def test_of_several_harms_the_earliest_good_step_counts():
    evaluation = finding("OUT002", 100, 120, evidence=(fell("eval_score", 0.5, 90, "eval_collapsed"),))
    assert of(REWARD, evaluation).last_good_step == 90


def test_a_trusted_score_that_fell_is_harm_though_no_rule_of_the_outcome_fires():
    found = of(finding("REW004", 15, 39), best=(calm("reward"), fell("verifier_score", 0.578, 9)))
    assert found.last_good_step == 9
    assert "verifier_score 0.578, its best" in found.says


def test_while_no_outcome_is_harmed_the_run_may_go_on():
    found = of(finding(), best=(calm("reward"), calm("eval_score")))
    assert (found.go_on, found.last_good_step) == (True, None)
    assert found.says == "Yes, for now. reward and eval_score show no harm"
    assert of(finding(), best=(calm("reward"),)).says == "Yes, for now. reward shows no harm"


@pytest.mark.parametrize("best", [(), (calm("loss"),), (fell("loss", 0.1, 10),)])
def test_a_loss_is_no_outcome_and_without_one_no_harm_would_be_seen(best):
    found = of(finding(), best=best)
    assert found.go_on
    assert found.says.endswith("harm would not be seen")


def test_what_has_passed_is_no_reason_to_stop():
    over = replace(REWARD, state="resolved", resolved=170)
    assert of(finding(resolved=160), over).says == "Yes. What was found is not detected any more since step 170"
    assert of(finding(), over, best=(calm("reward"),)).go_on  # the cause lasts, the harm does not


def test_what_is_an_error_by_itself_goes_back_to_before_it():
    assert of(finding("NUM004", 7, 7)).says.startswith("No. Last good step 6 (the last before NUM004 began)")
    assert of(finding("OUT004", 50, 60)).last_good_step == 49


@pytest.mark.parametrize("found", [finding("OUT003", 400, 405), finding("NUM004", 0, 0)])
def test_a_run_that_was_never_good_has_no_step_to_go_back_to(found):
    said = of(found)
    assert (said.go_on, said.last_good_step) == (False, None)
    assert said.says.endswith("no step is known to be better: mend it, begin anew")


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(sorted(RULES)), st.integers(0, 200), st.integers(0, 20), st.booleans())))
def test_what_is_told_follows_from_what_fires(parts):
    found = []
    for rule, onset, wait, over in parts:
        fallen = [name for name, one in RULES[rule].signals.items() if isinstance(one, Collapse)]
        evidence = tuple(fell("reward", 0.5, onset, name) for name in fallen)
        found.append(finding(rule, onset, onset + wait, onset + wait + 5 if over else None, evidence))
    said = of(*found)
    harmed = [one for one in found if one.state == "firing" and (one.rule.link == "outcome" or one.severity == "error")]
    loud = any(one.severity != "info" for one in incidents(found))
    assert (said is None) == (not loud)
    if said is not None:
        assert said.go_on != bool(harmed)
        assert said.last_good_step is None or said.last_good_step <= min(one.onset for one in harmed)
