import itertools

import numpy as np
import pytest

from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.metrics.series import StatKey
from tracker_diag.records import Scalar
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.incidents import incidents
from tracker_diag.rules.loader import catalog
from tracker_diag.rules.model import Rule
from tracker_diag.rules.observed import Observed
from tracker_diag.rules.series import Place, SeriesTable
from tracker_diag.rules.triage import Summary, first_break

LOW = {"kind": "threshold", "series": {"metric": "reward"}, "below": 0.5}
HIGH = {"kind": "threshold", "series": {"metric": "kl"}, "above": 1}


def why(blind):
    """Reasons as a person reads them."""
    return {rule: "; ".join(map(str, reasons)) for rule, reasons in blind.items()}


def rule(**fields):
    base = {
        "id": "ZZZ001", "name": "low-reward", "title": "Low", "link": "reward", "status": "stable",
        "severity": "warn", "description": "Detects it.", "rationale": "Bad.", "signals": {"low": LOW},
        "when": ["low"], "summary": "reward {low.value:.1f} on {slice}", "remedy": ["Look."],
        "false_positives": ["None."], "calibration": "None.", "keep_firing_steps": 0,
    }  # fmt: skip
    return Rule.model_validate(base | fields)


def run(engine, rewards, **more):
    """Feed rewards (None: missing) and give the state after each step."""
    states = []
    for step, value in enumerate(rewards):
        values = {"reward": value} | {name: column[step] for name, column in more.items()}
        series = {name: Scalar(name, number) for name, number in values.items() if number is not None}
        engine.evaluate(Observed(step, series))
        states.append(engine.states()["ZZZ001"])
    return states


def test_pending_then_firing_then_resolved():
    engine = Engine([rule(for_steps=3, keep_firing_steps=1)])
    states = run(engine, [1, 0, 0, 0, 1, 0, 1, 1, 1])
    assert states == ["healthy", "pending", "pending", "firing", "firing", "firing", "firing", "healthy", "healthy"]
    (finding,) = engine.findings
    assert (finding.state, finding.onset, finding.fired, finding.resolved) == ("resolved", 1, 3, 7)
    assert finding.summary == "reward 0.0 on all"


def test_the_first_findings_of_many_stay():
    engine = Engine([rule(for_steps=1)])
    run(engine, [0, 1] * 1500)
    fired = [finding.fired for finding in engine.findings]
    assert fired[:500] == [*range(0, 1000, 2)]
    assert (len(fired), fired[-1]) == (1001, 2998)


OFTEN = {"kind": "often", "signal": LOW, "count": 3, "steps": 5}


def test_what_comes_back_without_lasting_is_counted_over_values():
    engine = Engine([rule(signals={"low": OFTEN})])
    assert run(engine, [0, 1, None, 0, 1, None, 0, 1, 1]) == [
        "unknown", "unknown", "unknown", "healthy", "healthy", "unknown", "firing", "healthy", "healthy",
    ]  # fmt: skip
    assert engine.findings[0].onset == 0  # the first of the three


def test_why_nothing_can_be_counted_is_reported():
    engine = Engine([rule(signals={"low": OFTEN})])
    run(engine, [0, 0])
    assert why(engine.blind()) == {"ZZZ001": "2 of 3 steps with a value"}
    other = Engine([rule(signals={"low": OFTEN})])
    run(other, [None], kl=[0.1])
    assert why(other.blind()) == {"ZZZ001": "no series reward"}


def test_what_was_counted_is_saved():
    rules = [rule(signals={"low": OFTEN})]
    before, after = Engine(rules), Engine(rules)
    run(before, [0, 0, 1])
    after.load_state_dict(before.state_dict())
    assert run(after, [0]) == ["firing"]


def test_more_than_the_steps_cannot_be_counted():
    with pytest.raises(ValueError, match="count: 6 given, expected at most 5"):
        rule(signals={"low": OFTEN | {"count": 6}})


