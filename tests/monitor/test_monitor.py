import atexit
import json
import logging
import math
import threading
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tracker_diag import Monitor
from tracker_diag.attach.kit import resume
from tracker_diag.detect.cusum import CusumSettings
from tracker_diag.detect.growth import GrowthSettings
from tracker_diag.errors import BatchError, DiagError, SourceError
from tracker_diag.metrics import own
from tracker_diag.metrics.reasons import Why, reason
from tracker_diag.metrics.statistics import STATISTICS
from tracker_diag.records import Histogram
from tracker_diag.rules.engine import Engine
from tracker_diag.rules.findings import Finding
from tracker_diag.rules.loader import catalog
from tracker_diag.runs.diagnose import diagnose
from tracker_diag.stats import arrays
from tracker_diag.stats.tails import SliceWindow
from tracker_diag.tensors import batch as batch_module
from tracker_diag.tensors import given as given_module
from tracker_diag.testing import CapturingTracker
from tracker_diag.trackers.finished import FinishedRun
from tracker_diag.trackers.tracker import Tracker


def watch(batches, metrics=None, **options):
    """Run a monitor over `batches` and give its capturing tracker and itself."""
    seen = CapturingTracker()
    monitor = Monitor([seen], **options)
    for step, tensors in enumerate(batches):
        monitor.observe(**tensors)
        monitor.log(metrics(step) if metrics else {"reward": 0.5}, step)
    monitor.close()
    return seen, monitor


def test_errors_are_computed_while_a_baseline_is_learnt_and_for_values_that_stand_out(rng, make_batch, monkeypatch):
    asked, step = [], 0
    log_error = SliceWindow.log_error
    monkeypatch.setattr(SliceWindow, "log_error", lambda *given: (asked.append(step), log_error(*given))[1])
    monitor = Monitor([CapturingTracker()])
    for step in range(90):
        monitor.observe(**make_batch(rng, post=0.08 if step == 85 else 0.02))
        monitor.log({"reward": 0.5}, step)
    monitor.close()
    assert set(asked) & set(range(72, 90)) == {85}
    assert {*range(20, 60)} <= {*asked}


def fired(monitor):
    return [(f.rule.id, f.pair, f.slice) for f in monitor.summary().findings if f.fired is not None]


@pytest.mark.slow
def test_a_tail_that_grows_after_tools_is_found_dated_and_explained(rng, make_batch):
    def post(step):
        return 0.02 * math.exp(max(0, step - 90) * 0.05)

    _, monitor = watch(make_batch(rng, post=post(step), pairs=("policy",)) for step in range(150))
    assert fired(monitor) == [("POL001", "policy", "post_tool")]
    finding = monitor.summary().first_break
    assert 88 <= finding.onset <= 112
    assert finding.onset <= finding.fired <= 125
    assert finding.state == "firing"
    evidence = {reading.signal: reading for reading in finding.evidence}
    assert evidence["post_tool_tail_grows_each_step"].holds
    assert evidence["post_tool_tail_grows_each_step"].n == 32 * 12
    assert evidence["post_tool_tail_matters"].n == 8 * 32 * 12
    assert evidence["reward_falls"].holds is False
    assert str(evidence["kl_grows"].unknown) == "no series kl"
    blind = monitor.summary().blind
    assert str(blind["POL002"][0]) == "reference: no ref_logprobs observed"
    assert str(blind["RES007"][0]) == "no ranks that report through a store"


def short(make_batch, rows, monitor):
    """A run of 60 rows whose tail after tools is four times as wide from row 40 on."""
    numbers = np.random.default_rng(3)
    for step in range(*rows):
        monitor.observe(
            **make_batch(numbers if step else np.random.default_rng(3), post=0.02 * (4 if step >= 40 else 1))
        )
        monitor.log({"reward": 0.5}, step)


@pytest.mark.nightly
def test_a_run_that_says_how_short_it_is_is_judged_within_it(make_batch):
    unaware, aware, given = Monitor(), Monitor(), Monitor(settings=GrowthSettings())
    for monitor in (aware, given):
        monitor.expect(60)
    for monitor in (unaware, aware, given):
        short(make_batch, (0, 60), monitor)
        monitor.close()
    assert fired(unaware) == fired(given) == []
    assert ("POL001", "policy", "post_tool") in fired(aware)
    assert aware.summary().first_break.fired <= 48
    (early,) = (caveat for caveat in unaware.summary().caveats if "too early" in caveat)
    assert early.startswith("it was too early to judge how tails grow: 60 of 65 steps")
    assert early.endswith("say so before its first step: run.diag.expect(rows=60)")
    assert not any("too early" in caveat for caveat in aware.summary().caveats)


@pytest.mark.parametrize(("steps", "early"), [(60, True), (80, False)])
def test_steps_without_log_ratios_count_towards_the_baseline(steps, early, rng, make_batch):
    monitor = Monitor()
    for step in range(steps):
        if step % 2:
            monitor.observe(**make_batch(rng, pairs=("policy",)))
        monitor.log({"reward": 0.5}, step)
    assert any("too early" in caveat for caveat in monitor.close().caveats) == early


def test_a_tail_beyond_the_sketch_is_said_to_be_at_least_so_large(rng, make_batch):
    monitor = Monitor()
    for step in range(4):
        monitor.observe(**make_batch(rng, post=1e4, pairs=("policy",)))
        monitor.log({}, step)
    (tail,) = monitor.summary().tails
    assert "after a tool result at least 256, before any 0." in tail


@pytest.mark.slow
def test_how_long_a_run_is_said_too_late_or_by_nobody_changes_nothing(make_batch, caplog):
    late, nobody = Monitor(), Monitor()
    nobody.expect(None)
    nobody.expect(0)
    short(make_batch, (0, 1), late)
    late.expect(None)
    again = Monitor()
    again.expect(60)
    short(make_batch, (0, 1), again)
    again.expect(60)
    assert caplog.messages == []
    late.expect(60)
    assert late.state_dict()["rows"] is nobody.state_dict()["rows"] is None
    assert caplog.messages == [
        "expect(rows=60): the run has begun, so this changes nothing; say it before the first step"
    ]


