"""Compare: a planted difference is found where it was planted; seeds of one arm are alike; bad input is reported."""

import json
import math
import re

import numpy as np
import pytest

from tracker_diag.errors import SourceError
from tracker_diag.runs.compare import compare
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.trackers.finished import FinishedRun

STEPS = 200


def rows(rng, steps=range(STEPS), grow=1.0, since=100, reward=0.0):
    """A calm run of a tool-using agent; after `since` its tail after tool results is `grow` times as long."""
    made = {}
    for step in steps:
        late = step >= since
        made[step] = {
            "reward": 0.5 + 0.1 * math.tanh(step / 100) + reward * late + 0.02 * rng.normal(),
            "kl": 0.02 * math.exp(0.1 * rng.normal()),
            "step_seconds": 2.0 * math.exp(0.1 * rng.normal()),
            "diag/policy/text_only/p95": 0.01 * math.exp(0.1 * rng.normal()),
            "diag/policy/post_tool/p95": 0.02 * math.exp(0.1 * rng.normal()) * (grow if late else 1.0),
            "diag/policy/post_tool/count": 4000.0,
        }
    return made


def judged(rows, name="a run", config=None, *, rules=False):
    return diagnose(FinishedRun(name, rows, config or {}, {}, ()), catalog=rules)


def test_the_slice_that_was_changed_parts_from_that_step_by_that_factor_and_nothing_else_does(rng):
    comparison = compare(judged(rows(rng), "calm"), judged(rows(rng, grow=3.0), "wide"))
    (against,) = comparison.others
    (parted,) = against.parted
    assert parted.series == "policy/post_tool/p95"
    assert abs(parted.onset - 100) <= STEPS / 20
    assert parted.step >= parted.onset
    assert parted.scale == "ratio"
    assert parted.low < 3.0 < parted.high
    assert parted.by == pytest.approx(3.0, rel=0.1)
    assert parted.end is None
    assert parted.times_spread is None
    assert against.seeds is False
    assert {"reward", "kl", "policy/text_only/p95"} <= {*against.alike}


def test_two_seeds_of_one_arm_are_alike_and_machines_and_counts_are_not_compared(rng):
    fast = rows(rng)
    for row in fast.values():
        row["step_seconds"] /= 10
        row["diag/policy/post_tool/count"] *= 2
    (against,) = compare(judged(rows(rng), "0"), judged(fast, "1")).others
    assert against.parted == ()
    assert {*against.alike} == {"reward", "kl", "policy/text_only/p95", "policy/post_tool/p95"}


