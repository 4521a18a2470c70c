"""One real small training for each guard in which it acts, and one in which none must."""

import atexit
import json
import threading
import time

import pytest
from bandit import ILL, STEPS, Training, digest, guard, of_metric, rule, wait_until_read

from tracker_diag import Monitor
from tracker_diag.guards import checkpoints, guards
from tracker_diag.guards.policy import ACTIONS, On
from tracker_diag.rules.judge import Judge
from tracker_diag.testing import CapturingTracker

SETTINGS = {"kl_cap": {"bounds": (0.2, 3.0), "target": 0.5}}


def one_of_each(**changes):
    return [guard(do, **SETTINGS.get(do, {}), **changes) for do in ACTIONS]


@pytest.fixture
def trained(tmp_path):
    """Trains with guards; gives the training when it is over. A thread may then still read its last checkpoint."""

    def train(guards, steps=STEPS, folder=tmp_path, **options):
        done = Training(folder, guards, **options).run(steps)
        assert done.monitor.failures == []
        return done

    return train


def events_of(training, do):
    return [(step, event) for step, event in training.monitor.events if event.startswith(f"guard {do}")]


@pytest.mark.slow
def test_no_guard_acts_on_a_healthy_run_and_none_changes_it(trained, tmp_path):
    healthy = trained(one_of_each(), ill=STEPS)
    assert healthy.decisions == {}
    assert healthy.monitor.events == []
    assert digest(trained([], ill=STEPS, folder=tmp_path / "bare").policy) == digest(healthy.policy)


@pytest.mark.slow
def test_dry_runs_say_what_they_would_do_and_change_nothing(trained, tmp_path):
    dry = trained(one_of_each(act=False))
    assert dry.decisions == {}
    at_once = [event.split(":")[0] for step, event in dry.monitor.events if step == ILL + 1]
    # A dry-run does not wait for the thread that reads a checkpoint: its rollback may come a step later.
    others = [f"guard {do}, dry-run" for do in ACTIONS if do != "rollback"]
    assert [event for event in at_once if event != "guard rollback, dry-run"] == others
    assert len(events_of(dry, "rollback")) == 1
    assert f"to step 23, {tmp_path}/step-23" in events_of(dry, "rollback")[0][1]
    assert set(dry.monitor.events) <= set(dry.seen.events)
    assert digest(trained([], folder=tmp_path / "bare").policy) == digest(dry.policy)


@pytest.mark.slow
@pytest.mark.parametrize(("do", "field"), [("save_state", "save"), ("reevaluate", "reevaluate")])
def test_what_is_done_once_is_done_once_for_an_incident(trained, do, field):
    done = trained([guard(do)])
    (step,) = done.decisions
    assert step == ILL + 1
    assert getattr(done.decisions[step], field)
    assert done.did == [({"save_state": "save", "reevaluate": "evaluate"}[do], step)]
    ((at, event),) = events_of(done, do)
    assert at == step
    assert "ACM001@25:policy:text_only, warn: ESS is 0." in event
    assert (at, event) in done.seen.events
    assert done.updates == list(range(STEPS))


@pytest.mark.slow
def test_a_batch_is_skipped(trained):
    done = trained([guard("skip_batch")])
    assert set(range(STEPS)) - {*done.updates} == {ILL + 1}


@pytest.mark.slow
def test_updates_stop_until_the_incident_is_over_or_for_as_long_as_they_may(trained):
    done = trained([guard("stop_update", hold=5)])
    assert set(range(STEPS)) - {*done.updates} == set(range(ILL + 1, ILL + 6))
    assert all(decision.stop == "update" for decision in done.decisions.values())
    assert [event for _, event in events_of(done, "stop_update")][1] == "guard stop_update: ended, held for 5 steps"


@pytest.mark.slow
def test_training_stops_and_everybody_hears_why(trained, caplog):
    done = trained([guard("stop_training")])
    assert done.updates[-1] == ILL
    summary = done.seen.summary
    assert summary.steps == ILL + 2
    ((step, event),) = events_of(done, "stop_training")
    (notice,) = (item for item in done.seen.notices if item.title.startswith("A guard"))
    assert (notice.step, notice.level, notice.title) == (step, "warn", "A guard acts: stop training")
    assert notice.text == event
    assert " ".join(caplog.text.split()).count(event) == 1
    assert summary.caveats[0] == f"the training was stopped by {event}"
    assert not summary.recommendation.go_on
    assert summary.recommendation.says.startswith("No. A guard stopped it; fix it, then resume from step ")