@pytest.mark.nightly
def test_a_resumed_run_continues_as_long_as_it_was_meant_to_be_at_first(make_batch):
    """Whatever the trainer says now: with other horizons what was saved would mean something else."""
    killed, resumed = Monitor(), Monitor()
    killed.expect(60)
    short(make_batch, (0, 30), killed)
    resumed.expect(600)
    resumed.load_state_dict(json.loads(json.dumps(killed.state_dict())))
    short(make_batch, (30, 60), resumed)
    resumed.close()
    assert ("POL001", "policy", "post_tool") in fired(resumed)
    atexit.unregister(killed.close)


@pytest.mark.nightly
def test_the_same_growth_in_both_slices_is_global(rng, make_batch):
    def scale(step):
        return 0.02 * math.exp(max(0, step - 90) * 0.05)

    batches = [make_batch(rng, post=scale(s), text=scale(s), pairs=("policy",)) for s in range(150)]
    _, monitor = watch(batches)
    first, *others = (f for f in monitor.summary().findings if f.fired is not None)
    assert (first.rule.id, first.pair, first.slice) == ("POL003", "policy", "all")
    assert {(f.rule.id, f.inhibited_by) for f in others} <= {("POL016", "POL003")}  # no alert of their own


@pytest.mark.slow
def test_values_against_numpy(rng, make_batch):
    batches = [make_batch(rng, post=0.3) for _ in range(12)]
    seen, _ = watch(batches, window=8)
    got = seen.scalars(11)
    r = np.concatenate([(b["logprobs"] - b["old_logprobs"])[:32, 12:].reshape(-1) for b in batches[4:]])
    assert got["diag/policy/post_tool/p95"] == pytest.approx(np.quantile(np.abs(r), 0.95, method="lower"), rel=0.004)
    w = np.exp(r)
    assert got["diag/policy/post_tool/ess"] == pytest.approx(w.sum() ** 2 / (w**2).sum() / len(w), rel=1e-3)
    sums = r.reshape(-1, 12).sum(axis=1)
    w = np.exp(sums)
    assert got["diag/policy/post_tool/ess_sequence"] == pytest.approx(w.sum() ** 2 / (w**2).sum() / len(w), rel=1e-3)
    assert got["diag/policy/post_tool/count"] == len(r)


