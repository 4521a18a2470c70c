"""The decision in one sentence and four tiles."""

from dataclasses import replace

from tracker_diag.report.decision import decide, marks_of
from tracker_diag.report.markdown import note_on
from tracker_diag.report.terminal import headline
from tracker_diag.report.tiles import times
from tracker_diag.rules.acknowledged import Acknowledged
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.incidents import incidents
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

RULES = {rule.id: rule for rule in catalog()}
P95 = "policy/post_tool/p95_step"
TAIL = Reading("tail", P95, True, 0.17, 0.087, keys=(P95,))
GROWS = Finding(RULES["POL001"], "policy", "post_tool", "firing", 85, 96, None, "p95 is up", (TAIL,))
CURVES = {
    P95: {step: 0.087 if step < 85 else 0.087 * 1.0529 ** (step - 84) for step in range(160)},
    "policy/text_only/p95_step": dict.fromkeys(range(160), 0.073),
}


def summary(*findings, best=(), **given):
    return Summary("runs/a", 160, 0, 159, findings, {}, (), best=best, **given)


def test_it_says_what_to_do_how_far_at_what_cost_where_to_resume_and_what_next():
    fell = Reading("", "reward", True, 0.35, 0.648, onset=125, at=111)
    decision = decide(summary(GROWS, best=(fell,), curves=CURVES), "74 steps, 3.2 h")
    assert str(decision) == (
        "Stop. Token probabilities shift after tool results since about step 85, 48× the usual level at step 159"
    )
    far, harm, todo, resume = decision.tiles
    assert (far.value, far.what) == ("48×", "p95 |log-ratio| after tool results, 0.087 → 4.15 nat at step 159")
    assert far.note == "visible for 74 steps, 3.2 h; before any tool result: 1× the usual level"
    assert (harm.value, harm.what) == ("−46 %", "reward, 0.648 at its best → 0.35 recently")
    means = "means of several steps: the first ends at step 111, the second at step 159"
    assert harm.note == f"damage since step 125; {means}"
    assert resume.value == "Step 81"
    assert resume.note == "later steps scored higher, but the fault had begun"
    assert todo.what == GROWS.rule.remedy[0]


def test_a_value_has_one_number_on_the_page():
    whole = summary(GROWS, curves=CURVES)
    decision = decide(whole)
    assert decision.tiles[0].value in decision.why
    assert decision.tiles[0].value in note_on(whole, "")
    assert note_on(whole, "links").startswith(f"**{decision}.** links")


def test_without_an_outcome_the_harm_is_not_known():
    harm = decide(summary(GROWS, curves=CURVES)).tiles[1]
    assert (harm.value, harm.tone) == ("not known", "unknown")


def test_what_is_over_may_continue_and_is_quoted_as_it_was_detected():
    decision = decide(summary(replace(GROWS, state="resolved", resolved=120), curves=CURVES))
    assert decision.verb == "Continue"
    assert decision.why.endswith("from about step 85 to 120, 1.9× the usual level at step 96")
    assert decision.tiles[0].what.endswith("nat at step 96")
    assert decision.tiles[0].note.startswith("the finding lasted 35 steps; ")
    assert decision.tiles[3].value == "no need"


def test_a_level_that_is_as_usual_is_no_factor():
    calm = {P95: dict.fromkeys(range(160), 0.087)}
    decision = decide(summary(GROWS, curves=calm))
    assert "usual level" not in decision.why
    assert decision.tiles[0].value == "0.087 → 0.087"


def test_a_sharp_onset_is_no_estimate():
    sharp = replace(GROWS, onset=95)
    assert "since step 95" in decide(summary(sharp)).why


def test_a_calm_run_continues_with_its_level():
    level = Reading("", "reward", False, 0.6, 0.65, at=111)
    decision = decide(summary(best=(level,)))
    assert str(decision) == "Continue. Nothing is wrong in 160 rows, as far as the rules could see"
    assert (decision.tiles[0].value, decision.tiles[0].what) == ("0.6", "reward, mean of the last rows")


def test_what_is_acknowledged_in_a_run_that_is_too_short_has_a_verb():
    known = summary(GROWS, judged=False, acknowledged=(Acknowledged("POL001", "on purpose"),))
    assert decide(known).verb == "Too short"