@pytest.mark.slow
def test_what_is_not_done_is_said_in_the_log_alone(trained, caplog):
    done = trained([guard("stop_training", act=False)])
    ((_, event),) = events_of(done, "stop_training")
    assert " ".join(caplog.text.split()).count(event) == 1
    assert not any(notice.title.startswith("A guard") for notice in done.seen.notices)
    assert not any("was stopped by" in caveat for caveat in done.seen.summary.caveats)
    assert done.seen.summary.recommendation.go_on


@pytest.mark.slow
def test_a_rollback_continues_with_the_weights_of_the_registers_checkpoint(trained):
    done = trained([guard("rollback")])
    (decision,) = done.decisions.values()
    assert decision.rollback_to.step == ILL - 1
    assert done.rolled_back == {ILL + 1: done.hashes[ILL - 1]}
    assert done.updates == list(range(STEPS))
    assert done.monitor.summary().first_break.state == "resolved"
    (table,) = [item for item in done.seen.tables if item.name == "diag/checkpoints"]
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert {step: row["clean"] for step, row in rows.items()} == {7: "yes", 15: "yes", 23: "yes", 31: "yes", 39: "yes"}
    assert rows[23]["digest"] == decision.rollback_to.digest
    assert rows[23]["bytes"] > 0


@pytest.mark.slow
def test_the_kl_coefficient_rises_while_the_kl_is_above_its_target_and_is_bounded(trained):
    done = trained([guard("kl_cap", bounds=(0.2, 1.0), target=0.5)])
    held_at = sorted(done.decisions)
    held = [done.beta[step] for step in held_at]
    assert held[:4] == [0.2, 0.4, 0.8, 1.0]
    assert max(held) == 1.0
    assert all(done.beta[step] == 0 for step in range(ILL + 1))
    kl = {step: row["kl"] for step, row in done.seen.own.items()}
    assert min(kl[step] for step in held_at[3:]) < 1.5 < max(kl.values())


@pytest.mark.slow
def test_the_learning_rate_goes_with_the_root_of_the_effective_sample_size(trained):
    done = trained([guard("scale_lr", bounds=(0.01, 1.0))])
    first = done.decisions[ILL + 1]
    ess = done.seen.scalars(ILL + 1)["diag/policy/text_only/ess"]
    assert first.lr_factor == pytest.approx(ess**0.5)
    assert done.lr[ILL + 1] == pytest.approx(320 * ess**0.5)
    assert events_of(done, "scale_lr")[-1][1] == "guard scale_lr: ended, the incident is over"
    assert done.decisions.keys() == set(range(ILL + 1, events_of(done, "scale_lr")[-1][0]))


TOOL_FAILS = rule(
    "ACM002", "A tool fails", link="environment", pairs=(), slices=("tool:*",), when=["fails"],
    signals={"fails": {"kind": "threshold", "series": {"metric": "tool_failure_rate"}, "above": 0.5}},
    summary="{slice} fails",
)  # fmt: skip


@pytest.mark.slow
def test_a_tool_that_fails_is_drawn_less_often(trained):
    done = trained([guard("cap_tool_share", bounds=(0.2, 1.0))], rules=[TOOL_FAILS], fails=True)
    assert done.decisions[ILL].tool_weights == {"search": 0.2}
    assert min(done.share[step] for step in range(ILL + 1)) > 0.4
    assert max(done.share[step] for step in range(ILL + 1, STEPS)) < 0.3


@pytest.mark.slow
def test_a_reference_that_is_refreshed_takes_a_new_baseline(trained):
    done = trained([guard("refresh_reference")], rules=[of_metric("ACM003", "kl", above=0.5)])
    ((name, step),) = done.did
    assert name == "reference"
    after = [event for at, event in done.monitor.events if at == step + 1]
    assert after == ["new baseline: the reference was refreshed, and what is measured against it starts over"]
    assert done.seen.own[step + 1]["kl"] < 0.2


@pytest.mark.slow
def test_where_guards_disagree_the_stronger_one_is_done_and_the_others_say_so(trained, tmp_path):
    done = trained(one_of_each())
    (decision,) = done.decisions.values()
    assert (decision.stop, decision.rollback_to, decision.skip_batch) == ("training", None, False)
    assert (decision.save, decision.reevaluate, decision.refresh_reference) == (True, True, False)
    gave_way = {order.do for order in decision.orders if order.dry}
    assert gave_way == {"rollback", "stop_update", "skip_batch", "refresh_reference"}
    assert "not done, gives way to stop_training" in events_of(done, "rollback")[0][1]
    others = [item for item in one_of_each() if item.do != "stop_training"]
    done = trained(others, folder=tmp_path / "others")
    first = done.decisions[ILL + 1]
    assert (first.stop, first.rollback_to.step, first.skip_batch) == (None, ILL - 1, False)
    # What gave way for this incident is not made up for later, when the policy is the old one again.
    assert all(item.stop is None and not item.skip_batch for item in done.decisions.values())