@pytest.mark.slow
def test_micro_batches_give_what_the_batch_gives(rng, make_batch):
    batches = [make_batch(rng, post=0.3) for _ in range(10)]
    whole, _ = watch(batches)
    parts = CapturingTracker()
    monitor = Monitor([parts])
    for step, tensors in enumerate(batches):
        for rows in (slice(0, 20), slice(20, 64)):
            monitor.observe(**{name: value[rows] for name, value in tensors.items()})
        monitor.log({"reward": 0.5}, step)
    monitor.close()
    for step in range(10):
        assert parts.scalars(step) == pytest.approx(whole.scalars(step), rel=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("carried", [0.01, 1.0, None])
def test_a_tail_within_the_clip_range_is_a_warning_whatever_gradient_it_carries(rng, carried):
    """The same tail: advantages after tools a hundredth as large, as large, and none given."""
    monitor = Monitor([])
    model = np.ones((64, 44), bool)
    model[:, :2] = model[:32, 22:27] = False
    response = np.arange(44) >= np.full((64, 1), 2)
    after = np.zeros((64, 44), bool)
    after[:32, 27:] = True
    for step in range(120):
        old = -rng.gamma(2, 0.5, (64, 44))
        r = rng.normal(size=(64, 44)) * np.where(after, 0.065 if step >= 100 else 0.03, 0.03)
        tensors = {"logprobs": old + r, "old_logprobs": old, "response_mask": response, "model_mask": model}
        if carried is not None:
            tensors["advantages"] = rng.normal(size=(64, 44)) * np.where(after, carried, 1.0)
        monitor.observe(**tensors)
        monitor.log({"reward": 0.5 + 0.02 * rng.normal()}, step)
    (alarm,) = [finding for finding in monitor.close().findings if finding.fired is not None]
    assert (alarm.rule.id, alarm.slice, alarm.severity) == ("POL001", "post_tool", "warn")


@pytest.mark.slow
def test_everything_logged_is_registered_and_within_the_budget(rng, make_batch):
    seen, _ = watch(
        [make_batch(rng) | {"rollout_logprobs": rng.uniform(-3, 0, (64, 24))} for _ in range(80)],
        metrics=lambda step: {"reward": math.nan if step == 70 else 1.0, "kl": 0.1},
    )
    stats = set(STATISTICS)
    health = {metric.name for metric in own.HEALTH}
    scalars = seen.scalars(79)
    assert len(scalars) + 1 <= 60
    for name in scalars:
        prefix, family, *rest = name.split("/")
        assert prefix == "diag"
        if family == "health":
            assert rest[0] in health
        elif family == "rule":
            assert rest[0] in {rule.id for rule in catalog()}
        else:
            assert family in {"policy", "mismatch", "reference"}
            assert rest[0] in {"text_only", "post_tool", "all"}
            assert rest[1] in stats
    histograms = [record for record in seen.records[79] if isinstance(record, Histogram)]
    assert len(histograms) == 6
    for histogram in histograms:
        assert len(histogram.counts) <= 512
        assert np.isfinite(histogram.edges).all()
        assert histogram.baseline.sum() > 0


@pytest.mark.slow
def test_an_on_policy_pair_is_no_signal_and_its_rules_are_blind(rng, make_batch):
    batches = []
    for _ in range(40):
        tensors = make_batch(rng, pairs=("reference",))
        tensors["old_logprobs"] = tensors["logprobs"] + rng.uniform(-1e-7, 1e-7, (64, 24))
        batches.append(tensors)
    seen, monitor = watch(batches)
    assert not any(name.startswith("diag/policy/") for name in seen.scalars(39))
    reason = "policy: no signal: the ratio is 1 but for float noise, on-policy by construction"
    assert str(monitor.summary().blind["POL001"][0]) == reason
    assert "POL001" not in monitor.summary().healthy
    notes = {(row[0], row[1]): row[-1] for row in seen.tables[0].rows}
    assert notes["policy", "post_tool"].startswith("no signal")
    assert notes["reference", "post_tool"] == ""


@pytest.mark.slow
def test_a_run_without_tool_calls_leaves_the_slice_blind_and_says_so(rng, make_batch):
    batches = [{k: v[32:] for k, v in make_batch(rng).items()} for _ in range(90)]
    _, monitor = watch(batches)
    assert (
        str(monitor.summary().blind["POL004"][0])
        == "policy: 0 tokens in the window, 200 needed; a larger window= holds more"
    )
    assert "POL004" not in monitor.summary().healthy


@pytest.mark.nightly
def test_tensors_that_stop_coming_leave_their_rules_blind(rng, make_batch):
    monitor = Monitor()
    for step in range(300):
        if step < 80:
            monitor.observe(**make_batch(rng))
        monitor.log({"reward": 0.5}, step)
    assert {"POL001", "POL002", "POL003", "POL004", "RES007"} <= set(monitor.close().blind)
    assert monitor.summary().healthy == ("NUM004", "NUM009", "OUT001", "REW006", "REW021")


def test_k3_of_the_reference_pair_is_the_kl_from_the_policy(rng):
    """Tokens sampled from the policy itself: the other k3 is no estimate of any KL there."""
    logits = rng.normal(0, 1.5, (2, 50))
    new, ref = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    tokens = rng.choice(50, size=(64, 200), p=np.exp(new))
    seen = CapturingTracker()
    monitor = Monitor([seen])
    mask = np.ones((64, 200), bool)
    monitor.observe(logprobs=new[tokens], ref_logprobs=ref[tokens], model_mask=mask)
    monitor.log({}, 0)
    kl = float(np.sum(np.exp(new) * (new - ref)))
    assert seen.scalars(0)["diag/reference/all/k3"] == pytest.approx(kl, rel=0.1)
    other = rng.choice(50, size=(64, 200), p=np.exp(ref))
    monitor.observe(logprobs=new[other], old_logprobs=ref[other], model_mask=mask)
    monitor.log({}, 1)
    kl = float(np.sum(np.exp(ref) * (ref - new)))
    assert seen.scalars(1)["diag/policy/all/k3"] == pytest.approx(kl, rel=0.1)


@pytest.mark.slow
def test_nan_and_inf_are_counted_and_become_a_finding(rng, make_batch):
    batches = [make_batch(rng) for _ in range(5)]
    batches[3]["old_logprobs"][0, 20] = np.nan
    batches[3]["old_logprobs"][0, 21] = -np.inf
    seen, monitor = watch(batches)
    assert fired(monitor) == [("NUM004", None, "all")]
    (finding,) = monitor.summary().findings
    assert finding.fired == 3
    assert finding.evidence[0].series == "log-ratio of policy on post_tool"
    assert seen.scalars(3)["diag/health/nonfinite_tokens"] == 2
    assert "diag/health/nonfinite_tokens" not in seen.scalars(2)
    assert math.isfinite(seen.scalars(4)["diag/policy/post_tool/ess"])


@pytest.mark.parametrize("where", [(0, 20), slice(None)], ids=["one token", "all of them"])
@pytest.mark.parametrize("name", ["logprobs", "ref_logprobs"])
def test_nan_in_the_very_first_batch_is_a_finding_and_no_exception(rng, make_batch, where, name):
    batch = make_batch(rng)
    batch[name][where] = np.nan
    _, monitor = watch([batch])
    assert fired(monitor) == [("NUM004", None, "all")]
    assert monitor.failures == []


@pytest.mark.slow
def test_a_non_finite_metric_names_itself(rng, make_batch):
    seen, monitor = watch(
        [make_batch(rng) for _ in range(3)], metrics=lambda step: {"train/loss": math.inf if step == 1 else 0.1}
    )
    (finding,) = monitor.summary().findings
    assert finding.evidence[0].series == "train/loss"
    assert seen.own[1] == {"train/loss": math.inf}


FIRST_CALL = {
    "shape": ({"old_logprobs": np.zeros((64, 23))}, "old_logprobs: shape"),
    "masks": (
        {"response_mask": np.eye(64, 24) > 0, "model_mask": np.eye(64, 24) == 0},
        "model_mask: no model token among 1536 given, expected at least one True; is the mask inverted or shifted",
    ),
    "dtype": ({"logprobs": np.zeros((64, 24), int)}, "logprobs: dtype int64"),
}


@pytest.mark.slow
def test_a_micro_batch_without_a_model_token_raises_nowhere(rng, make_batch, caplog):
    monitor, good = Monitor(), make_batch(rng)
    nothing = {"model_mask": np.zeros((64, 24), bool)}
    for step in range(2):
        monitor.observe(**good | nothing)
        monitor.observe(**good)
        monitor.log({}, step)
    assert +monitor.health == {"rejected_batches": 2}
    assert "others have some" in caplog.text
    again = Monitor()
    again.observe(**good | nothing)
    again.observe(**good | {"logprobs": np.zeros((64, 24), int)})  # the first that has tokens is looked at as ever
    assert again.failures[0].startswith("rejected_batches: BatchError: model_mask")
    assert +again.health == {"rejected_batches": 2}


@pytest.mark.slow
@pytest.mark.parametrize("case", FIRST_CALL)
@pytest.mark.parametrize("with_a_good_one", [False, True])
def test_bad_input_raises_on_the_first_call_and_is_counted_afterwards(case, with_a_good_one, rng, make_batch, caplog):
    changed, message = FIRST_CALL[case]
    good = make_batch(rng)
    monitor = Monitor()
    monitor.log({"reward": 0.5}, 0)
    with pytest.raises(BatchError, match=message):
        monitor.observe(**good | changed)
    if with_a_good_one:
        monitor.observe(**good)
    with caplog.at_level(logging.WARNING, "tracker_diag"):
        for _ in range(3):
            monitor.observe(**good | changed)
    monitor.log({}, 1)
    assert monitor.health["rejected_batches"] == 3
    assert len(caplog.records) == 1
    assert message in monitor.failures[0]


@pytest.mark.parametrize("adopts", [Monitor.load_state_dict, partial(resume, missing="")])
@pytest.mark.parametrize("seen", [(), ("reward",), ("reward", "tensors")])
def test_after_a_resume_nothing_raises(adopts, seen, rng, make_batch):
    old, new, good = Monitor(), Monitor(), make_batch(rng)
    if "tensors" in seen:
        old.observe(**good)
    if seen:
        old.log({"reward": 0.5}, 0)
    adopts(new, json.loads(json.dumps(old.state_dict())))
    new.observe(**good | FIRST_CALL["shape"][0])
    assert new.health["rejected_batches"] == 1


@pytest.mark.slow
def test_a_step_that_goes_backwards_is_counted_and_left_out(rng, make_batch, caplog):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    for step in (0, 1, 5, 3, 4, 6):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": step}, step)
    monitor.close()
    assert sorted(seen.records) == [0, 1, 5, 6]
    assert monitor.health["late_steps"] == 2
    assert "step: 3 given, expected more than 5; its metrics are left out" in monitor.failures[0]
    assert len(caplog.records) == 1
    assert seen.own[6] == {"reward": 6}


@pytest.mark.slow
def test_metrics_on_an_axis_of_their_own_cost_no_tensors(rng, make_batch):
    """An evaluation that logs its epoch as the step, now below the training step and now far above."""
    seen = CapturingTracker()
    monitor = Monitor([seen])
    for step in range(6):
        monitor.observe(**make_batch(rng))
        if step == 3:
            monitor.log({"val/reward": 0.1}, 1)
        monitor.log({"reward": 0.5}, step)
        if step == 4:
            monitor.log({"val/reward": 0.1}, 1000)
    monitor.close()
    with_tensors = [step for step in sorted(seen.records) if "diag/policy/all/p95" in seen.scalars(step)]
    assert with_tensors == [0, 1, 2, 3, 4, 5]
    assert monitor.health["late_steps"] == 1


@pytest.mark.slow
def test_several_logs_of_one_step_add_up(rng, make_batch):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    for step in range(3):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": 1.0}, step)
        monitor.observe(**make_batch(rng))
        monitor.log({"kl": step / 10}, step)
    assert monitor.close().steps == 3
    assert seen.own == {step: {"reward": 1.0, "kl": step / 10} for step in range(3)}
    assert seen.scalars(0)["diag/policy/text_only/count"] == 2 * (64 * 22 - 32 * 4 - 32 * 12)


def test_a_step_is_evaluated_in_the_very_call_that_logs_it(rng, make_batch):
    """So that nothing is lost with a process that is killed right after."""
    seen = CapturingTracker()
    monitor = Monitor([seen])
    monitor.observe(**make_batch(rng))
    monitor.log({"reward": 1.0}, 7)
    assert "diag/policy/text_only/p95" in seen.scalars(7)
    monitor.log({"loss": math.nan}, 7)
    assert [(f.rule.id, f.fired) for f in monitor.summary().findings] == [("NUM004", 7)]
    monitor.log({"loss": math.nan, "kl": math.nan}, 7)
    assert [notice.step for notice in seen.notices] == [7]
    assert [(f.rule.id, f.state) for _, f in seen.findings] == [("NUM004", "firing")]


def test_tensors_that_came_after_the_last_log_are_evaluated_at_the_end(rng, make_batch):
    monitor = Monitor()
    monitor.log({"reward": 1.0}, 0)
    monitor.observe(**make_batch(rng))
    assert monitor.close().steps == 2
    assert monitor.slices_table().rows


@pytest.mark.nightly
def test_one_call_for_each_metric_is_as_good_as_one_for_all(rng, make_batch):
    """The same evidence, findings and alerts at the same steps, whichever way the metrics of a step arrive."""

    def run(log):
        own, seen = np.random.default_rng(1), CapturingTracker()
        monitor = Monitor([seen])
        for step in range(130):
            monitor.observe(**make_batch(own, post=growing(step)))
            metrics = {"reward": 0.5, "kl": math.nan if step == 60 else 0.1, "entropy": 1.0, "grad_norm": 0.3}
            log(monitor, metrics, step)
        monitor.close()
        findings = [(step, f.rule.id, f.slice, f.state, f.onset) for step, f in seen.findings]
        return findings, seen.notices, {step: seen.scalars(step) for step in range(130)}

    def singly(monitor, metrics, step):
        for name, value in metrics.items():
            monitor.log({name: value}, step)

    def before(monitor, metrics, step):
        """The last metric's call comes without any of ours being new."""
        monitor.log(metrics, step)
        monitor.log({}, step)

    whole = run(lambda monitor, metrics, step: monitor.log(metrics, step))
    assert [finding[1] for finding in whole[0]].count("POL001") >= 1
    for way in (singly, before):
        assert run(way) == whole


@pytest.mark.by_day("0-None", "30-20")
@pytest.mark.nightly
@pytest.mark.parametrize(("since", "killed"), [(0, None), (1, None), (30, 20), (30, 50), (None, None)])
def test_the_names_of_metrics_tell_the_algorithm_as_in_the_finished_run(since, killed, rng):
    """0.69 is the loss of a random model under DPO, and not under SFT, whose accuracy TRL logs from `since` on."""
    monitor = Monitor(source="test")
    rows = {}
    for step in range(200):
        rows[step] = {"loss": 0.693 + 0.002 * rng.normal(), "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": step / 99}
        if since is not None and step >= since:
            rows[step] |= {"mean_token_accuracy": 0.5 + 0.01 * rng.normal(), "num_tokens": 1000.0 * step}
        for key, value in rows[step].items():
            monitor.log({key: value}, step)
        if step == killed:
            state = json.loads(json.dumps(monitor.state_dict()))
            monitor = Monitor(source="test")
            monitor.load_state_dict(state)
    finished = diagnose(FinishedRun("run", rows, {}, {}, ()))
    live = {finding.rule.id for finding in monitor.close().findings}
    assert live == {finding.rule.id for finding in finished.summary.findings}
    assert ("SFT001" in live) == (since is None)
    assert monitor.algorithm == finished.algorithm == (None if since is None else "sft")
    assert monitor.failures == []


@pytest.mark.slow
def test_tensors_may_say_their_step(rng, make_batch):
    """Then they need no `log` to be evaluated, and what is logged without a step is of theirs."""
    batches = [make_batch(rng) for _ in range(6)]
    seen, expected = CapturingTracker(), CapturingTracker()
    with Monitor([seen]) as monitor, Monitor([expected]) as plain:
        for step, tensors in enumerate(batches):
            for rows in (slice(0, 20), slice(20, 64)):
                monitor.observe(**{name: value[rows] for name, value in tensors.items()}, step=10 * step)
            if step % 2:
                monitor.log({"reward": 0.5})
            plain.observe(**tensors)
            plain.log({"reward": 0.5} if step % 2 else {}, 10 * step)
    assert seen.own == expected.own
    for step in range(0, 60, 10):
        assert seen.scalars(step) == pytest.approx(expected.scalars(step), rel=1e-9)


@pytest.mark.parametrize("step", [3, 3.0, np.int32(3), np.float32(3), torch.tensor(3)])
def test_a_step_of_any_type(step):
    seen = CapturingTracker()
    Monitor([seen]).log({"reward": 1.0}, step)
    assert list(seen.own) == [3]


@pytest.mark.parametrize("step", [3.5, "3", math.nan])
def test_a_step_that_is_none_is_reported_and_counted(step):
    monitor = Monitor()
    monitor.log({"reward": 1.0}, step)
    (failure,) = monitor.failures
    assert failure == (
        f"internal_errors: TypeError: step: {step!r} given, expected a whole number; "
        "pass the number of the optimiser's step"
    )


def test_observations_without_a_log_are_reported_once(rng, make_batch, caplog):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    for _ in range(12):
        monitor.observe(**make_batch(rng))
    (warning,) = (record.message for record in caplog.records)
    assert warning.startswith("5 batches were observed, and no metrics were heard since.")
    assert "run.diag.log(metrics, step)" in warning
    assert [event for _, event in seen.events] == [warning]


@pytest.mark.slow
def test_micro_batches_are_no_silence(rng, make_batch, caplog):
    monitor = Monitor()
    for step in range(3):
        for _ in range(4):
            monitor.observe(**make_batch(rng))
        monitor.log({"reward": 1.0}, step)
    for _ in range(19):
        monitor.observe(**make_batch(rng))
    assert not caplog.records
    monitor.observe(**make_batch(rng))
    assert caplog.records[0].message.startswith("20 batches were observed")


@pytest.mark.slow
def test_tensors_that_cease_are_reported_once(rng, make_batch, caplog):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    for step in range(60):
        if step < 3:
            monitor.observe(**make_batch(rng))
        monitor.log({"reward": 1.0}, step)
        monitor.log({"kl": 1.0}, step)
    (_, (step, event)) = seen.events  # the first one says what is seen
    assert step == 52
    assert event.startswith("50 steps were logged without tensors since step 2: ")
    assert [record.message for record in caplog.records] == [event]


@pytest.mark.slow
def test_a_ratio_that_was_1_is_not_missed_when_it_ceases(rng, make_batch, caplog):
    """As TRL has it with its default settings: the tensors are shown once, and there is nothing to observe later."""
    monitor = Monitor()
    names = ("logprobs", "response_mask", "model_mask")
    batch = {name: value for name, value in make_batch(rng).items() if name in names}
    batch["old_logprobs"] = batch["logprobs"].copy()
    for step in range(60):
        if step == 0:
            monitor.observe(**batch)
        monitor.log({"reward": 1.0}, step)
    assert not caplog.records
    caveats = monitor.close().caveats
    assert "the ratio was 1 throughout, on-policy by construction, so no rule has seen a tail" in caveats
    assert not any("no tensors came after" in caveat for caveat in caveats)


@pytest.mark.slow
def test_tensors_of_every_tenth_step_are_no_silence(rng, make_batch, caplog):
    monitor = Monitor()
    for step in range(150):
        if step % 30 == 0:
            monitor.observe(**make_batch(rng))
        monitor.log({"reward": 1.0}, step)
    assert not caplog.records


def test_without_a_step_the_next_one_is_meant(rng, make_batch):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    for _ in range(3):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": 1.0})
    monitor.log({"reward": 1.0})
    assert sorted(seen.records) == [0, 1, 2, 3]


def test_metrics_of_any_library_and_things_that_are_no_numbers_are_taken_when_they_are_logged():
    seen = CapturingTracker()
    monitor = Monitor([seen])
    changing = torch.tensor(3.0)
    monitor.log(
        {"a": 1, "b": np.float32(2), "c": changing, "d": np.array(4), "e": True, "f": "text", "g": [1],
         "h": np.array([1.0]), "i": None, 5: 1.0, "l": np.ones(2), "j": 10**400, "k": -(10**400)},
        np.int64(0),
    )  # fmt: skip
    changing += 98
    assert seen.own[0] == {"a": 1, "b": 2, "c": 3, "d": 4, "h": 1, "j": math.inf, "k": -math.inf}
    assert json.loads(json.dumps(monitor.summary().to_json()))["run"]["last_step"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window: 0 given, expected at least 1 step"),
        ({"settings": {"baseline": 52}}, "baseline: 52 given, expected two or more blocks of 5"),
        ({"settings": {"block": 0}}, "expected a burn_in of 0 or more and a block of 1 or more"),
        ({"clip": (1.5, 0.2)}, r"clip: \(1.5, 0.2\) given, expected a share below 1 and one above 0"),
    ],
)
def test_settings_that_make_no_sense_are_reported_at_set_up(options, message):
    with pytest.raises(ValueError, match=message):
        Monitor(
            **options
            | (
                {"settings": GrowthSettings(short=CusumSettings(**options["settings"]))}
                if "settings" in options
                else {}
            )
        )


