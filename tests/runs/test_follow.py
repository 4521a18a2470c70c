"""A run that goes on, looked at now and then: what is told is what a monitor in the run would have told."""

import json
import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracker_diag as td
from tracker_diag.rules.loader import in_force
from tracker_diag.runs.follow import Follower, has_said_its_end, is_whole
from tracker_diag.testing import CapturingBackend
from tracker_diag.trackers.files.write import JsonlBackend
from tracker_diag.trackers.finished import FinishedRun

RULES = in_force()


def logged(steps=170, seed=0, fall=100, nan_at=140):
    """Rows of a run whose reward falls, which recovers, and has a NaN; with gaps, and keys that come now and then."""
    rng = np.random.default_rng(seed)
    rows = {}
    for step in range(0, 2 * steps, 2):
        at = step / 2
        reward = at / 100 if at < fall else max(1 - (at - fall) / 10, 0.0)
        rows[step] = {"reward": reward + 0.02 * rng.normal(), "kl": 0.01 * rng.uniform(0.5, 2), "entropy": 1.0}
        if step % 20 == 0:
            rows[step]["eval_reward"] = reward
        if at == nan_at:
            rows[step]["kl"] = math.nan
    return rows


def as_run(rows, **more):
    return FinishedRun("run", dict(rows), {}, {}, (), **more)


def told_live(rows, **settings):
    heard = CapturingBackend()
    monitor = td.Monitor([heard], source="test", **settings)
    for step, row in rows.items():
        monitor.log(row, step)
    return heard.notices


LOGGED = logged()
LIVE = told_live(LOGGED)


def follow(rows, cuts, *, killed=()):
    """Notices of a follower that looks when so many rows are there, and is made anew from its state after `killed`."""
    follower, told = Follower(RULES), []
    for place, cut in enumerate([*cuts, len(rows)]):
        told += follower.take(as_run(islice(rows.items(), cut)), whole=cut % 2 == 0 or cut == len(rows))
        if place in killed:
            follower = Follower(RULES, json.loads(json.dumps(follower.state_dict())))
    return told


def test_the_runs_of_these_tests_tell_something():
    assert len(LIVE) >= 2
    assert {"OUT001", "NUM004"} <= {notice.title.split()[0] for notice in LIVE}


def test_the_dial_is_that_of_a_monitor_and_outlives_a_restart():
    dial = {"expected_runs_between_false_alarms": 1e6}
    cut = as_run(islice(LOGGED.items(), 90))
    first = Follower(RULES, **dial)
    told = first.take(cut)
    told += Follower(RULES, json.loads(json.dumps(first.state_dict())), **dial).take(as_run(LOGGED))
    assert told == told_live(LOGGED, **dial)
    assert told != LIVE


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.lists(st.integers(1, len(LOGGED)), max_size=5).map(sorted),
    st.sets(st.integers(0, 5)),
)
def test_whenever_it_is_looked_at_and_killed_the_same_is_told_once(cuts, killed):
    assert follow(LOGGED, cuts, killed=killed) == LIVE


@pytest.mark.slow
def test_statistics_of_slices_in_the_rows_are_read_as_well(make_batch, tmp_path):
    rng = np.random.default_rng(0)
    heard = CapturingBackend()
    monitor = td.Monitor([heard, JsonlBackend(tmp_path)], source="test")
    for step in range(130):
        monitor.observe(**make_batch(rng, post=0.02 * math.exp(max(0, step - 75) * 0.1), pairs=("policy",)))
        monitor.log({"reward": 0.3 + step / 400}, step)
    monitor.close()
    follower = Follower(RULES)
    told = follower.take(td.read_run(str(tmp_path)))
    assert [notice.title for notice in told] == [notice.title for notice in heard.notices]
    assert follower.own, "whoever follows it leaves the telling to the run"


@pytest.mark.parametrize("killed", [(), (0,), (1,)])
def test_what_the_names_of_metrics_tell_of_the_algorithm_is_heard(killed):
    rng = np.random.default_rng(0)
    rows = {step: {"loss": 0.693 + 0.002 * rng.normal(), "grad_norm": 1.0, "epoch": step / 99} for step in range(120)}
    assert [notice.title.split()[0] for notice in follow(rows, (20, 60), killed=killed)] == ["SFT001"]
    for step in range(30, 120):
        rows[step]["mean_token_accuracy"] = 0.5 + 0.01 * rng.normal()
    assert follow(rows, (20, 60), killed=killed) == []


def test_a_last_row_waits_until_it_is_whole():
    rows = dict(islice(LOGGED.items(), 10))
    follower = Follower(RULES)
    follower.take(as_run(rows), whole=False)
    assert (follower.step, follower.waits) == (16, True)
    follower.take(as_run(rows), whole=True)
    assert (follower.step, follower.waits) == (18, False)