def test_a_condition_that_does_not_last_leaves_nothing():
    engine = Engine([rule(for_steps=3)])
    assert run(engine, [1, 0, 0, 1]) == ["healthy", "pending", "pending", "healthy"]
    assert engine.findings == []


def test_single_dips_delay_and_do_not_prevent():
    engine = Engine([rule(for_steps=5)])
    assert run(engine, [0, 0, 0, 0, 1, 0, 0, 0, 0]) == ["pending"] * 8 + ["firing"]
    assert [(f.onset, f.fired) for f in engine.findings] == [(0, 8)]


def test_what_holds_in_two_steps_of_three_does_not_last():
    engine = Engine([rule(for_steps=5)])
    assert "firing" not in run(engine, [0, 0, 1] * 50)
    assert engine.findings == []


def test_missing_values_neither_start_nor_end_a_finding():
    engine = Engine([rule(for_steps=2)])
    assert run(engine, [None, 0, None, 0, 0, None, None, 1, 1]) == [
        "unknown", "pending", "pending", "firing", "firing", "firing", "firing", "firing", "healthy",
    ]  # fmt: skip


def test_a_rule_that_never_saw_is_blind_and_not_healthy():
    engine = Engine([rule()])
    run(engine, [None, None])
    assert why(engine.blind()) == {"ZZZ001": "no series reward"}
    summary = Summary.of_engine(engine, "x", 2, 0, 1)
    assert summary.healthy == ()
    assert summary.level is None
    assert summary.to_json()["blind"] == [{"rule": "ZZZ001", "reason": "no series reward"}]


def test_a_rule_that_saw_once_is_not_blind():
    engine = Engine([rule()])
    run(engine, [None, 1, None])
    assert engine.blind() == {}
    assert Summary.of_engine(engine, "x", 3, 0, 2).healthy == ("ZZZ001",)


def test_a_second_episode_is_a_second_finding_that_dates_from_after_the_first():
    engine = Engine([rule()])
    run(engine, [0, 1, 0, 0, 1, 1])
    assert [(f.onset, f.fired, f.resolved) for f in engine.findings] == [(0, 0, 1), (2, 2, 5)]


def test_a_level_that_hovers_about_its_limit_is_one_finding():
    engine = Engine([rule()])
    run(engine, [0.45, 0.55] * 20 + [0.7] * 3)
    assert [(f.fired, f.resolved) for f in engine.findings] == [(0, 42)]


def test_rows_without_the_series_between_those_with_it_delay_nothing():
    """A tracker row with nothing but a learning rate, say, or tensors that are sampled every tenth step."""
    engine = Engine([rule(for_steps=3)])
    assert run(engine, [0, None, None, 0, None, None, 0])[-1] == "firing"
    assert engine.findings[0].fired == 6


def test_a_rule_that_lost_its_series_is_blind_again():
    engine = Engine([rule()])
    run(engine, [1, 1, *[None] * 101])
    assert why(engine.blind()) == {"ZZZ001": "no series reward"}


def test_inhibition_on_the_same_slice():
    first = rule()
    second = rule(
        id="ZZZ002", name="high-kl", signals={"high": HIGH}, when=["high"], summary="x", inhibits=["ZZZ001"],
        link="policy_update",
    )  # fmt: skip
    engine = Engine([first, second])
    run(engine, [0, 0, 0], kl=[0, 2, 2])
    by_id = {finding.rule.id: finding for finding in engine.findings}
    assert by_id["ZZZ001"].inhibited_by == "ZZZ002"
    assert by_id["ZZZ002"].inhibited_by is None


def test_an_explanation_that_goes_away_is_reported():
    second = rule(
        id="ZZZ002", name="high-kl", signals={"high": HIGH}, when=["high"], summary="x", inhibits=["ZZZ001"],
        link="policy_update",
    )  # fmt: skip
    engine, messages = Engine([rule(), second]), []
    for step, kl in enumerate((0, 2, 2, 0)):
        series = {"reward": Scalar("reward", 0), "kl": Scalar("kl", kl)}
        messages.append([(f.rule.id, f.state, f.inhibited_by) for f in engine.evaluate(Observed(step, series))])
    assert messages == [
        [("ZZZ001", "firing", None)],
        [("ZZZ001", "firing", "ZZZ002"), ("ZZZ002", "firing", None)],
        [],
        [("ZZZ001", "firing", None), ("ZZZ002", "resolved", None)],
    ]