@pytest.mark.slow
def test_of_two_numbers_the_more_careful_one_counts(trained):
    pairs = [guard("scale_lr", bounds=(low, low)) for low in (0.5, 0.25)]
    pairs += [guard("kl_cap", bounds=(low, low), target=0.5) for low in (0.3, 0.7)]
    pairs += [guard("cap_tool_share", bounds=(low, low)) for low in (0.6, 0.4)]
    done = trained([*pairs, guard("scale_lr", act=False, bounds=(0.1, 0.1))])
    first = done.decisions[ILL + 1]
    assert (first.lr_factor, first.kl_coef, first.tool_weights) == (0.25, 0.7, {"*": 0.4})


def test_of_two_rollbacks_the_earlier_checkpoint_counts_and_a_new_incident_is_rolled_back_anew(tmp_path):
    rules = [of_metric("ACM004", "loss", above=1.0), of_metric("ACM006", "kl", above=1.0)]
    on = [On(rules=("ACM004",)), On(rules=("ACM006",), severity="info")]
    monitor = Monitor(rules=rules, catalog=False, guards=[guard("rollback", on=place, cooldown=0) for place in on])
    decisions = {}
    for step in range(30):
        loss, kl = 2.0 if step in (4, 5, 6, 25) else 0.5, 2.0 if step in (2, 3, 4, 5, 6) else 0.5
        monitor.log({"loss": loss, "kl": kl}, step)
        if decision := monitor.decide():
            decisions[step] = decision.rollback_to.step
        (tmp_path / f"{step}.bin").write_bytes(bytes([step]))
        monitor.checkpoint(tmp_path / f"{step}.bin")
    # At 4 the loss is off as well: 2 and 3 are no clean steps any more, as it was found at 2.
    assert decisions == {2: 1, 4: 1, 25: 24}


LOSS_AND_REWARD = (
    of_metric("ACM004", "loss", above=1.0), of_metric("ACM005", "reward", below=0.0, link="outcome")
)  # fmt: skip


def worse(values, guards, **options):
    """A run by its metrics alone: the loss, and the reward, which is the outcome."""
    seen = CapturingTracker()
    monitor = Monitor([seen], rules=LOSS_AND_REWARD, catalog=False, guards=guards, **options)
    decisions = {}
    for step, (loss, reward) in enumerate(values):
        monitor.log({"loss": loss, "reward": reward}, step)
        if decision := monitor.decide():
            decisions[step] = decision
    return monitor, decisions


ILL_THEN_HARMED = [(0.5, 1.0)] * 3 + [(2.0, 1.0)] * 5 + [(2.0, -1.0)] * 5


@pytest.mark.parametrize(("limits", "steps"), [
    ({"cooldown": 0}, [3, 8]), ({"cooldown": 0, "most": 1}, [3]), ({"cooldown": 8}, [3, 11]), ({"cooldown": 50}, [3]),
])  # fmt: skip
def test_a_guard_acts_again_only_when_the_incident_gets_worse_and_within_its_limits(limits, steps):
    _, decisions = worse(ILL_THEN_HARMED, [guard("save_state", **limits)])
    assert [*decisions] == steps
    assert [decisions[step].orders[0].why.split(", ")[1].split(":")[0] for step in steps[:1]] == ["warn"]


@pytest.mark.parametrize(("on", "steps"), [
    ({"severity": "error"}, [8]), ({"links": ("outcome",)}, [8]), ({"links": ("critic",)}, []),
    ({"rules": ("ACM004",), "slices": ("all",)}, [3, 8]), ({"rules": ("ACM004",), "slices": ("post_tool",)}, []),
    ({"rules": ("ACM005",), "links": ("policy_update",)}, []),
])  # fmt: skip
def test_an_incident_must_have_what_the_guard_asks_for(on, steps):
    _, decisions = worse(ILL_THEN_HARMED, [guard("save_state", on=On(**on), cooldown=0)])
    assert [*decisions] == steps


def test_what_is_out_of_reach_is_reported_and_not_done():
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=[guard("rollback")])
    assert not monitor.decide()  # before the first step
    monitor.log({"loss": 2.0}, 0)
    decision = monitor.decide(can=("stop_training",))
    assert not decision
    assert decision.dry
    ((_, event),) = monitor.events
    assert event.startswith("guard rollback: not done, not within reach of this trainer; for ACM004@0")
    assert monitor.decide().orders == ()
    monitor.close()
    assert not monitor.decide()