class Broken(Tracker):
    local = True

    def write(self, step, entries, at):
        raise ConnectionError("the tracker is down")

    def close(self):
        raise ConnectionError("the tracker is down")


@pytest.mark.slow
def test_a_broken_tracker_is_counted_and_the_others_continue(rng, make_batch, caplog):
    seen = CapturingTracker()
    monitor = Monitor([Broken(), seen])
    for step in range(4):
        monitor.observe(**make_batch(rng))
        monitor.log({}, step)
    monitor.close()
    assert len(seen.records) == 4
    assert seen.summary is not None
    assert monitor.health["tracker_errors"] == 5
    assert len(caplog.records) == 1
    assert seen.scalars(3)["diag/health/tracker_errors"] == 3


@pytest.mark.slow
def test_closing_twice_writes_once(rng, make_batch):
    seen = CapturingTracker()
    with Monitor([seen]) as monitor:
        monitor.observe(**make_batch(rng))
        monitor.log({}, 0)
        first = monitor.close()
    assert monitor.close() is first
    assert seen.summary == replace(first, over=True)


def test_what_comes_after_the_end_is_counted_reported_once_and_left_out(rng, make_batch, caplog):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    monitor.log({"reward": 0.5}, 0)
    first = monitor.close()
    monitor.rebaseline("too late")
    for step in range(1, 4):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": 0.5}, step)
    assert monitor.close() is first
    assert monitor.summary().steps == 1
    assert list(seen.records) == [0]
    assert monitor.health["after_close"] == 6
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("after_close: DiagError: the run that was watched has ended; wrap the one that continues")