def test_what_one_pair_does_explains_nothing_of_another():
    high = {"high": {"kind": "threshold", "series": {"stat": "p95", "slice": "post_tool"}, "above": 1}}
    about = {"pairs": ["policy", "mismatch"], "signals": high, "when": ["high"], "summary": "x"}
    cause = rule(id="ZZZ002", name="b", inhibits=["ZZZ001"], **(about | {"pairs": ["mismatch"]}))
    engine = Engine([rule(slices=["post_tool"], **about), cause])
    both = {f"{pair}/post_tool/p95": Scalar("x", 2) for pair in ("policy", "mismatch")}
    engine.evaluate(Observed(0, both))
    assert {(f.rule.id, f.pair): f.inhibited_by for f in engine.findings} == {
        ("ZZZ001", "policy"): None,
        ("ZZZ001", "mismatch"): "ZZZ002",
        ("ZZZ002", "mismatch"): None,
    }


def test_a_slice_that_a_rule_never_saw_is_reported_though_it_saw_another():
    low = {"low": {"kind": "threshold", "series": {"stat": "ess"}, "below": 0.3}}
    about = {"pairs": ["policy", "mismatch"], "slices": ["text_only", "post_tool"], "signals": low, "summary": "x"}
    engine = Engine([rule(**about)])
    few = reason(Why.FEW_TOKENS, have=0, needed=200)
    absent = {"mismatch": reason(Why.NOT_OBSERVED, fields="a and b")}
    seen = {StatKey("policy", "text_only", "ess"): Scalar("x", 0.9)}
    engine.evaluate(Observed(0, seen, absent=absent, lacking=lambda _: few))
    assert why(engine.blind()) == {"ZZZ001": "policy: 0 tokens in the window, 200 needed; a larger window= holds more"}


def test_first_break_is_the_earliest_onset_then_the_diagnostic_order():
    reward = rule()
    policy = rule(id="ZZZ002", name="b", link="policy_update")
    engine = Engine([policy, reward])
    run(engine, [1, 0])
    assert first_break(incidents(engine.findings)).rule.id == "ZZZ001"
    quiet = Engine([rule(severity="info")])
    run(quiet, [0])
    assert first_break(incidents(quiet.findings)) is None


def test_not_with_a_missing_series_is_unknown():
    engine = Engine([rule(when=[{"unless": ["low"]}])])
    assert run(engine, [None, 1, 0]) == ["unknown", "firing", "healthy"]


@pytest.mark.parametrize("length", [50, 500])
def test_state_does_not_grow_with_the_run(length):
    engine = Engine([rule()])
    run(engine, list(itertools.islice(itertools.cycle([1.0]), length)))
    (watch,) = engine.state_dict()["watches"].values()
    assert (watch["past"], watch["finding"]) == ([], None)


def test_a_rule_that_could_not_have_fired_is_blind_and_not_healthy():
    """Reward does not rise, so it cannot rise without the evaluation; but no evaluation was ever logged."""
    rule = next(rule for rule in catalog() if rule.id == "EVA002")
    engine = Engine([rule])
    for step in range(300):
        engine.evaluate(Observed(step, {"reward": Scalar("reward", 0.5)}))
    assert engine.states() == {"EVA002": "unknown"}
    assert why(engine.blind()) == {"EVA002": "no series eval_score"}


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        ("reward {low.value:.1f} ({low.ratio:.1f}x its baseline), below zero", "reward 0.0, below zero"),
        ("reward {low.value:.1f}; it was {low.baseline:.1f} before", "reward 0.0"),
        ("it was {low.baseline:.1f} before; reward {low.value:.1f} (now)", "reward 0.0 (now)"),
        ("it was {low.baseline:.1f} before", "Low"),
    ],
)
def test_what_is_not_known_is_left_out_of_a_summary(summary, text):
    engine = Engine([rule(summary=summary)])
    engine.evaluate(Observed(0, {"reward": Scalar("reward", 0.0)}))
    assert engine.findings[0].summary == text


