from dataclasses import replace

from tracker_diag.report.evidence import damage, in_words, outcomes, speaks_against, speaks_for
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

RULES = {rule.id: rule for rule in catalog()}


def test_a_reading_in_words():
    read = Reading("grows", "policy/post_tool/p95", True, 0.3, 0.1, 12345)
    assert in_words(read) == "policy/post_tool/p95 is 0.3, 3 times its baseline of 0.1 (12,345 tokens)"
    assert in_words(Reading("x", "entropy", True, 0.1, 0.5, at=40)) == "entropy is 0.1, from 0.5 at step 40"
    assert in_words(Reading("x", "reward", True, 0.1, -0.5)) == "reward is 0.1, in the baseline -0.5"
    assert in_words(Reading("x", "reward", True, 0.1, n=20)) == "reward is 0.1"


def test_what_holds_is_said_once_a_series_and_what_is_calm_next_to_it_speaks_against():
    rule = RULES["POL001"]
    readings = (
        Reading("post_tool_tail_matters", "p95", True, 0.3),
        Reading("post_tool_tail_grows", "p95", True, 0.3, 0.1),
        Reading("text_only_tail_grows", "text", False, 0.1, 0.1),
        Reading("ratio_never_came", "kl", True),
        Reading("unseen", "kl", None),
        Reading(rule.support[0], "reward", False, 0.5, 0.4),
        Reading(rule.support[1], "kl", None),
    )
    finding = Finding(rule, "policy", "post_tool", "firing", 40, 60, None, "what", readings)
    assert speaks_for(finding) == ["p95 is 0.3, 3 times its baseline of 0.1"]
    words = rule.support[0].replace("_", " ")
    assert speaks_against(finding) == [f"{words}: no; reward is 0.5, 1.25 times its baseline of 0.4"]
    assert speaks_for(replace(finding, evidence=())) == speaks_against(replace(finding, evidence=())) == []


def test_damage_is_reported_as_it_stands_now_and_no_outcome_twice():
    fell = Reading("reward_fell", "reward", True, 0.43, 0.7, at=122, keys=("reward",))
    harm = Finding(RULES["OUT001"], None, "all", "firing", 30, 40, None, "reward is 0.43, down from 0.7", (fell,))
    cause = Finding(RULES["POL001"], "policy", "post_tool", "firing", 5, 9, None, "", ())
    best = tuple(Reading("", name, True, 0.006, 0.7, at=120) for name in ("reward", "eval_score"))
    summary = Summary("x", 50, 0, 49, (cause, harm), {}, (), best=best)
    assert damage(summary) == [
        "since step 30: reward 0.006 recently, 0.7 at its best (mean of several steps up to 120)"
    ]
    assert outcomes(summary) == ["eval_score 0.006 recently, 0.7 at its best (mean of several steps up to 120)"]
    unknown = replace(summary, best=())
    assert damage(unknown) == ["since step 30: reward is 0.43, down from 0.7"]
    assert damage(replace(summary, findings=(cause,))) == []


def test_a_reward_that_has_never_risen_is_not_said_to_have_had_a_best():
    flat = Reading("never_rose", "reward", True, 0.5, 0.5, keys=("reward",))
    harm = Finding(
        RULES["OUT003"], None, "all", "firing", 95, 99, None, "reward is 0.5, and was 0.5 at the start", (flat,)
    )
    cause = Finding(RULES["POL001"], "policy", "post_tool", "firing", 5, 9, None, "", ())
    best = (Reading("", "reward", True, 0.5, 0.5, at=11),)
    summary = Summary("x", 120, 0, 119, (cause, harm), {}, (), best=best)
    assert damage(summary) == ["since the first step: reward is 0.5, and was 0.5 at the start"]