@pytest.mark.slow
def test_a_run_is_saved_by_one_thread_while_another_trains(rng, make_batch):
    monitor, batches, states = Monitor(), [make_batch(rng) for _ in range(8)], []

    def save():
        while len(states) < 12:
            states.append(json.dumps(monitor.state_dict(), allow_nan=False))

    saver = threading.Thread(target=save)
    saver.start()
    for step in count():
        monitor.observe(**batches[step % 8])
        monitor.log({"reward": 0.5}, step)
        if not saver.is_alive():
            break
    assert len(states) == 12
    for state in states[::3]:
        Monitor().load_state_dict(json.loads(state))
    assert monitor.failures == []


@pytest.mark.slow
def test_memory_is_that_of_the_window(rng, make_batch):
    _, monitor = watch([make_batch(rng) for _ in range(8)], window=4)
    assert [len(window["recent"]) for window in monitor.state_dict()["windows"].values()] == [4, 4]


def growing(step):
    return 0.02 * math.exp(max(0, step - 75) * 0.1)


def alerts_of(seen):
    return [(step, f.rule.id, f.pair, f.slice, f.state, f.onset, f.summary, f.evidence) for step, f in seen.findings]


def run_until(monitor, calls, make_batch, start=0):
    """Five calls a step, from the one numbered `start` to before `calls`."""
    rng = np.random.default_rng(0)
    for step in range(130):
        tensors = make_batch(rng, post=growing(step))
        later = {name: value[48:] for name, value in tensors.items()}
        tensors = {name: value[:48] for name, value in tensors.items()}
        for at, call in enumerate(
            (
                lambda: monitor.observe(**tensors),  # noqa: B023  # called at once
                lambda: monitor.log({"reward": 0.5}, step),  # noqa: B023
                lambda: monitor.observe(**later),  # noqa: B023
                lambda: monitor.log({"kl": math.nan if step == 60 else 0.1}, step),  # noqa: B023
                lambda: monitor.log({"entropy": 1.0}, step),  # noqa: B023
            )
        ):
            if start <= step * 5 + at < calls:
                call()