THRIVES = {"kind": "gain", "series": {"metric": "reward"}}


def harmless(**fields):
    high = {"kind": "threshold", "series": {"metric": "kl"}, "above": 1}
    return rule(signals={"high": high, "thrives": THRIVES}, when=["high"], harmless=["thrives"],
                summary="kl {high.value}", **fields)  # fmt: skip


def learning(rows, lost_from=None):
    """A reward that rises, and goes back to where it was."""
    return [0.0 if lost_from and i >= lost_from else min(i, 30) / 30 + 0.01 * (i % 2) for i in range(rows)]


def test_what_harms_nobody_is_information_until_it_does():
    engine = Engine([harmless()])
    rewards = learning(90, lost_from=60)
    seen = []
    for step, reward in enumerate(rewards):
        series = {"reward": Scalar("reward", reward), "kl": Scalar("kl", 2.0 if step >= 40 else 0.0)}
        changed = engine.evaluate(Observed(step, series))
        seen += [(step, finding.severity, finding.state) for finding in changed]
    assert seen[0] == (40, "info", "firing")
    (worse,) = seen[1:]
    assert worse[1:] == ("warn", "firing")
    assert 60 <= worse[0] <= 75
    assert [finding.raised for finding in engine.findings] == [worse[0]]


def test_what_fires_where_nothing_thrives_is_of_the_rules_own_severity():
    engine = Engine([harmless()])
    run(engine, [0.5] * 40, kl=[2.0] * 40)
    assert [finding.severity for finding in engine.findings] == ["warn"]


def test_what_is_spared_stays_so_after_a_restart():
    engine = Engine([harmless()])
    run(engine, learning(60), kl=[0.0] * 40 + [2.0] * 20)
    again = Engine([harmless()])
    again.load_state_dict(engine.state_dict())
    assert [finding.severity for finding in again.findings] == ["info"]


@pytest.mark.parametrize("seed", range(5))
def test_a_gain_that_most_rows_have_reported_is_not_forgotten_but_where_it_must_be_sure(seed):
    """A reward that gains 1 within its first rows, under noise of a quarter; later rows tell no more of that."""
    rewards = list(np.minimum(np.arange(90) / 8, 1.0) + 0.25 * np.random.default_rng(seed).normal(size=90))
    thrives = run(Engine([rule(signals={"low": THRIVES}, summary="x")]), rewards)
    assert set(thrives[15:]) == {"firing"}
    at = Place(None, "all", GrowthSettings(), SeriesTable(GrowthSettings()))
    signal = rule(signals={"low": THRIVES | {"sure": True}}, summary="x").signals["low"].start(at)
    held = 0
    for step, reward in enumerate(rewards):
        observed = Observed(step, {"reward": Scalar("reward", reward)})
        at.table.update(observed, again=False)
        signal.update(observed)
        held += signal.holds is True
    assert held < 70


def test_a_gain_that_is_lost_is_gone_three_rows_later_and_after_a_restart_too():
    rewards = learning(90, lost_from=60)
    engine = Engine([rule(signals={"low": THRIVES}, summary="x")])
    states = run(engine, rewards)
    (gone,) = [step for step in range(40, 90) if states[step - 1] == "firing" != states[step]]
    assert 62 <= gone <= 75
    for cut in range(gone - 3, gone + 1):
        first, second = (Engine([rule(signals={"low": THRIVES}, summary="x")]) for _ in range(2))
        begun = run(first, rewards[:cut])
        second.load_state_dict(first.state_dict())
        series = ({"reward": Scalar("reward", reward)} for reward in rewards[cut:])
        rest = []
        for step, item in enumerate(series, cut):
            second.evaluate(Observed(step, item))
            rest.append(second.states()["ZZZ001"])
        assert begun + rest == states