@pytest.mark.parametrize("values", [9, 16])
def test_an_evaluation_with_few_values_is_too_few_to_tell_and_not_alike(rng, values):
    ours, theirs = rows(rng), rows(rng)
    for at, step in enumerate(range(0, STEPS, STEPS // values)):
        fall = max(0.0, at / values - 0.6)
        ours[step]["eval_score"] = 0.4 + 0.3 * at / values + 0.02 * rng.normal()
        theirs[step]["eval_score"] = ours[step]["eval_score"] - 0.4 * fall
    (against,) = compare(judged(ours, "calm"), judged(theirs, "falls")).others
    assert "eval_score" not in against.alike
    assert re.search("seems lower, .* not sure with (so few values|one run a side)", against.unjudged["eval_score"])


def test_what_no_alias_maps_is_left_out_and_named(rng):
    ours, theirs = rows(rng), rows(rng)
    for step in ours:
        ours[step] |= {"my/own": 1.0, "mine alone": 1.0}
        theirs[step] |= {"my/own": 99.0}
    (against,) = compare(judged(ours, "0"), judged(theirs, "1")).others
    assert against.left_out == ("my/own",)
    assert "my/own" not in (*against.alike, *against.unjudged)
    assert compare(judged(ours, "0"), judged(theirs, "1")).to_json()["others"][0]["left_out"] == ["my/own"]


@pytest.mark.slow
def test_with_seeds_the_difference_is_held_against_their_spread(rng):
    calm = [judged(rows(rng), f"calm {seed}") for seed in range(2)]
    worse = [judged(rows(rng, reward=-0.2), f"worse {seed}") for seed in range(2)]
    (against,) = compare(calm, worse).others
    assert against.seeds
    (parted,) = against.parted
    assert (parted.series, parted.scale) == ("reward", "difference")
    assert parted.low < -0.2 < parted.high
    assert parted.times_spread > 5


def test_what_parts_first_stands_first(rng):
    changed = rows(rng, grow=3.0, since=60)
    for step in range(140, STEPS):
        changed[step]["reward"] -= 0.4
    (against,) = compare(judged(rows(rng), "a"), judged(changed, "b")).others
    assert [series.series for series in against.parted] == ["policy/post_tool/p95", "reward"]


def test_a_sequence_is_an_arm_of_several_seeds(rng):
    a0, a1 = (judged(rows(rng), f"a{seed}", {"lr": 1, "seed": seed}) for seed in range(2))
    b0, c0 = (judged(rows(rng), f"{name}0", {"lr": lr, "seed": 0}) for name, lr in (("b", 2), ("c", 3)))
    comparison = compare([a0, a1], b0, [c0])
    assert comparison.reference.sources == ["a0", "a1"]
    assert [(against.arm.label, against.arm.sources) for against in comparison.others] == [("B", ["b0"]), ("C", ["c0"])]
    assert [against.settings[0].name for against in comparison.others] == ["lr", "lr"]


@pytest.mark.slow
def test_an_incident_of_one_run_alone_is_reported_with_its_arm(rng):
    broken = rows(rng)
    broken[150]["kl"] = math.nan
    calm, ill = judged(rows(rng), "calm", rules=True), judged(broken, "ill", rules=True)
    ((against,), (other,)) = (compare(*pair).others for pair in ((calm, ill), (ill, calm)))
    (new,) = [incident for incident in against.incidents if incident.rule == "NUM004"]
    assert (new.arm, new.onset, new.runs) == ("B", 150, 1)
    assert ("A", "NUM004") in {(incident.arm, incident.rule) for incident in other.incidents}
    both = compare(ill, judged(broken, "ill too", rules=True)).others[0]
    assert "NUM004" not in {incident.rule for incident in both.incidents}


def test_a_schedule_that_differs_parts_as_any_other_series(rng):
    def scheduled(rate):
        return {step: row | {"learning_rate": rate * (1 - step / 400)} for step, row in rows(rng).items()}

    (parted,) = compare(judged(scheduled(1e-4), "a"), judged(scheduled(3e-4), "b")).others[0].parted
    assert (parted.series, parted.by) == ("learning_rate", pytest.approx(3.0, rel=0.01))
    assert not compare(judged(scheduled(1e-4), "a"), judged(scheduled(1e-4), "b")).others[0].parted


def test_runs_with_other_units_of_steps_are_aligned_by_their_shares(rng):
    stretched = {512 * (step + 100): row for step, row in rows(rng, grow=3.0).items()}
    (against,) = compare(judged(rows(rng), "iterations"), judged(stretched, "environment steps")).others
    assert against.axis.unit == "share of the run"
    (parted,) = against.parted
    assert parted.onset == pytest.approx(0.5, abs=0.05)
    assert parted.step == pytest.approx(100, abs=10)


def test_a_run_that_ended_early_is_held_against_the_others_first_steps(rng):
    (against,) = compare(judged(rows(rng), "whole"), judged(rows(rng, range(60), grow=6.0, since=20), "killed")).others
    assert (against.axis.low, against.axis.high) == (0, 59)
    assert [series.series for series in against.parted] == ["policy/post_tool/p95"]


def test_a_run_of_a_few_rows_still_tells_settings_and_incidents(rng):
    died = rows(rng, range(5))
    died[4]["kl"] = math.inf
    (against,) = compare(judged(rows(rng), "whole", {"lr": 1}), judged(died, "died", {"lr": 9}, rules=True)).others
    assert not against.parted
    assert not against.alike
    assert against.unjudged["reward"] == "5 values, it takes 6"
    assert [setting.name for setting in against.settings] == ["lr"]
    assert "NUM004" in {incident.rule for incident in against.incidents}


def test_a_run_without_reward_is_compared_by_what_it_has_and_the_rest_is_named(rng):
    bare = {step: {key: row[key] for key in row if key != "reward"} for step, row in rows(rng).items()}
    (against,) = compare(judged(rows(rng), "a"), judged(bare, "b")).others
    assert against.unjudged == {"reward": "only the reference has it"}
    (back,) = compare(judged(bare, "b"), judged(rows(rng), "a")).others
    assert back.unjudged == {"reward": "only the other has it"}


def test_bad_input_is_reported(rng):
    run, nothing = judged(rows(rng), "a"), judged({step: {"loss_scale": 1.0} for step in range(50)}, "z")
    for wrong in ("a.jsonl", [{"loss": 1.0}], None):
        with pytest.raises((SourceError, TypeError), match=r"given, expected what td.diagnose returns|not iterable"):
            compare(wrong, wrong)
    with pytest.raises(SourceError, match=r"^a: given twice, expected different runs$"):
        compare(run, run)
    with pytest.raises(SourceError, match=r"^one run given, to compare it takes two or more$"):
        compare(run)
    with pytest.raises(SourceError, match=r"^z: no series in common with a \(loss_scale; .*\)$"):
        compare(run, nothing)


@pytest.mark.slow
def test_a_hundred_thousand_steps_with_huge_values(rng):
    values = rng.normal(size=(2, 100_000))

    def long(at, name):
        made = judged({0: {"reward": 0.0}}, name)
        return made.__class__(
            FinishedRun(name, {step: {"reward": 0.0} for step in range(100_000)}, {}, {}, ()),
            made.summary, made.keys, None,
            {"reward": dict(enumerate((values[at] * 1e300).tolist())), "kl": dict(enumerate(np.exp(values[at])))},
        )  # fmt: skip

    (against,) = compare(long(0, "a"), long(1, "b")).others
    assert against.parted == ()
    assert {*against.alike} == {"reward", "kl"}


def test_the_json_has_its_keys_and_no_value_that_json_cannot_say(rng):
    comparison = compare(judged(rows(rng), "a", {"lr": 1}), judged(rows(rng, grow=3.0), "b", {"lr": 2}))
    document = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert list(document) == ["reference", "others"]
    assert document["reference"] == {"label": "A", "sources": ["a"]}
    (against,) = document["others"]
    assert list(against) == [
        "label", "sources", "axis", "spread", "parted", "alike", "unjudged", "left_out", "settings", "incidents"
    ]  # fmt: skip
    assert list(against["parted"][0]) == [
        "series", "onset", "step", "parted", "end", "reference", "other", "scale", "by", "low", "high",
        "times_spread", "margins",
    ]  # fmt: skip
    assert against["axis"] == {"unit": "step", "low": 0, "high": 199, "why": ""}