@pytest.fixture
def unbroken(make_batch):
    """A run of 130 steps, and what its tracker saw."""
    whole = CapturingTracker()
    monitor = Monitor([whole])
    run_until(monitor, 650, make_batch)
    monitor.close()
    return monitor, whole


@pytest.mark.nightly
@settings(max_examples=settings().max_examples // 8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 649))
@example(cut=647)
def test_a_killed_and_resumed_run_raises_the_same_alerts(make_batch, unbroken, cut):
    """Saved between any two calls, and restored through JSON."""

    unbroken, whole = unbroken
    first, second = CapturingTracker(), CapturingTracker()
    killed = Monitor([first])
    run_until(killed, cut, make_batch)
    state = json.loads(json.dumps(killed.state_dict(), allow_nan=False))
    resumed = Monitor([second])
    resumed.load_state_dict(state)
    run_until(resumed, 650, make_batch, cut)
    resumed.close()
    atexit.unregister(killed.close)
    assert alerts_of(first) + alerts_of(second) == alerts_of(whole)
    assert resumed.summary().to_json() == unbroken.summary().to_json()
    assert resumed.summary().curves == unbroken.summary().curves
    assert resumed.slices_table() == unbroken.slices_table()
    assert resumed.health == unbroken.health


@pytest.mark.slow
def test_a_state_goes_into_a_checkpoint_that_torch_reads_without_any_class(tmp_path, make_batch, rng):
    monitor = Monitor(rules=())
    for step in range(6):
        monitor.observe(**make_batch(rng, pairs=("policy",)))
        monitor.samples(reward=rng.random(4), calls=[[{"name": "search"}]] * 4)
        monitor.log({"grad_norm": float("nan") if step == 3 else 1.0}, step)
    torch.save(monitor.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == monitor.state_dict()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "state: version None given, expected 27; leave it out, and the diagnostics start over"),
        ({"version": 27}, "state: KeyError: 'windows'; expected what state_dict gave"),
    ],
)
def test_a_state_that_is_none_is_reported(state, message):
    with pytest.raises(SourceError) as error:
        Monitor().load_state_dict(state)
    assert str(error.value) == message


@pytest.mark.slow
def test_damaged_arrays_are_reported(rng, make_batch):
    _, monitor = watch(make_batch(rng) for _ in range(3))
    state = monitor.state_dict()
    state["windows"]["policy"]["recent"][0]["sums"][0] = "f:2,8:nonsense"
    with pytest.raises(SourceError, match="array: 'f:2,8:nonsense' given"):
        Monitor().load_state_dict(state)


@pytest.mark.nightly
def test_a_planned_change_is_no_alarm_after_a_new_baseline(rng, make_batch):
    """The tools change at step 90 and the tail doubles; with `rebaseline`, the diagnostics take it for normal."""

    def run(informed):
        seen = CapturingTracker()
        monitor = Monitor([seen])
        for step in range(260):
            if informed and step == 100:
                monitor.rebaseline("new search tool")
            tensors = make_batch(rng, post=0.02 if step < 90 else 0.06 if step < 220 else 0.3)
            monitor.observe(**tensors)
            monitor.log({"reward": 0.5}, step)
        monitor.close()
        return seen, monitor

    _, uninformed = run(informed=False)
    seen, informed = run(informed=True)
    assert uninformed.summary().first_break.fired < 130
    assert informed.summary().first_break.fired < 130  # before `rebaseline`
    assert informed.summary().first_break.resolved == 100
    again = [f for f in informed.summary().findings if f.rule.id == "POL001" and f.onset > 100]
    assert again
    assert all(f.fired > 220 for f in again)
    assert informed.events == [(100, "new baseline: new search tool")]
    assert seen.events[1:] == informed.events  # the first one says what is seen