@pytest.mark.parametrize(("else_no", "early"), [(False, "unknown"), (True, "healthy")])
def test_where_there_is_too_little_to_tell_a_gain_it_is_unknown_or_none(else_no, early):
    engine = Engine([rule(signals={"low": THRIVES | {"else_no": else_no}}, summary="x")])
    states = run(engine, learning(60))
    assert set(states[:9]) == {early}
    assert "firing" in states[9:]


def test_an_algorithm_that_is_reported_late_changes_limits_and_rules_and_nothing_that_was_counted():
    limit = {"kind": "threshold", "series": {"metric": "reward"}, "below": {"ppo": 0.1, "other": 0.5}}
    of_dpo = rule(id="ZZZ002", algorithms=["dpo"], for_steps=5)
    engine = Engine([rule(signals={"low": limit}, for_steps=5), rule(id="ZZZ003", for_steps=5), of_dpo])
    assert run(engine, [0.3] * 3)[-1] == "pending"
    messages = engine.with_algorithm("ppo")
    assert messages.with_algorithm("dpo") is messages
    assert engine.with_algorithm(None) is engine
    assert [item.id for item in messages.rules] == ["ZZZ001", "ZZZ003"]
    for step in (3, 4):
        messages.evaluate(Observed(step, {"reward": Scalar("reward", 0.3)}))
    assert messages.states() == {"ZZZ001": "healthy", "ZZZ003": "firing"}
    assert [(finding.rule.id, finding.onset, finding.fired) for finding in messages.findings] == [("ZZZ003", 0, 4)]


def test_a_rule_of_another_algorithm_that_has_fired_stays_until_its_finding_ends():
    engine = Engine([rule(algorithms=["dpo"])])
    assert run(engine, [0.3] * 3)[-1] == "firing"
    engine = engine.with_algorithm("ppo")
    for step in range(3, 6):
        engine.evaluate(Observed(step, {"reward": Scalar("reward", 0.9)}))
    assert [(finding.fired, finding.resolved) for finding in engine.findings] == [(0, 5)]


def test_an_algorithm_may_be_reported_in_the_midst_of_a_step():
    engine = Engine([rule(for_steps=2)])
    engine.evaluate(Observed(0, {"reward": Scalar("reward", 0.3)}))
    messages = engine.with_algorithm("ppo")
    messages.evaluate(Observed(0, {"reward": Scalar("reward", 0.3), "kl": Scalar("kl", 1.0)}))
    assert messages.states() == {"ZZZ001": "pending"}, "the same step does not count twice"


@pytest.mark.parametrize(("rows", "fires"), [(60, 6), (None, 30)])
def test_a_short_run_is_judged_by_fewer_steps(rows, fires):
    engine = Engine([rule(for_steps=30)], GrowthSettings(expected_steps=rows))
    assert run(engine, [0.0] * 40).index("firing") == fires - 1


def test_a_trend_of_a_series_that_comes_every_other_row_looks_at_half_of_a_short_run():
    falling = {"kind": "trend", "series": {"metric": "reward"}, "steps": 160, "change": 0.2, "direction": "falling"}
    engine = Engine([rule(signals={"low": falling})], GrowthSettings.for_run(80))
    rewards = [None if i % 2 else 0.8 - 0.01 * i for i in range(80)]
    states = run(engine, rewards)
    assert states.index("firing") <= 40
    assert set(run(Engine([rule(signals={"low": falling})]), rewards)) == {"unknown"}
    for split in (10, 25, 50):
        run(again := Engine([rule(signals={"low": falling})], GrowthSettings.for_run(80)), rewards[:split])
        after = Engine([rule(signals={"low": falling})], GrowthSettings.for_run(80))
        after.load_state_dict(again.state_dict())
        for step, value in list(enumerate(rewards))[split:]:
            after.evaluate(Observed(step, {} if value is None else {"reward": Scalar("reward", value)}))
        assert [(f.onset, f.fired) for f in after.findings] == [(f.onset, f.fired) for f in engine.findings]


