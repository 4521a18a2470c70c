from dataclasses import replace

from tracker_diag.metrics.series import StatKey
from tracker_diag.report.curves import MOST, baselines, chosen, panels
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.reading import Reading
from tracker_diag.rules.triage import Summary

RULES = {rule.id: rule for rule in catalog()}
P95 = StatKey("policy", "post_tool", "p95")


def finding(id, onset, *keys, holds=True):
    readings = tuple(Reading("signal", key, holds, 1.0, keys=(key,)) for key in keys)
    return Finding(RULES[id], None, "all", "firing", onset, onset + 1, None, "", readings)


def summary(*findings, best=()):
    outcomes = tuple(Reading("", name, True, 1.0, 2.0, at=3) for name in best)
    return Summary("x", 50, 0, 49, findings, {}, (), best=outcomes)


def test_the_causes_series_comes_first_then_outcomes_other_evidence_and_the_dashboard():
    known = dict.fromkeys(["entropy", "reward", P95, "kl", "learning_rate"])
    noted, broke, later = finding("NUM009", 1, "learning_rate"), finding("POL001", 5, P95), finding("POL010", 40, "kl")
    names = chosen(summary(noted, broke, later, best=("reward",)), known)
    assert names[:2] == [P95, "reward"]
    assert {*names[2:4]} == {"learning_rate", "kl"}
    assert names[4:] == ["entropy"]


def test_of_the_cause_all_series_that_hold_are_drawn():
    """As of a reward thief: the part of the reward that pays, and the evaluation that does not follow."""
    calm, pays = Reading("a", "kl", False, 1.0, keys=("kl",)), Reading("b", "part", True, 1.0, keys=("gone", "part"))
    behind = Reading("c", "eval_score", True, 1.0, keys=("eval_score",))
    thief = replace(finding("POL010", 5), evidence=(calm, pays, behind))
    assert chosen(summary(thief), dict.fromkeys(["kl", "eval_score", "part"])) == ["eval_score", "part", "kl"]
    assert chosen(summary(thief), {}) == []
    parts = dict.fromkeys(["reward_component:accuracy", "reward_component:format", "reward"])
    assert chosen(summary(finding("REW005", 5, "reward")), parts) == ["reward", *[*parts][:2]]


def test_a_statistic_of_steps_is_not_drawn_again_for_the_window():
    broke = finding("POL001", 5, StatKey("policy", "post_tool", "p95_step"), P95)
    names = chosen(summary(broke), dict.fromkeys([P95, StatKey("policy", "post_tool", "p95_step")]))
    assert names == ["policy/post_tool/p95_step"]


def test_there_are_no_more_than_fit_on_a_page():
    many = [finding("POL010", step, f"series {step}") for step in range(2 * MOST)]
    assert len(chosen(summary(*many), {f"series {step}": None for step in range(2 * MOST)})) == MOST


def test_a_statistic_of_one_slice_comes_with_that_of_the_other_and_is_the_hero():
    other = StatKey("policy", "text_only", "p95")
    broke = finding("POL001", 5, P95)
    broke = replace(broke, evidence=(replace(broke.evidence[0], baseline=0.5),))
    names = chosen(summary(broke, best=("reward",)), dict.fromkeys(["grad_norm", other, P95, "reward"]))
    assert names == [P95, other, "reward", "grad_norm"]
    drawn = {name: {0: float(len(name))} for name in names}
    whole = replace(summary(broke, best=("reward",)), curves=drawn)
    hero, reward, norm = panels(whole)
    assert hero.lines == {"text_only": drawn[other], "post_tool": drawn[P95]}
    assert [panel.role for panel in (hero, reward, norm)] == ["hero", "outcome", "dashboard"]
    assert hero.title == "p95 of |log-ratio|, new policy against old"
    assert (hero.log, reward.log) == (True, False)
    assert baselines(whole) == {P95: 0.5}


def test_how_many_tokens_there_are_is_called_so():
    names = [StatKey("policy", slice, "count") for slice in ("text_only", "post_tool")]
    (panel,) = panels(replace(summary(), curves={name: {0: 1.0} for name in names}))
    assert (panel.name, panel.metric.meaning) == ("policy tokens", "finite model tokens in the window")


def test_a_statistic_whose_other_slice_is_not_there_is_drawn_alone():
    (panel,) = panels(replace(summary(), curves={P95: {0: 1.0}}))
    assert panel.lines == {"": {0: 1.0}}
    assert panel.title == "After tool results: p95, new policy against old"


def test_a_name_with_a_space_is_no_statistic():
    (panel,) = panels(replace(summary(), curves={"my loss": {0: 1.0}}))
    assert (panel.name, panel.title) == ("my loss", "my loss")