@pytest.mark.slow
def test_every_slicing_dimension_is_in_the_table(rng, make_batch):
    given = make_batch(rng)
    shape = given["logprobs"].shape
    more = {
        "tool": np.where(np.arange(shape[1]) > 12, rng.choice(["search", "python"], (64, 1)), ""),
        "env": rng.choice(["math", "web"], 64),
        "policy_lag": rng.integers(0, 3, 64),
        "advantages": rng.normal(size=64),
        "control": rng.random(shape) < 0.1,
        "applied_weights": np.ones(shape),
    }
    _, monitor = watch([given | more] * 10)
    table = monitor.slices_table()
    rows = {row[1]: dict(zip(table.columns, row, strict=True)) for row in table.rows if row[0] == "policy"}
    model = given["model_mask"]
    assert {"turn:0", "turn:1", "after_tool_k:first_16", "control:control", "advantage:positive"} <= rows.keys()
    assert {"tool:search", "tool:python", "env:math", "env:web", "policy_lag:2"} <= rows.keys()
    by_env = model[more["env"] == "web"].sum()
    assert rows["env:web"]["count"] == 8 * by_env
    for dimension in ("turn", "env", "policy_lag", "advantage", "control"):
        counted = sum(row["count"] for name, row in rows.items() if name.startswith(dimension + ":"))
        assert counted == rows["all"]["count"] == 8 * model.sum()
    assert rows["all"]["ess_applied"] == pytest.approx(1)
    assert rows["all"]["modified_fraction"] > 0.3  # most ratios are further than 1 % from 1
    assert monitor.failures == []


@pytest.mark.slow
def test_too_many_names_are_folded_and_the_table_says_so(rng, make_batch):
    given = make_batch(rng)
    _, monitor = watch([given | {"env": [f"env{i}" for i in range(64)]}] * 3)
    table = monitor.slices_table()
    notes = {row[1]: row[-1] for row in table.rows if row[0] == "policy"}
    assert notes["env:other"] == "49 names without a slice of their own, among them env15, env16, env17"


@pytest.mark.slow
def test_a_torch_batch_takes_the_devices_path_to_the_same_end(rng, make_batch, monkeypatch):
    batches = [make_batch(rng, pairs=("policy",)) for _ in range(20)]
    expected, _ = watch(batches)
    for module in (arrays, batch_module, given_module):
        monkeypatch.setattr(module, "on_device", lambda value: hasattr(value, "detach"))
    from_torch, monitor = watch({name: torch.from_numpy(value) for name, value in batch.items()} for batch in batches)
    assert monitor.failures == []
    for step in expected.records:
        assert from_torch.scalars(step) == pytest.approx(expected.scalars(step), rel=1e-9)


@pytest.mark.by_day("1")
@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 2])
def test_one_token_is_counted_and_nothing_is_concluded(tokens):
    values = np.full((1, tokens), -0.5)
    seen, monitor = watch([{"logprobs": values, "old_logprobs": values - 0.1, "model_mask": np.ones((1, tokens))}] * 80)
    assert (
        seen.scalars(79)["diag/policy/text_only/count"] == 64 * tokens
    )  # a slice with few tokens reaches back further
    assert not any("p95" in name for name in seen.scalars(79))
    assert fired(monitor) == []
    assert monitor.failures == []


@pytest.mark.slow
def test_what_was_observed_and_not_logged_yet_is_saved(rng, make_batch):
    batches = [make_batch(rng) for _ in range(6)]
    unbroken, _ = watch(batches)
    first = Monitor()
    for step, tensors in enumerate(batches[:4]):
        first.observe(**tensors)
        if step < 3:
            first.log({"reward": 0.5}, step)
    seen = CapturingTracker()
    resumed = Monitor([seen])
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    atexit.unregister(first.close)
    resumed.log({"reward": 0.5}, 3)
    for step in (4, 5):
        resumed.observe(**batches[step])
        resumed.log({"reward": 0.5}, step)
    resumed.close()
    assert seen.scalars(5) == unbroken.scalars(5)


@pytest.mark.nightly
def test_a_new_baseline_is_of_the_new_regime_alone(rng, make_batch):
    """Taken while the window still holds the old one, so that a later doubling would hide in it."""
    monitor = Monitor()
    for step in range(260):
        if step == 100:
            monitor.rebaseline("narrower tools")
        post = 0.16 if step < 100 else 0.02 if step < 190 else 0.06
        monitor.observe(**make_batch(rng, post=post))
        monitor.log({}, step)
    late = [f for f in monitor.summary().findings if f.rule.id == "POL001" and f.onset > 150]
    assert late
    assert late[0].fired < 215


def test_reasons_for_a_new_baseline_add_up_and_none_is_lost_at_the_end(rng, make_batch):
    monitor = Monitor()
    monitor.observe(**make_batch(rng))
    monitor.log({}, 3)
    monitor.rebaseline("one")
    monitor.rebaseline(2)  # whatever it is, nothing is raised into training
    monitor.close()
    assert monitor.events == [(3, "new baseline: one"), (3, "new baseline: 2")]


@pytest.mark.slow
def test_a_broken_value_is_no_news_after_a_new_baseline(rng, make_batch):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    for step in range(6):
        if step == 3:
            monitor.rebaseline("tools")
        monitor.observe(**make_batch(rng))
        monitor.log({"loss": math.nan}, step)
    monitor.close()
    assert [(step, finding.state) for step, finding in seen.findings if finding.rule.id == "NUM004"] == [(0, "firing")]


@pytest.mark.slow
def test_an_evaluation_that_fails_costs_that_steps_diagnostics_alone(rng, make_batch, monkeypatch):
    seen = CapturingTracker()
    monitor = Monitor([seen])
    whole = Engine.evaluate
    fails = iter([False, True, False, False])
    monkeypatch.setattr(Engine, "evaluate", lambda *given: 1 / 0 if next(fails) else whole(*given))
    for step in range(4):
        monitor.observe(**make_batch(rng))
        monitor.log({"reward": step / 4}, step)
    monitor.close()
    assert {step: own["reward"] for step, own in seen.own.items()} == {0: 0, 1: 0.25, 2: 0.5, 3: 0.75}
    assert seen.scalars(1)["diag/health/internal_errors"] == 1
    assert "ZeroDivisionError" in monitor.failures[0]


@pytest.mark.slow
def test_broken_weights_of_the_optimiser_are_a_finding(rng, make_batch):
    given = make_batch(rng)
    _, monitor = watch([given | {"applied_weights": np.full(given["logprobs"].shape, np.nan)}])
    assert fired(monitor)[0][0] == "NUM004"
    assert monitor.health["nonfinite_tokens"] == given["model_mask"].sum()