def test_eight_evaluations_are_enough_for_a_trend_over_eight_in_a_short_run_too():
    falling = {"kind": "trend", "series": {"metric": "reward"}, "steps": 8, "change": 0.2, "direction": "falling"}
    engine = Engine([rule(signals={"low": falling})], GrowthSettings.for_run(40))
    assert run(engine, [0.8 - 0.05 * i for i in range(10)]).index("firing") == 7


def test_after_a_new_baseline_a_reward_has_time_to_rise_again():
    never = {"kind": "gain", "series": {"metric": "reward"}, "never": True}
    engine = Engine([rule(signals={"low": never}, summary="x")], GrowthSettings.for_run(100))
    assert "firing" in run(engine, [0.5] * 90)
    engine.rebaseline(90)
    assert set(run(engine, [0.5] * 40)) == {"unknown"}


@pytest.mark.slow
def test_the_outcome_is_reward_and_evaluation_and_no_part_of_them():
    engine = Engine(catalog())
    for step in range(40):
        parts = {"reward_max": 1.0, "env_reward_best": step / 30, "env_reward:web": step / 50}
        values = parts | {"reward": step / 40, "eval_score": step / 80}
        engine.evaluate(Observed(step, {name: Scalar(name, value) for name, value in values.items()}))
    assert {item.series for item in engine.best} == {"reward", "eval_score"}


def test_an_evaluation_is_valid_until_the_next_one():
    """With an evaluation every tenth step, a rule that it could excuse is judged at each."""
    solved = {"kind": "threshold", "series": {"metric": "eval_score"}, "above": 0.75}
    excused = rule(signals={"low": LOW, "solved": solved}, when=[{"all": ["low"], "unless": ["solved"]}])
    scores = [(0.9 if step < 50 else 0.2) if step % 10 == 0 else None for step in range(100)]
    states = run(Engine([excused]), [0.3] * 100, eval_score=scores)
    assert set(states[:50]) == {"healthy"}
    assert set(states[50:]) == {"firing"}


def test_a_new_baseline_dates_no_finding_before_itself():
    """EXP007 is healthy while the reward rises, though its learning rate was too small from the first step on."""
    engine = Engine([rule for rule in catalog() if rule.id == "EXP007"])
    for step in range(300):
        if step == 200:
            engine.rebaseline(step)
        row = {"reward": min(step, 200) / 100 + 0.01 * (step % 3), "learning_rate": 1e-13, "loss": 1.0, "kl": 0.01}
        engine.evaluate(Observed(step, {name: Scalar(name, value) for name, value in row.items()}))
    assert [finding.onset for finding in engine.findings] == [200]


@pytest.mark.parametrize("kind", [{"kind": "trend", "steps": 40}, {"kind": "growth"}])
def test_a_step_that_comes_in_two_calls_counts_once(kind):
    """The first call has no value of the series."""
    key = StatKey("policy", "post_tool", "p95_step")
    grows = rule(
        signals={"grows": {"series": {"stat": "p95_step"}, **kind}},
        when=["grows"], pairs=["policy"], slices=["post_tool"], summary="{grows.value:.1f}",
    )  # fmt: skip
    values = np.random.default_rng(0).lognormal(np.where(np.arange(150) < 110, 0, 0.7), 0.1)
    fired = []
    for calls in (1, 2):
        engine = Engine([grows], GrowthSettings(expected_steps=150))
        for step, value in enumerate(values):
            parts = [{"loss": Scalar("loss", 1.0)}, {key: Scalar(key, value, 60)}]
            for part in parts if calls == 2 else [parts[0] | parts[1]]:
                engine.evaluate(Observed(step, part))
        fired.append([(finding.onset, finding.fired) for finding in engine.findings])
    assert fired[0]
    assert fired[0] == fired[1]