def test_that_nobody_asks_is_reported_once(caplog):
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=[guard("stop_training")])
    for step in range(20):
        monitor.log({"loss": 2.0}, step)
    ((step, event),) = monitor.events
    assert (step, guards.UNASKED) == (4, 5)
    assert "stop_training would act, but nobody asks; call decide() after each log" in event
    assert caplog.text.count("nobody asks") == 1


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_resumed_run_decides_as_the_unbroken_one(tmp_path, cut):
    """Limits, what has been dealt with, what is held and the register survive; through JSON."""
    (tmp_path / "good.bin").write_bytes(b"weights")
    own = [guard("save_state", cooldown=0), guard("kl_cap", bounds=(0.1, 9.0), target=0.1), guard("rollback", most=1)]

    def run(cut):
        monitor, decisions = Monitor(rules=LOSS_AND_REWARD, catalog=False, guards=own), []
        for step, (loss, reward) in enumerate(ILL_THEN_HARMED):
            if step == cut:
                state = json.loads(json.dumps(monitor.state_dict(), allow_nan=False))
                atexit.unregister(monitor.close)
                monitor = Monitor(rules=LOSS_AND_REWARD, catalog=False, guards=own)
                monitor.load_state_dict(state)
            monitor.log({"loss": loss, "reward": reward, "kl": 1.0}, step)
            decisions.append(monitor.decide())
            if step == 0:
                monitor.checkpoint(tmp_path / "good.bin")
                wait_until_read(monitor.guards.checkpoints)
        monitor.close()
        return decisions, monitor.events

    (unbroken, texts), (resumed, texts_too) = run(None), run(cut)
    assert resumed == unbroken
    assert texts_too == texts
    assert unbroken[3].rollback_to.step == 0
    assert [decision.kl_coef for decision in unbroken[3:7]] == [0.1, 0.2, 0.4, 0.8]


def test_guards_that_are_new_since_the_state_was_saved_begin_anew():
    old, _ = worse(ILL_THEN_HARMED[:5], [guard("save_state")])
    new = Monitor(rules=LOSS_AND_REWARD, catalog=False, guards=[guard("save_state"), guard("reevaluate")])
    new.load_state_dict(old.state_dict())
    atexit.unregister(old.close)
    new.log({"loss": 2.0}, 5)
    decision = new.decide()
    assert (decision.save, decision.reevaluate) == (False, True)


def test_a_failure_inside_decides_nothing(monkeypatch):
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=[guard("stop_training")])
    monitor.log({"loss": 2.0}, 0)
    monkeypatch.setattr(guards, "decided", lambda wishes: 1 / 0)
    assert not monitor.decide()
    assert monitor.health["internal_errors"] == 1
    monkeypatch.undo()
    assert monitor.decide().stop == "training"  # what was not done is not taken for done


@pytest.mark.slow
def test_what_a_new_baseline_has_ended_is_held_no_longer(rng, make_batch):
    monitor = Monitor(guards=[guard("scale_lr", on={"rules": ("POL003", "POL001")})])
    held = []
    for step in range(130):
        if step == 120:
            monitor.rebaseline("a planned change")
        monitor.observe(**make_batch(rng, post=0.02 if step < 80 else 0.2, pairs=("policy",)))
        monitor.log({"reward": 0.5}, step)
        held += [step] if monitor.decide() else []
    assert held[-1] == 119
    assert 80 < held[0] < 110
    assert (120, "guard scale_lr: ended, the incident is over") in monitor.events


def test_a_rollback_waits_for_no_disk(tmp_path, monkeypatch):
    """What takes longer than a moment to read is asked for again at the next step, and training continues."""
    monkeypatch.setattr(checkpoints, "PATIENCE", 0.0)
    (tmp_path / "good.bin").write_bytes(b"weights")
    let, read = threading.Event(), checkpoints.read_manifest
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=[guard("rollback")])
    monitor.log({"loss": 0.5}, 0)
    monitor.checkpoint(tmp_path / "good.bin")
    wait_until_read(monitor.guards.checkpoints)
    monkeypatch.setattr(checkpoints, "read_manifest", lambda root, names: (let.wait(600), read(root, names))[1])
    for step in (1, 2, 3):
        monitor.log({"loss": 2.0}, step)
        assert not monitor.decide()
    let.set()
    end = time.monotonic() + 60
    while not (decision := monitor.decide()):
        assert time.monotonic() < end
        step += 1
        monitor.log({"loss": 2.0}, step)
    assert decision.rollback_to.step == 0
    assert [at for at, _ in monitor.events] == [step]