@pytest.mark.slow
@pytest.mark.parametrize("by", [900.0, -900.0])
def test_a_weight_beyond_floats_is_a_finding_of_its_own_and_no_cell(rng, make_batch, by):
    given = make_batch(rng)
    given["logprobs"][5, 5] = by
    _, monitor = watch([given])
    assert {rule for rule, *_ in fired(monitor)} == {"NUM008"}  # no value that was given is NaN or infinite
    assert "|log-ratio| of 256 nat" in monitor.summary().findings[0].summary
    table = monitor.slices_table()
    assert all(math.isfinite(cell) for row in table.rows for cell in row if isinstance(cell, float))


@pytest.mark.by_day("1024")
@pytest.mark.slow
@pytest.mark.parametrize("length", [64, 1024, 4096])
def test_the_noise_of_bfloat16_is_no_collapse_at_any_length(rng, length):
    """A sequence's weight is a product: under this noise its effective sample size is 0.05 at 1,000 tokens."""

    def step():
        old = rng.normal(-1, 0.5, (16, length)).astype(np.float32)
        new, rollout = (old + rng.normal(0, sd, old.shape).astype(np.float32) for sd in (0.02, 0.055))
        return {
            "logprobs": new,
            "old_logprobs": old,
            "rollout_logprobs": rollout,
            "model_mask": np.ones(old.shape, bool),
        }

    _, monitor = watch(step() for _ in range(28))
    assert monitor.summary().findings == ()
    table = monitor.slices_table()
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows if row[:2] == ("mismatch", "text_only"))
    assert row["ess"] > 0.99
    assert row["sequence_dispersion"] == pytest.approx(1, abs=0.5)


@pytest.mark.slow
def test_tokens_of_a_sequence_that_move_together_are_a_collapse(rng):
    """Each by 5 % of its probability at most, in each sequence the same way."""

    def step():
        old = rng.normal(-1, 0.5, (16, 256)).astype(np.float32)
        together = rng.normal(0, 0.03, (16, 1)).astype(np.float32)
        return {"logprobs": old + together, "old_logprobs": old, "model_mask": np.ones(old.shape, bool)}

    _, monitor = watch(step() for _ in range(28))
    (finding,) = monitor.summary().findings
    assert (finding.rule.id, finding.slice) == ("POL004", "text_only")


def one_tool_of_four(rng, make_batch, factor):
    """A batch in which what comes after the first of four tools is `factor` times as far off."""
    given = make_batch(rng, size=128, pairs=("policy",))
    tool = rng.integers(0, 4, 128)
    columns = np.arange(24)
    after = (np.arange(128) < 64)[:, None] & (columns >= 12)
    off = given["logprobs"] - given["old_logprobs"]
    given["old_logprobs"] = given["logprobs"] - off * np.where(after & (tool == 0)[:, None], 3 * factor, 3)
    return given | {"tool": np.where(after, np.array(["search", "python", "web", "shell"])[tool][:, None], "")}


@pytest.mark.nightly
def test_the_one_tool_that_goes_ill_is_named(rng, make_batch):
    """Also in a run that is resumed in the middle of it; the tail over all tools hardly moves."""
    seen, second = CapturingTracker(), CapturingTracker()
    monitor = Monitor([seen])
    for step in range(130):
        monitor.observe(**one_tool_of_four(rng, make_batch, 2.0 if step >= 105 else 1.0))
        monitor.log({"reward": 0.5}, step)
        if step == 107:
            state = json.loads(json.dumps(monitor.state_dict()))
            atexit.unregister(monitor.close)
            monitor = Monitor([second])
            monitor.load_state_dict(state)
    summary = monitor.close()
    ill = summary.first_break
    assert (ill.rule.id, ill.slice) == ("POL019", "tool:search")
    assert 100 <= ill.onset <= 110 <= ill.fired <= 120  # dated to a block of five
    assert "tool:search" in ill.summary
    assert {f.slice for f in summary.findings if f.rule.id == "POL019" and f.fired} == {"tool:search"}


@pytest.mark.slow
def test_without_names_the_rule_of_cells_is_blind(rng, make_batch):
    _, monitor = watch(make_batch(rng) for _ in range(3))
    assert [str(why) for why in monitor.summary().blind["POL019"]] == [str(reason(Why.NO_CELLS))]


@pytest.mark.nightly
def test_a_finding_tells_which_cells_carry_it(rng, make_batch):
    _, monitor = watch(one_tool_of_four(rng, make_batch, 6.0 if step >= 90 else 1.0) for step in range(110))
    by_rule = {finding.rule.id: finding for finding in monitor.summary().findings if finding.fired}
    assert by_rule["POL019"].carried_by == ()  # it is of one cell
    tail = by_rule["POL001"]
    search = tail.carried_by[0]
    assert (tail.slice, search.cell) == ("post_tool", "tool:search")
    assert search.growth > 0.95
    assert 0.2 < search.tokens < 0.3
    assert tail.summary.endswith(
        f"; tool:search carries {search.growth:.0%} of the growth with {search.tokens:.0%} of the tokens"
    )
    assert tail.to_json()["carried_by"][0] == search.to_json()
    assert Finding.of_state(tail.rule, json.loads(json.dumps(tail.state_dict()))) == tail


def test_any_mismatch_is_a_finding_where_zero_was_promised(rng, make_batch):
    made = make_batch(rng, pairs=("policy",))
    exact = made | {"rollout_logprobs": made["old_logprobs"].copy()}
    off = {name: value.copy() for name, value in exact.items()}
    row = 3
    token = np.flatnonzero(off["model_mask"][row])[-1]
    off["rollout_logprobs"][row, token] += 1e-3
    for promised in (True, False):
        monitor = Monitor()
        monitor.expect(mismatch="zero" if promised else None)
        monitor.config = {"seed": 1}  # settings that come later
        for step, tensors in enumerate((exact, exact, off, off)):
            monitor.observe(**tensors)
            monitor.log({"reward": 0.5}, step)
        summary = monitor.close()
        fired = [finding for finding in summary.findings if finding.rule.id == "NUM010"]
        assert [finding.onset for finding in fired] == [2] * promised
        if promised:
            assert {(worst.step, worst.sequence) for worst in summary.worst} == {(3, row)}
            assert summary.worst[0].slice == fired[0].slice
    with pytest.raises(DiagError, match="mismatch: 'none' given, expected 'zero'"):
        Monitor().expect(mismatch="none")