def test_what_joins_the_last_row_is_judged_and_what_comes_for_an_earlier_one_is_counted():
    rows = dict(islice(LOGGED.items(), 10))
    follower = Follower(RULES)
    follower.take(as_run(rows))
    last = {**rows, 18: {**rows[18], "loss": math.nan}}
    (notice,) = follower.take(as_run(last))
    assert (notice.step, notice.title.split()[0]) == (18, "NUM004")
    assert follower.take(as_run(last)) == []
    assert (follower.judged, follower.late) == (10, 0)
    late = {**last, 4: {**rows[4], "loss": math.nan}}
    assert follower.take(as_run(late)) == []
    assert follower.take(as_run(late)) == []
    assert follower.late == 1


@pytest.mark.parametrize("kind", ["truncated", "replaced", "shorter rows"])
def test_a_run_that_was_replaced_is_judged_from_its_start(kind):
    follower = Follower(RULES)
    before = follower.take(as_run(LOGGED))
    if kind == "truncated":
        now = dict(islice(LOGGED.items(), 140))
        assert follower.take(as_run(now)) == told_live(now), "the same again: by their ids they are not told again"
    elif kind == "replaced":
        now = logged(steps=200, seed=1, nan_at=40)
        told = follower.take(as_run(now))
        assert told == told_live(now)
        assert told != before
    else:
        now = {step: {key: row[key] for key in islice(row, 2)} for step, row in LOGGED.items()}
        assert follower.take(as_run(now)) == told_live(now)
    assert follower.judged == len(now)


def test_a_state_that_cannot_be_used_begins_anew():
    follower = Follower(RULES)
    follower.take(as_run(LOGGED))
    good = follower.state_dict()
    for broken in ({}, {**good, "judge": {}}, {**good, "last": None}, {**good, "pairs": 3}):
        assert Follower(RULES, broken).take(as_run(LOGGED)) == LIVE


def test_a_run_that_was_over_when_it_was_first_seen_is_judged_as_a_finished_one():
    rows = dict(islice(LOGGED.items(), 60))
    follower = Follower(RULES)
    assert follower.take(as_run(rows), over=True) == list(td.diagnose(as_run(rows)).notices)
    assert follower.diagnosis(as_run(rows)).summary.to_json() == td.diagnose(as_run(rows)).summary.to_json()
    again = Follower(RULES, follower.state_dict())
    again.take(as_run(rows), over=True)
    assert again.diagnosis(as_run(rows)).summary.to_json() == follower.diagnosis(as_run(rows)).summary.to_json()


def test_it_leaves_off_where_it_is_asked_to_and_goes_on_from_there():
    asked = iter([False] * 50 + [True])
    follower = Follower(RULES)
    told = follower.take(as_run(LOGGED), stop=lambda: next(asked))
    assert (follower.judged, follower.waits) == (51, True)
    assert told + follower.take(as_run(LOGGED)) == LIVE


def test_what_it_has_cost_is_what_the_verdict_says():
    seconds = {step: 3.0 * step for step in LOGGED}
    follower = Follower(RULES)
    run = FinishedRun("run", LOGGED, {"world_size": 8}, seconds, ())
    follower.take(run)
    found = follower.diagnosis(run)
    first = found.summary.first_break
    cost = found.cost(first)
    assert cost.steps == (first.resolved or max(LOGGED)) - first.onset
    assert cost.seconds == pytest.approx(3.0 * cost.steps, abs=6)
    of_steps = {step: {**row, "step_seconds": 3.0} for step, row in LOGGED.items()}
    without_clock = Follower(RULES)
    without_clock.take(as_run(of_steps))
    assert without_clock.diagnosis(as_run(of_steps)).cost(first).seconds == pytest.approx(3.0 * cost.steps, abs=6)


def test_an_empty_run_says_nothing():
    follower = Follower(RULES)
    assert follower.take(as_run({})) == []
    assert follower.step is follower.diagnosis(as_run({})) is follower.state_dict() is None


def test_the_row_that_hugging_face_logs_last_is_an_end():
    assert has_said_its_end(as_run({1: {"loss": 1.0}, 2: {"train_runtime": 9.0}}))
    assert not has_said_its_end(as_run({1: {"train_runtime": 9.0}, 2: {"loss": 1.0}}))
    assert not has_said_its_end(as_run({}))


def test_nobody_knows_whether_a_row_is_whole_that_has_no_time():
    assert not is_whole(None)
    assert is_whole(0.0)
    assert not is_whole(4e9)