def test_a_factor_has_two_digits():
    assert [times(ratio) for ratio in (0.2, 1.0, 3.94, 9.96, 45.6, 4170)] == [
        "0.2×",
        "1×",
        "3.9×",
        "10×",
        "46×",
        "4,170×",
    ]


def test_an_outcome_that_is_lost_stops_the_run_though_no_rule_says_why():
    lost = summary(best=(Reading("", "reward", True, 0.35, 0.648, onset=125, at=111),))
    assert (lost.first_break, lost.recommendation.action) == (None, "stop")
    assert str(decide(lost)).startswith("Stop. reward is 0.35 recently, 0.648 at its best")
    assert headline(lost).startswith("stop: reward is 0.35 recently, 0.648 at its best")


def test_what_a_candidate_alone_finds_is_watched_on_every_screen():
    note = Finding(RULES["REW005"], None, "all", "firing", 85, 96, None, "it rises", ())
    noted = summary(*(finding for incident in incidents([note]) for finding in incident.findings))
    decision = decide(noted)
    assert str(decision) == f"Watch. {note.rule.title}, since about step 85"
    assert headline(noted).startswith("watch: ")
    assert {tile.tone for tile in decision.tiles} == {"info", ""}
    assert decision.tiles[3].value == "Watch until"
    assert "REW005" in decision.remark
    assert marks_of(noted) == [(85, "since about 85", "info"), (96, "noted 96", "")]


def test_an_outcome_that_the_cause_rests_on_has_a_tile_once():
    behind = Reading("eval", "eval_score", True, 0.24, 0.26, at=80, keys=("eval_score",))
    thrives = Reading("reward", "reward", True, 0.9, 0.2, keys=("reward",))
    hacked = Finding(RULES["EVA002"], None, "all", "firing", 80, 127, None, "it lags", (behind, thrives))
    curves = {"eval_score": {80: 0.26, 160: 0.25}, "reward": {0: 0.2, 160: 0.95}}
    level = Reading("", "eval_score", False, 0.247, 0.264, at=90)
    far, harm, *_ = decide(summary(hacked, best=(level,), curves=curves)).tiles
    assert (far.value, far.what) == ("0.2 → 0.95", "reward, its usual level and at step 160")
    assert harm.what.startswith("eval_score, 0.264 at its best")
    assert harm.note == ("no sure fall yet; means of several steps: the first ends at step 90, the second at step 160")
    alone = replace(hacked, evidence=(behind,))
    far, *_ = decide(summary(alone, best=(level,), curves=curves), "80 steps, 3.2 h").tiles
    assert (far.value, far.what, far.note) == ("80 steps", "since it began, 3.2 h", "seen at step 127")


def test_a_reward_that_fell_is_named_though_the_evaluation_holds_and_no_rule_says_why():
    fell = Reading("", "reward", True, -0.16, 0.5, onset=86, at=74)
    holds = Reading("", "eval_score", False, 0.62, 0.62, at=115)
    decision = decide(summary(best=(fell, holds)))
    assert str(decision) == "Continue. But reward fell from 0.5 to -0.16 since about step 86; no rule knows why"
    assert (decision.tone, decision.tiles[0].tone, decision.tiles[1].tone) == ("warn", "warn", "")


def test_a_run_that_has_ended_is_not_to_be_stopped():
    assert str(decide(summary(GROWS, best=(), over=True))).startswith("Check it. Token probabilities")
    lost = Reading("", "reward", True, 0.35, 0.648, onset=125, at=111)
    assert decide(summary(GROWS, best=(lost,), over=True)).verb == "Fix it, then resume from step 81"


def test_a_hack_is_named_by_both_series_and_a_nan_by_its_own():
    level = Reading("", "eval_score", False, 0.247, 0.264, at=90)
    rises = Reading("reward", "reward", True, 0.9, 0.2, keys=("reward",))
    hacked = Finding(RULES["EVA002"], None, "all", "firing", 80, 127, None, "it lags", (rises,))
    curves = {"reward": {0: 0.2, 159: 0.95}}
    assert (
        "(reward 0.2 → 0.95, eval_score 0.264 → 0.247), since"
        in decide(summary(hacked, best=(level,), curves=curves)).why
    )
    nan = Reading("non_finite", "loss", True, None, None)
    broken = Finding(RULES["NUM004"], None, "all", "firing", 61, 61, None, "loss is NaN", (nan,))
    assert decide(summary(broken)).why == "NaN or infinity in loss, since step 61"