def test_of_two_that_take_long_to_read_each_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "PATIENCE", 0.0)
    read, asked = checkpoints.read_manifest, []
    register = checkpoints.Register()
    for step in (1, 2):
        (tmp_path / f"{step}.raw").write_bytes(b"weights")
        register.register(tmp_path / f"{step}.raw", step, ())
    wait_until_read(register)
    (tmp_path / "2.raw").write_bytes(b"damaged")
    monkeypatch.setattr(checkpoints, "read_manifest", lambda root, names: (
        asked.append(root.name), time.sleep(0.2), read(root, names))[2])  # fmt: skip
    end = time.monotonic() + 60
    while not (answer := register.before(9, register.reread))[2]:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert (answer[0].step, asked) == (1, ["2.raw", "1.raw"])


def test_what_takes_long_to_read_is_waited_for_once(monkeypatch):
    monkeypatch.setattr(checkpoints, "PATIENCE", 0.2)
    reading, before = checkpoints.Reading(), time.monotonic()
    assert not any(reading.is_done() for _ in range(20))
    assert 0.2 <= time.monotonic() - before < 2.0  # of 4 if each waited


def rolled_back(folder, monkeypatch, places):
    """Steps of the rollbacks of a run that continues in a new process each time, as it was at step 2."""
    (folder / "good.bin").write_bytes(b"weights")

    def fresh():
        monkeypatch.setenv("TRACKER_DIAG_DIR", str(next(places)))
        own = [guard("rollback", most=2, cooldown=3), guard("stop_update", act=False)]
        monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=own)
        atexit.unregister(monitor.close)
        return monitor

    monitor, rollbacks = fresh(), []
    for step in range(30):
        monitor.log({"loss": 2.0 if step >= 4 else 0.5}, step)
        if step == 2:
            monitor.checkpoint(folder / "good.bin")
            wait_until_read(monitor.guards.checkpoints)
            state = json.loads(json.dumps(monitor.state_dict()))
        if monitor.decide().rollback_to:
            rollbacks.append(step)
            monitor = fresh()
            monitor.load_state_dict(state)
    return rollbacks


def test_limits_outlive_a_rollback_and_another_node_too(tmp_path, monkeypatch):
    assert rolled_back(tmp_path, monkeypatch, (tmp_path / str(number) for number in range(99))) == [4, 7]


def test_a_guard_that_acted_later_in_the_run_acts_again_after_going_back():
    """As the counts of a run that was ahead lie next to its checkpoints."""
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=[guard("save_state")])
    monitor.log({"loss": 2.0}, 1000)
    assert monitor.decide().save
    back = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=[guard("save_state")])
    back.guards.load_state_dict(monitor.guards.state_dict())
    back.log({"loss": 0.5}, 10)
    back.log({"loss": 2.0}, 11)
    assert back.decide().save


@pytest.mark.parametrize("content", ["{", "[]", '{"guard": 3}', '{"guard": ["two", 1]}'])
def test_a_guard_whose_limits_cannot_be_read_does_nothing_and_says_so(tmp_path, content):
    (tmp_path / "good.bin").write_bytes(b"weights")
    own = [guard("stop_training", cooldown=0)]
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=own)
    monitor.checkpoint(tmp_path / "good.bin", 0)
    limits = tmp_path / f"tracker_diag_guards-{monitor.guards.state_dict()['limits']['run']}.json"
    limits.write_text(content)
    monitor.log({"loss": 2.0}, 1)
    assert not monitor.decide()
    ((_, event),) = monitor.events
    assert f"guard stop_training: not done, its limits are not known, {limits} cannot be read" in event
    assert limits.read_text() == content
    monitor.close()


def test_without_a_fresh_verdict_no_guard_acts(monkeypatch):
    monitor = Monitor(rules=[of_metric("ACM004", "loss", above=1.0)], catalog=False, guards=[guard("stop_update")])
    monitor.log({"loss": 2.0}, 0)
    assert monitor.decide().stop == "update"
    monkeypatch.setattr(Judge, "step", lambda *_: 1 / 0)
    for step in (1, 2):
        monitor.log({"loss": 2.0}, step)
        assert not monitor.decide()
    monkeypatch.undo()
    monitor.log({"loss": 2.0}, 3)
    assert monitor.decide().stop == "update"
    monitor.close()
